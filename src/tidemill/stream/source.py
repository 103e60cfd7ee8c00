"""The streaming source of a pipeline, internal: `format("tidemill_blocks")`. Its rows are receipts.

Spark asks `latestOffset` for a batch's end and `partitions` for its lanes, both in a Python process of its own, and
runs `read` in a worker per lane, which delivers the lane and yields what the sinks answered. So a batch is one stage
with one Python worker per lane, and no row ever passes through the JVM (ADR 0011).

The end offset pins all that a replay needs to be the same (invariant 5): {"offset": n, "lanes": k, "by": "hash"}.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from tidemill.config.spec import Batch, Sharding
from tidemill.log import LogReader
from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset
from tidemill.stream.admission import admit, spread_by
from tidemill.stream.failures import carried
from tidemill.stream.plan import Lane, LaneResult, Plan

NAME = "tidemill_blocks"

# How long `latestOffset` waits for something to come before it says "nothing".
_IDLE_WAIT = 0.25

RECEIPTS = pa.schema(
    [
        ("sink", pa.string()), ("lane", pa.int32()), ("events", pa.int64()), ("bytes", pa.int64()),
        ("skipped", pa.int64()), ("encode_seconds", pa.float64()), ("write_seconds", pa.float64()),
        ("error", pa.string()), ("retryable", pa.bool_()), ("notices", pa.string()),
        ("error_data", pa.string()), ("retries", pa.int32()),
        # The batch they belong to; `dead_letters` are packed as in dlq/record.py. `telemetry` of a lane's first row are
        # the worker's events (telemetry/relay.py).
        ("start", pa.int64()), ("end", pa.int64()), ("lanes", pa.int32()), ("by", pa.string()),
        ("letters", pa.binary()), ("telemetry", pa.binary()),
    ]
)  # fmt: skip
_SQL = {
    pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "boolean",
    pa.binary(): "binary",
}  # fmt: skip


def options(plan: Plan, begin: Offset, batch: Batch, sharding: Sharding, count: int, *, asked: bool) -> dict[str, str]:
    """For the stream; `asked` says that the number of lanes is somebody's wish.

    Spark hides the value of an option whose name says `secret`: sinks' settings and the log's URI are in the plan.
    """
    admission = {
        "begin": begin, "count": count, "asked": asked, "by": spread_by(sharding),
        "max_events": batch.max_events, "max_bytes": batch.max_bytes, "max_ms": batch.max_ms,
        "respect_tx": batch.respect_source_tx,
    }  # fmt: skip
    return {"plan.secret": plan.to_json(), "admission": orjson.dumps(admission).decode()}


def again(spark: Any, plan: Plan, work: Mapping[Lane, Mapping[str, Collection[Offset]]]) -> pa.Table:
    """Delivers chosen lanes to chosen sinks once more, as a job of its own, without the events at these offsets."""
    tasks = [[asdict(lane), {sink: sorted(out) for sink, out in sinks.items()}] for lane, sinks in work.items()]
    frame = spark.read.format(NAME).option("plan.secret", plan.to_json()).option("work", orjson.dumps(tasks).decode())
    return frame.load().toArrow()


def warm_workers(spark: Any, count: int) -> None:
    spark.read.format(NAME).option("warm", str(count)).load().toArrow()


class BlockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ", ".join(f"`{column.name}` {_SQL[column.type]}" for column in RECEIPTS)

    def streamReader(self, schema: Any) -> BlockStream:
        return BlockStream(self.options["plan.secret"], self.options["admission"])

    def reader(self, schema: Any) -> DataSourceReader:
        if "warm" in self.options:
            return _WarmUp(int(self.options["warm"]))
        return _Again(self.options["plan.secret"], self.options["work"])


class BlockStream(DataSourceStreamReader):
    """Made twice: in the planning process, and, pickled, in the workers. Neither state nor connections cross over."""

    def __init__(self, plan: str, admission: str) -> None:
        self._plan = plan
        self._admission = admission
        self._log: LogReader | None = None

    def initialOffset(self) -> dict[str, Any]:
        # Ctrl-C reaches every process of the terminal; this one must outlive it until the driver has drained.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return {"offset": orjson.loads(self._admission)["begin"]}

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        """Waits a little for a batch worth taking; `start` itself when there is none."""
        if self._log is None:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._log = LogReader(Plan.from_json(self._plan).log)
        rule = orjson.loads(self._admission)
        with carried():
            return admit(self._log, rule, start, wait=_IDLE_WAIT)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        count = end.get("lanes", 1)
        return [
            InputPartition(Lane(start["offset"], end["offset"], lane, count, end.get("by", "table")))
            for lane in range(count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        plan, lane = Plan.from_json(self._plan), partition.value
        if lane.end <= plan.delivered:
            # Replayed by Spark because it died between our checkpoint and its own note; delivered already.
            return iter([_batch([LaneResult(Receipt("", lane.lane))], lane)])
        return iter([_deliver(plan, lane)])

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it is called only while the next batch is planned. The loop saves the checkpoint itself."""


class _Again(DataSourceReader):
    def __init__(self, plan: str, work: str) -> None:
        self._plan = plan
        self._work = work

    def partitions(self) -> list[InputPartition]:
        return [InputPartition((Lane(**lane), sinks)) for lane, sinks in orjson.loads(self._work)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        lane, sinks = partition.value
        return iter([_deliver(Plan.from_json(self._plan), lane, sinks)])


class _WarmUp(DataSourceReader):
    """A task per core, each long enough that no worker can take two."""

    def __init__(self, count: int) -> None:
        self._count = count

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self._count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from tidemill.stream.daemon import preload

        preload()
        time.sleep(0.1)
        return iter([_batch([], Lane(0, 0, partition.value, self._count, "table"))])


def _deliver(plan: Plan, lane: Lane, only: Mapping[str, Collection[Offset]] | None = None) -> pa.RecordBatch:
    from tidemill.stream.batch import deliver  # heavy, and needed in workers only
    from tidemill.stream.pool import EVENTS

    EVENTS.install()
    with carried():
        answers = deliver(plan, lane, only)
    return _batch(answers, lane, EVENTS.take())


def _batch(answers: list[LaneResult], lane: Lane, telemetry: bytes = b"") -> pa.RecordBatch:
    common = asdict(lane)
    rows = [common | asdict(answer.receipt) | {"letters": answer.dead_letters} for answer in answers]
    if telemetry:
        rows[0]["telemetry"] = telemetry
    return pa.RecordBatch.from_pylist(rows, schema=RECEIPTS)
