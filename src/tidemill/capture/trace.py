"""The first half of a trace: from the commit of a transaction to its append in the log. The stream adds the second half
(`stream/trace.py`), below the same root.

    change                the commit of the append's first transaction → the append is visible
    ├─ server.send        where the server says when it sent: the commit → it has sent the last of it
    ├─ capture.read       asked for bytes, at the earliest at the commit → they are here
    ├─ capture.decode     → the change is columns
    └─ capture.append     → it is durable and visible
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.contracts import ByteStreamSource, Source
from tidemill.log.entry import Entry
from tidemill.model.change import Change, Committed, SpillCommitted
from tidemill.telemetry.spans import Span, new_id, root_id, trace_id
from tidemill.telemetry.tracer import Tracer

_IN_FLIGHT = 4  # a change is written while the next is read


@dataclass(frozen=True, slots=True)
class _ReadTimes:
    asked: int
    sent: int  # 0: the server does not say
    read: int  # 0: the source reads and decodes in one
    decoded: int


class AppendTracer:
    """`follow` in the loop's thread; `on_append` in the one that writes; `on_adopted` of a snapshot's chunks."""

    def __init__(self, tracer: Tracer, pipeline: str, source: Source) -> None:
        self._tracer, self._pipeline, self._source = tracer, pipeline, source
        self._times: deque[tuple[Change, _ReadTimes]] = deque(maxlen=_IN_FLIGHT)

    def follow(self, changes: Iterator[Change]) -> Iterator[Change]:
        """The same changes, with when each was read and decoded."""
        asked = resumed = time.time_ns()
        for change in changes:
            stream = self._source if isinstance(self._source, ByteStreamSource) else None
            sent, read = (stream.decoder.sent_at, max(stream.read_at, resumed)) if stream is not None else (0, 0)
            self._times.append((change, _ReadTimes(asked, sent, read, time.time_ns())))
            yield change
            resumed = time.time_ns()

    def on_append(self, change: Change, entry: Entry, began: int) -> None:
        trace = self._trace(entry)
        if not self._tracer.is_sampled(trace):
            return
        committed = _commit_time(change)
        times = next((times for one, times in self._times if one is change), None)
        self._tracer.record(trace, self._spans(trace, entry, committed, began, times))

    def on_adopted(self, entry: Entry) -> None:
        trace = self._trace(entry)
        if entry.rows and self._tracer.is_sampled(trace):
            committed = min((ref.commit_time or 0 for ref in entry.blocks), default=0)
            self._tracer.record(trace, self._spans(trace, entry, committed * 1000, entry.written_at * 1_000_000, None))

    def _trace(self, entry: Entry) -> int:
        return trace_id(self._pipeline, entry.base, entry.written_at)

    def _spans(self, trace: int, entry: Entry, committed: int, began: int, times: _ReadTimes | None) -> Iterator[Span]:
        """`committed` is by the database's clock, which may be after ours: then the trace begins with the reading."""
        now, root = time.time_ns(), root_id(trace)
        first = times.asked if times is not None else began
        start = min(committed or first, times.decoded if times is not None else began)
        yield Span(
            "change", start, now, root,
            attributes={
                "pipeline": self._pipeline, "offset.first": entry.base, "offset.last": entry.end - 1,
                "rows": entry.rows, "bytes": entry.bytes, "tables": len({ref.table for ref in entry.blocks}),
                "position": entry.tail.position,
            },
        )  # fmt: skip
        if times is not None:
            read = times.read or times.decoded
            if start < times.sent <= read:
                yield Span("server.send", start, times.sent, new_id(root, "send"), root)
            yield Span("capture.read", min(max(times.asked, start), read), read, new_id(root, "read"), root)
            if times.read:
                yield Span("capture.decode", times.read, times.decoded, new_id(root, "decode"), root)
        yield Span("capture.append", began, now, new_id(root, "append"), root)


def _commit_time(change: Change) -> int:
    """Of the first transaction in it, nanoseconds since 1970; 0 where nobody says."""
    match change:
        case SpillCommitted():
            return change.commit_time * 1000
        case Committed():
            firsts = (block.batch.column("commit_time") for block in change.blocks if block.rows)
            return min((column[0].value for column in firsts if column[0].is_valid), default=0) * 1000
        case _:
            return 0
