"""The streaming source of a pipeline, internal: `format("tidemill_blocks")`. Its rows are receipts.

Spark asks `latestOffset` for a batch's end and `partitions` for its lanes, both in a Python process of its own, and
runs `read` in a worker per lane, which delivers the lane and yields what the sinks answered. So a batch is one stage
with one Python worker per lane, and no row ever passes through the JVM (ADR 0011).

The end offset pins all that a replay needs to be the same (invariant 5): {"offset": n, "lanes": k, "by": "hash"}.

In real time it is not used: `epochs.py`.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from tidemill.config.spec import Batch, Sharding
from tidemill.log import LogReader
from tidemill.log.notice import AppendNotice
from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset
from tidemill.stream.batch.admission import admit, spread_by
from tidemill.stream.batch.failures import carry
from tidemill.stream.batch.plan import Lane, LaneResult, Plan
from tidemill.stream.position.pin_file import PinnedBatch
from tidemill.stream.schema import known_file
from tidemill.telemetry.spans import LaneSpans

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
        ("dead_letters", pa.binary()), ("telemetry", pa.binary()),
        # Of a lane's first row too: what its processors did, and which structures they learned (plan.py).
        ("processed", pa.string()), ("learned", pa.string()),
        ("sensed", pa.binary()),  # of a lane's first row too: schema/sensing
        ("spans", pa.binary()),  # and of a traced run, telemetry/spans.py
    ]
)  # fmt: skip
_SQL = {
    pa.string(): "string", pa.int32(): "int", pa.int64(): "long", pa.float64(): "double", pa.bool_(): "boolean",
    pa.binary(): "binary",
}  # fmt: skip


def admission(
    begin: Offset, batch: Batch, sharding: Sharding, count: int, *, asked: bool, pinned: PinnedBatch | None = None
) -> dict[str, Any]:
    """The rule of `admit`; `asked` says that the number of lanes is somebody's wish."""
    return {
        "begin": begin, "count": count, "asked": asked, "by": spread_by(sharding),
        "max_events": batch.max_events, "max_bytes": batch.max_bytes, "max_ms": batch.max_ms,
        "respect_tx": batch.respect_source_tx, "pinned": asdict(pinned) if pinned else None,
    }  # fmt: skip


def options(plan: Plan, rule: Mapping[str, Any]) -> dict[str, str]:
    """For the stream of micro-batches.

    Spark hides the value of an option whose name says `secret`: sinks' settings and the log's URI are in the plan.
    """
    return {"plan.secret": plan.to_json(), "admission": orjson.dumps(rule).decode()}


def again(spark: Any, plan: Plan, work: Mapping[Lane, Mapping[str, Collection[Offset]] | None]) -> pa.Table:
    """Delivers chosen lanes to chosen sinks once more, as a job of its own, without the events at these offsets; where
    none are chosen, to all of them, as for the first time."""
    tasks = [
        [asdict(lane), None if sinks is None else {sink: sorted(out) for sink, out in sinks.items()}]
        for lane, sinks in work.items()
    ]
    frame = spark.read.format(NAME).option("plan.secret", plan.to_json()).option("work", orjson.dumps(tasks).decode())
    return frame.load().toArrow()


class BlockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return ", ".join(f"`{column.name}` {_SQL[column.type]}" for column in RECEIPTS)

    def streamReader(self, schema: Any) -> BlockStream:
        return BlockStream(self.options["plan.secret"], self.options["admission"])

    def reader(self, schema: Any) -> DataSourceReader:
        return _Again(self.options["plan.secret"], self.options["work"])


class BlockStream(DataSourceStreamReader):
    """Made twice: in the planning process, and, pickled, in the workers. Neither state nor connections cross over."""

    def __init__(self, plan: str, admission: str) -> None:
        self._plan = plan
        self._admission = admission
        self._log: LogReader | None = None
        self._notice: AppendNotice | None = None

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
            self._notice = AppendNotice(Plan.from_json(self._plan).log)
        rule = orjson.loads(self._admission)
        with carry():
            return admit(self._log, rule, start, wait=_IDLE_WAIT, notice=self._notice)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        count = end.get("lanes", 1)
        known = self._read_known()
        return [
            InputPartition((Lane(start["offset"], end["offset"], lane, count, end.get("by", "table")), known))
            for lane in range(count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        lane, known = partition.value
        plan = Plan.from_json(self._plan)
        if known is not None:
            plan = replace(plan, **known)
        if lane.end <= plan.delivered:
            # Replayed by Spark because it died between our checkpoint and its own note; delivered already.
            return iter([_batch([LaneResult(Receipt("", lane.lane))], lane)])
        return iter([deliver_lane(plan, lane)])

    def _read_known(self) -> dict[str, Any] | None:
        """What the driver knows by now of structures: this runs on its machine, after the batch before was noted."""
        path = Plan.from_json(self._plan).known_file if self._plan else ""
        return known_file.read(Path(path)) if path else None

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
        return iter([deliver_lane(Plan.from_json(self._plan), lane, sinks)])


def deliver_lane(plan: Plan, lane: Lane, only: Mapping[str, Collection[Offset]] | None = None) -> pa.RecordBatch:
    from tidemill.stream.lane.deliver import deliver  # heavy, and needed in workers only
    from tidemill.stream.lane.pool import EVENTS, POOL
    from tidemill.stream.lane.sensing import LaneSensor

    EVENTS.install()
    spans = LaneSpans(lane=lane.lane, lanes=lane.lanes) if plan.traced else None
    sensor, sensed = None, b""
    with carry():
        if plan.sensing is not None and only is None:
            tools = POOL.tools(plan.group, plan.run, plan.log)
            sensor = LaneSensor(tools, plan.pipeline, lane, plan.sensing, plan.quarantines)
        results = deliver(plan, lane, only, sensor, spans)
        if sensor is not None:
            sensed = sensor.finish()
    return _batch(results, lane, EVENTS.take(), sensed, spans.pack() if spans is not None else b"")


def _batch(
    results: list[LaneResult], lane: Lane, telemetry: bytes = b"", sensed: bytes = b"", spans: bytes = b""
) -> pa.RecordBatch:
    common = asdict(lane)
    rows = [
        common | asdict(result.receipt)
        | {"dead_letters": result.dead_letters, "processed": result.processed, "learned": result.learned}
        for result in results
    ]  # fmt: skip
    for name, packed in (("telemetry", telemetry), ("sensed", sensed), ("spans", spans)):
        if packed:
            rows[0][name] = packed
    return pa.RecordBatch.from_pylist(rows, schema=RECEIPTS)
