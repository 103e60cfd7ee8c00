"""The second half of a trace: a batch from its plan to its checkpoint, below the `change` that capture recorded
(`capture/trace.py`).

    stream.batch             planned → the checkpoint is saved; links to the other changes that it delivers
    ├─ stream.pin            → the loop has it, pinned
    ├─ stream.barrier        only where it begins with a schema change or a TRUNCATE
    ├─ stream.deliver        one for each attempt: sent to the lanes → their receipts are here
    │  └─ lane.deliver       one for each lane (lane/trace.py)
    ├─ stream.receipts       → what they brought is kept: dead letters, sensing
    └─ stream.checkpoint     → the position is durable

A batch holds many appends as a rule. It belongs to the trace of the first that is sampled.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.log import LogReader
from tidemill.model.position import Offset
from tidemill.stream.position.commit_policy import SinkGroup
from tidemill.stream.position.pin_file import PinnedBatch
from tidemill.stream.report import BatchReport
from tidemill.stream.trigger.callback import Stopping
from tidemill.stream.trigger.dispatch import Dispatch
from tidemill.telemetry.context import bind
from tidemill.telemetry.events import warn
from tidemill.telemetry.spans import Attribute, Span, new_id, root_id, trace_id, trace_text, unpack
from tidemill.telemetry.tracer import Tracer

_MOST_APPENDS = 256  # of a batch, that are looked at
_MOST_LINKS = 32


@dataclass(slots=True)
class _OpenBatch:
    """`last` is where the last step ended."""

    trace: int
    links: tuple[tuple[int, int], ...]
    bounds: PinnedBatch
    planned_at: int
    began: int
    last: int
    id: int
    spans: list[Span] = field(default_factory=list)
    attempts: int = 0
    report: BatchReport | None = None
    tables: int = 0


class BatchTracer:
    """Of one group's loop, for the thread of its batches. Without a tracer every call returns at once."""

    def __init__(
        self, tracer: Tracer | None, pipeline: str, group: SinkGroup, log: LogReader, *, real_time: bool
    ) -> None:
        self._tracer, self._pipeline, self._group, self._log = tracer, pipeline, group, log
        self._trigger = "real_time" if real_time else "micro_batch"
        self._open: _OpenBatch | None = None

    @property
    def on(self) -> bool:
        return self._tracer is not None

    @contextmanager
    def batch(self, dispatch: Dispatch, start: Offset) -> Iterator[None]:
        """Inside, events name the trace. Afterwards the spans are exported: of a batch that was delivered, and of one
        that failed."""
        found = self._begin(dispatch, start) if self._tracer is not None else None
        if found is None:
            yield
            return
        self._open = found
        try:
            with bind(trace_id=trace_text(found.trace)):
                yield
        except Stopping:
            raise
        except Exception as error:
            self._export(found, error.code if isinstance(error, TidemillError) else type(error).__name__)
            raise
        else:
            if found.report is not None:
                self._export(found)
        finally:
            self._open = None

    def clock(self) -> int:
        return time.time_ns() if self._open is not None else 0

    def lap(self, name: str) -> None:
        """A step of the batch ended, and began where the one before it ended."""
        if (open_batch := self._open) is not None:
            now = time.time_ns()
            self._add(open_batch, name, open_batch.last, now)

    def note_attempt(self, began: int, results: pa.Table) -> None:
        if (open_batch := self._open) is None:
            return
        open_batch.attempts += 1
        attempt = self._add(open_batch, "stream.deliver", began, time.time_ns(), attempt=open_batch.attempts)
        for number, packed in enumerate(filter(None, results.column("spans").to_pylist())):
            lane = unpack(packed, attempt.id, number)
            open_batch.spans += lane
            open_batch.tables = max(open_batch.tables, int(lane[0].attributes.get("tables", 0)))

    def finish(self, report: BatchReport) -> None:
        if self._open is not None:
            self._open.report = report

    def _begin(self, dispatch: Dispatch, start: Offset) -> _OpenBatch | None:
        """No batch fails because it cannot be traced: if it cannot be delivered either, who delivers it says so."""
        try:
            return self._find(dispatch, start)
        except (TidemillError, OSError, ValueError, KeyError, IndexError) as error:
            warn("telemetry.batch_not_traced", offset=start, error=str(error))
            return None

    def _find(self, dispatch: Dispatch, start: Offset) -> _OpenBatch | None:
        """None where the batch is in no trace, or was delivered before."""
        assert self._tracer is not None
        bounds = dispatch.bounds(start)
        if bounds.end <= start:
            return None
        appends = islice(self._log.appends(bounds.start, bounds.end), _MOST_APPENDS)
        traces = (trace_id(self._pipeline, append.base, append.written_at) for append in appends)
        sampled = [trace for trace in traces if self._tracer.is_sampled(trace)]
        if not sampled:
            return None
        links = tuple((trace, root_id(trace)) for trace in sampled[1 : _MOST_LINKS + 1])
        now = time.time_ns()
        id = new_id(sampled[0], self._group.key, bounds.start, now)
        return _OpenBatch(sampled[0], links, bounds, min(dispatch.planned_at() or now, now), now, now, id)

    def _add(self, batch: _OpenBatch, name: str, start: int, end: int, **attributes: Attribute) -> Span:
        batch.last = end
        span = Span(name, start, end, new_id(batch.id, name, len(batch.spans)), batch.id, attributes)
        batch.spans.append(span)
        return span

    def _export(self, batch: _OpenBatch, error: str = "") -> None:
        assert self._tracer is not None
        report, bounds = batch.report, batch.bounds
        attributes: dict[str, Attribute] = {
            "pipeline": self._pipeline, "sinks": ",".join(self._group.sinks), "trigger": self._trigger,
            "offset.first": bounds.start, "offset.last": bounds.end - 1, "rows": bounds.end - bounds.start,
            "lanes": bounds.lanes, "tables": batch.tables, "attempts": batch.attempts,
        }  # fmt: skip
        if report is not None:
            attributes |= {
                "batch": report.number, "bytes": report.bytes, "retries": report.retries,
                "dead_letters": len(report.dead_letters), "position": report.position,
            }  # fmt: skip
        crossed = report is None or report.barrier
        steps = [span for span in batch.spans if crossed or span.name != "stream.barrier"]
        root = root_id(batch.trace)
        whole = Span(
            "stream.batch", batch.planned_at, time.time_ns(), batch.id, root, attributes, error, batch.links
        )  # fmt: skip
        pin = Span("stream.pin", batch.planned_at, batch.began, new_id(batch.id, "pin"), batch.id)
        self._tracer.record(batch.trace, [whole, pin, *steps])
