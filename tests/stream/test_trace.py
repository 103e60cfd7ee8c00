"""Which trace a batch is in, and what is recorded of one that fails. The whole of it: tests/service/test_traces.py."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.blocks import make_change
from tidemill.config.spec import CommitPolicy
from tidemill.errors import Refused
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.entry import Entry
from tidemill.model.position import Offset
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.position.commit_policy import Policy
from tidemill.stream.position.pin_file import PinnedBatch
from tidemill.stream.trace import BatchTracer
from tidemill.telemetry.context import current
from tidemill.telemetry.spans import LaneSpans, Span, root_id, trace_id, trace_text


class KeepingTracer:
    """Samples what it was given, and keeps what is recorded."""

    def __init__(self, *sampled: int) -> None:
        self.sampled = sampled
        self.recorded: list[tuple[int, Span]] = []

    def is_sampled(self, trace: int) -> bool:
        return trace in self.sampled

    def record(self, trace: int, spans: Iterable[Span]) -> None:
        self.recorded += [(trace, span) for span in spans]

    def close(self) -> None: ...


class StillBatch:
    """A batch that is delivered nowhere."""

    def __init__(self, end: Offset, *, lost: bool = False) -> None:
        self._end, self._lost = end, lost

    def bounds(self, start: Offset) -> PinnedBatch:
        return PinnedBatch(start, self._end, 1, "table")

    def planned_at(self) -> int:
        if self._lost:
            raise FileNotFoundError("offsets/0")
        return 1

    def first(self, plan: Plan, sinks: Sequence[str] = ()) -> pa.Table:
        raise NotImplementedError

    def again(self, plan: Plan, work: Mapping[Lane, Mapping[str, Collection[Offset]]]) -> pa.Table:
        raise NotImplementedError


@pytest.fixture
def appends(tmp_path: Path) -> list[Entry]:
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    entries = [log.append(make_change(5, number=number)) for number in (1, 2, 3)]
    log.close()
    return entries


def batch_tracer(directory: Path, tracer: KeepingTracer) -> BatchTracer:
    (group,) = Policy.of("orders", CommitPolicy(), {"s": True}).groups
    return BatchTracer(tracer, "orders", group, LogReader(str(directory / "log")), real_time=False)


def test_a_batch_is_in_the_trace_of_its_first_sampled_append_and_links_to_the_others(
    tmp_path: Path, appends: list[Entry]
) -> None:
    first, second, third = (trace_id("orders", each.base, each.written_at) for each in appends)
    tracer = KeepingTracer(second, third)
    tracing = batch_tracer(tmp_path, tracer)
    lane = LaneSpans(lane=0, lanes=1)
    lane.describe(tables=1)
    named = []

    def deliver() -> None:
        with tracing.batch(StillBatch(15), 0):
            named.append(current()["trace_id"])
            tracing.lap("stream.barrier")
            tracing.note_attempt(tracing.clock(), pa.table({"spans": pa.array([lane.pack(), None], pa.binary())}))
            raise Refused("the sink will never take it")

    with pytest.raises(Refused):
        deliver()
    assert named == [trace_text(second)]
    assert {trace for trace, _ in tracer.recorded} == {second}
    spans = {span.name: span for _, span in tracer.recorded}
    assert list(spans) == ["stream.batch", "stream.pin", "stream.barrier", "stream.deliver", "lane.deliver"]
    batch = spans["stream.batch"]
    assert (batch.parent, batch.links, batch.error) == (root_id(second), ((third, root_id(third)),), Refused.code)
    assert (batch.attributes["rows"], batch.attributes["tables"], batch.attributes["attempts"]) == (15, 1, 1)
    assert spans["lane.deliver"].parent == spans["stream.deliver"].id
    assert "trace_id" not in current()
    assert first not in tracer.sampled


def test_a_batch_that_is_not_sampled_or_was_delivered_before_is_in_no_trace(
    tmp_path: Path, appends: list[Entry]
) -> None:
    first, *_ = (trace_id("orders", each.base, each.written_at) for each in appends)
    tracer = KeepingTracer(first)
    tracing = batch_tracer(tmp_path, tracer)
    for start, end in ((5, 15), (10, 5)):
        with tracing.batch(StillBatch(end), start):
            tracing.lap("stream.barrier")
            assert (tracing.clock(), "trace_id" in current()) == (0, False)
    assert tracer.recorded == []


def test_a_batch_that_cannot_be_traced_is_delivered(
    tmp_path: Path, appends: list[Entry], caplog: pytest.LogCaptureFixture
) -> None:
    tracer = KeepingTracer(*(trace_id("orders", each.base, each.written_at) for each in appends))
    delivered = []
    with (
        caplog.at_level(logging.WARNING, "tidemill"),
        batch_tracer(tmp_path, tracer).batch(StillBatch(15, lost=True), 0),
    ):
        delivered.append(15)
    assert [record.getMessage() for record in caplog.records] == ["telemetry.batch_not_traced"]
    assert (delivered, tracer.recorded) == ([15], [])
