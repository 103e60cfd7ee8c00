"""Sensing of a pipeline that runs: what keeps its results, and what sends drift to a sink where the document asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime

import pyarrow as pa

from tidemill.config import Pipeline
from tidemill.config.spec.sink import SinkSpec
from tidemill.contracts import Sink, StateStore
from tidemill.contracts.sensing_store import DriftEvent
from tidemill.errors import TidemillError
from tidemill.model.block import COMMIT_TIME, POSITION, Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.retry import RetryPolicy
from tidemill.service.schema.sensing import build_keeper, drift_notices
from tidemill.telemetry import events

_TEXT, _NUMBER = DataType("text", pa.string(), JsonForm.STRING), DataType("bigint", pa.int64(), JsonForm.NUMBER)
DRIFT_TABLE = Table(
    "", "tidemill", "drift",
    (
        Column("number", _NUMBER, nullable=False), Column("pipeline", _TEXT, nullable=False),
        Column("table_name", _TEXT, nullable=False), Column("kind", _TEXT, nullable=False),
        Column("subject", _TEXT, nullable=False), Column("what", _TEXT, nullable=False),
        Column("events", _NUMBER, nullable=False), Column("first_offset", _NUMBER), Column("first_position", _TEXT),
        Column("reported_at", _TEXT, nullable=False),
    ),
    ("number",), version=1, sequence=1,
).with_fingerprint()  # fmt: skip
"""What a drift is at its sink. The column is not called `table`: that is a word of SQL."""

_POLL_SECONDS = 1.0
_STOP_SECONDS = 10.0


class RunSensing:
    """`keeper` is None where the document does not ask for sensing."""

    def __init__(self, pipeline: Pipeline, state: StateStore) -> None:
        asked = pipeline.spec.schema_sensing
        self.keeper = build_keeper(pipeline, state) if asked.enabled else None
        wanted = asked.drift.sink if asked.enabled and asked.drift.enabled else None
        self._sender = DriftSender(pipeline, wanted) if wanted is not None else None

    def start(self) -> None:
        if self._sender is not None:
            self._sender.start()

    def notices(self) -> Iterator[dict[str, str]]:
        yield from drift_notices(self.keeper.fired() if self.keeper is not None else ())
        if self._sender is not None and self._sender.problem is not None:
            yield self._sender.problem

    def close(self) -> None:
        if self._sender is not None:
            self._sender.stop()


class DriftSender:
    """Sends what the store has for the sink, in order, one event a delivery: what is sent again after a crash is the
    same delivery with the same bytes. A sink that does not take it is asked again; the pipeline does not wait."""

    def __init__(self, pipeline: Pipeline, spec: SinkSpec) -> None:
        self._pipeline, self._spec = pipeline, spec
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drift", daemon=True)
        self.problem: dict[str, str] | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After the delivery under way, if it ends soon."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        tries = RetryPolicy(first=1.0, most=60.0).begin(self._stop)
        with closing(self._pipeline.build_state()) as state:
            while not self._stop.wait(_POLL_SECONDS):
                try:
                    self._send_waiting(state)
                except Exception as error:  # noqa: BLE001  sinks bring errors of any library; it stays in the store
                    self._note(error)
                    tries.pause()
                else:
                    self.problem = None
                    tries.reset()

    def _send_waiting(self, state: StateStore) -> None:
        waiting = state.sensing.drift_events(self._pipeline.name)
        if not waiting:
            return
        with closing(self._pipeline.build_sink(self._spec)) as sink:
            for each in waiting:
                if self._stop.is_set():
                    return
                send_drift(sink, self._pipeline, each)
                state.sensing.forget_drift_event(self._pipeline.name, each.number)

    def _note(self, error: Exception) -> None:
        what = error.what if isinstance(error, TidemillError) else type(error).__qualname__
        if self.problem is None:
            events.warn("drift.not_delivered", sink=self._spec.config.id, error=what)
        self.problem = {
            "code": "drift-not-delivered", "subject": self._spec.config.id,
            "what": f"drift waits for its sink, which did not take it: {what}",
            "fix": (error.fix if isinstance(error, TidemillError) else "") or "It is sent again until it arrives.",
        }  # fmt: skip


def send_drift(sink: Sink, pipeline: Pipeline, event: DriftEvent) -> None:
    """Durable at the sink when it returns."""
    offset = event.number - 1
    block = drift_block(pipeline.name, event)
    # A name of its own: what a sink notes of the pipeline's stream is not this one's.
    delivery = Delivery(f"{pipeline.name}.drift", pipeline.source_id, offset, event.number, 0, 1, lambda: iter([block]))
    sink.write(delivery)


def drift_block(pipeline: str, event: DriftEvent) -> Block:
    drift = event.document
    row = {
        "number": event.number, "pipeline": pipeline, "table_name": drift["table"], "kind": drift["kind"],
        "subject": drift["subject"], "what": drift["what"], "events": drift["events"], "first_offset": drift["offset"],
        "first_position": drift["position"], "reported_at": drift["at"],
    }  # fmt: skip
    columns = {
        "offset": pa.array([event.number - 1], pa.uint64()),
        "op": pa.array([int(Op.INSERT)], pa.uint8()),
        "position": pa.array([f"drift:{event.number}"], pa.string()).dictionary_encode().cast(POSITION),
        "tx_id": pa.array([None], pa.uint64()),
        "ordinal": pa.array([0], pa.uint32()),
        "commit_time": pa.array([datetime.fromisoformat(drift["at"])], COMMIT_TIME),
        "after": pa.array([row], DRIFT_TABLE.arrow_struct()),
    }
    return Block(DRIFT_TABLE, pa.RecordBatch.from_pydict(columns))
