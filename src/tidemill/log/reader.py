"""Reads the log: for the stream's planner (in the driver), its tasks (in workers), and `tidemill log`.

Any number of readers, in any process, while the writer writes. Memory does not grow with the log's history.
"""

from __future__ import annotations

import bisect
import time
import zlib
from collections.abc import Iterator
from itertools import takewhile

from tidemill.errors import LogCorrupt, LogError
from tidemill.log import codec
from tidemill.log.bookmark import POSITION, Bookmark
from tidemill.log.copying import read_copying
from tidemill.log.entry import ORIGIN, BlockRef, Entry, Tail
from tidemill.log.gap import Gap, read_gap
from tidemill.log.index import Append, Index, trimmed_error
from tidemill.log.order import in_order
from tidemill.log.store import RESTORE, Store, open_store
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.position import Offset, Position


class LogReader:
    def __init__(self, uri: str | Store) -> None:
        self._store = open_store(uri)
        self.label = self._store.label  # for messages
        self._index = Index(self._store)
        self._resting = Bookmark(self._store, POSITION)
        self._tail = ORIGIN
        self._fresh_until = 0.0

    def head(self) -> Offset:
        """The oldest offset that can still be read; the tail's when there is none."""
        bases = self._index.bases()
        return bases[0] if bases else self.tail().offset

    def tail(self) -> Tail:
        """Where the log ends now. Cheap: a few looks at file sizes when nothing came."""
        began = time.monotonic()
        resting = self._resting.get()
        tail = self._index.refresh(resting or ORIGIN)
        self._tail = resting if resting is not None and resting.offset == tail.offset else tail
        now = time.monotonic()
        self._fresh_until = now + (now - began)
        return self._tail

    def plan(self, start: Offset, *, max_events: int, max_bytes: int, respect_tx: bool = True) -> Offset:
        """The end of the batch that begins at `start`; `start` itself when nothing is there.

        It ends where a transaction ends, and holds at least one even if that is larger than the limits, unless
        `respect_tx` is False: then one that does not fit is cut (invariant 3). An append with a schema change or
        TRUNCATE is a batch of its own, whatever its size; appends that only change keys are a batch among themselves.
        """
        self._check(start)
        end, events, size, joined = start, 0, 0, False
        for append in self._index.appends(start):
            if append.barrier and end == start and not append.barrier.joins:
                return append.end
            if end > start and (append.barrier if not joined else not append.barrier.joins):
                return end
            here = append.end - end
            weight = append.bytes / (append.end - append.base)
            room = min(max_events - events, int((max_bytes - size) / weight))
            joined = append.barrier.joins
            if here > room and (not joined or end > start):
                return end if joined else self._cut(append, start, end, room, respect_tx)
            end, events, size = append.end, events + here, size + int(here * weight)
        return end

    def barrier_at(self, start: Offset) -> Barrier:
        """Why the batch that begins at `start` is one of its own; `NONE` if it is not, or if nothing is there yet."""
        append = next(self._index.appends(start), None) if self._check(start).offset > start else None
        return append.barrier if append is not None and append.base <= start else Barrier.NONE

    def _cut(self, append: Append, start: Offset, end: Offset, room: int, respect_tx: bool) -> Offset:
        """Ends the batch inside this append, at most `room` events after `end` where that is possible."""
        marks = [append.base + events for events, _ in self._index.entry(append).marks]
        fits = bisect.bisect_right(marks, end + room)
        if fits and marks[fits - 1] > end:
            return marks[fits - 1]
        if end > start:
            return end
        if not respect_tx:
            return end + max(room, 1)
        return marks[bisect.bisect_right(marks, end)]

    def refs(self, start: Offset, end: Offset) -> list[BlockRef]:
        """Of every block with offsets in the range, clipped to it, by where they begin. An append has its tables'
        blocks in any order; those of one table follow each other (order.py)."""
        self._check(start, end)
        return in_order((ref for entry in self._entries(start, end) for ref in entry.refs(start, end)), self.read)

    def read(self, ref: BlockRef) -> Block:
        """Local files are memory-mapped: only `offset` and a spill's constants take memory of their own."""
        buffer = self._store.view(ref.segment, ref.at, ref.size)
        if zlib.crc32(buffer) != ref.crc:
            raise LogCorrupt(
                f"a block of {ref.table} does not match its checksum (offsets {ref.first} to {ref.last})",
                where=f"{self._store.label}/{ref.segment}, byte {ref.at}",
                fix=RESTORE,
            )
        return codec.load(buffer, ref.base, ref.constants, first=ref.first, last=ref.last)

    def unmap(self) -> None:
        """Who reads now and then calls it in between: pages of a mapped file count as the reader's memory, also those
        of segments that were delivered long ago."""
        self._store.unmap()

    def read_copying(self) -> dict[str, Offset | None]:
        """Tables that a snapshot is copying, or was (`log/copying.py`)."""
        return read_copying(self._store)

    def gap(self) -> Gap:
        """Where the log begins to have the whole stream (`log/gap.py`)."""
        return read_gap(self._store)

    def mark_at(self, offset: Offset) -> Tail:
        """Where the source resumes when everything before `offset` was delivered: the last transaction's end, which is
        before `offset` where that is inside a transaction."""
        tail = self._check(offset)
        if offset == tail.offset:
            return tail
        return next(self.entries(offset)).mark_at(offset)

    def position_at(self, offset: Offset) -> Position:
        return self.mark_at(offset).position

    def entries(self, start: Offset = 0) -> Iterator[Entry]:
        """From the append that holds `start`, or from the head if that is later."""
        return self._entries(max(start, self.head()), self.tail().offset)

    def between(self, start: Offset, end: Offset) -> Iterator[Entry]:
        """The appends with offsets in the range, in order. `LogError` if some of them are not there any more."""
        self._check(start, end)
        return self._entries(start, end)

    def appends(self, start: Offset, end: Offset) -> Iterator[Append]:
        """Those with offsets in the range, in order, as far as the index in memory knows them: cheap."""
        self._check(start, end)
        return takewhile(lambda append: append.base < end, self._index.appends(start))

    def offset_at(self, epoch_ms: int) -> Offset:
        """Everything that was logged at or after this time stands at or after this offset.

        What was committed after it was logged after it, so that a replay from here misses nothing committed since.
        """
        head, tail = self.head(), self.tail()
        if head == tail.offset:
            return head
        appends = self._index.appends(self._index.begin_before(epoch_ms))
        return next((append.base for append in appends if append.written_at >= epoch_ms), tail.offset)

    def _entries(self, start: Offset, end: Offset) -> Iterator[Entry]:
        """They cover the range without a gap, or it is `LogError`."""
        due = start
        for append in self._index.appends(start):
            if append.base >= end:
                break
            yield self._index.entry(append)
            due = append.end
        if due < end:
            raise LogError(
                f"offsets {due} to {end - 1} are not in the log any more",
                where=self._store.label,
                fix="What they held was delivered and trimmed; raise retention_seconds or retention_bytes to keep it.",
            )

    def _check(self, start: Offset, end: Offset | None = None) -> Tail:
        tail = self._reach(start, end)
        if max(start, end or 0) > tail.offset:
            raise LogError(
                f"offset {max(start, end or 0)} is asked for, but the log ends at {tail.offset}",
                where=self._store.label,
                fix="Is this the log that the checkpoint belongs to?",
            )
        head = self._index.head()
        if head is not None and start < head:
            raise trimmed_error(start, head, self._store)
        return tail

    def _reach(self, start: Offset, end: Offset | None) -> Tail:
        """A tail that is far enough. With an `end` nothing after it matters. Otherwise what was just seen holds for as
        long as it took to see: in an object store each look is a request, and a batch asks several times."""
        if end is not None:
            tail = self._index.refresh(until=end)
            return tail if tail.offset >= end else self.tail()
        return self._tail if self._tail.offset > start and time.monotonic() < self._fresh_until else self.tail()
