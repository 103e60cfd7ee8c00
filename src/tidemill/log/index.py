"""The index: one checked record per append, and what a reader keeps of it in memory.

A record is a line, `<crc32, hex> <length> <JSON>`. Writing it is what makes an append visible (invariant 3), so a
record that is not whole is an append that never happened, as long as nothing stands after it. Of each append a
reader keeps 40 bytes, of few segments at a time; marks and blocks are read again when they are asked for.
"""

from __future__ import annotations

import bisect
import re
import time
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import orjson

from tidemill.errors import LogCorrupt, LogError, LogTooNew
from tidemill.log.entry import FORMAT, ORIGIN, Entry, Tail, barrier_of, index_name, segment_name
from tidemill.log.store import RESTORE, Store
from tidemill.model.barrier import Barrier
from tidemill.model.position import Offset, Position

# Segments kept in memory: these many, and more only while they have few appends (objects have one each).
_SEGMENTS = 2
_APPENDS = 4096
_LOOK_SECONDS = 0.25
# A record begins with its checksum and its length, which tell it from every other.
_STAMP_BYTES = 24

_HEADER = re.compile(rb"([0-9a-f]{8}) ([0-9]{1,12}) ")


def pack(entry: Entry) -> bytes:
    text = orjson.dumps(entry.to_doc())
    return b"%08x %d %s\n" % (zlib.crc32(text), len(text), text)


def unpack(data: bytes, at: int = 0) -> tuple[dict[str, Any], int] | None:
    """The record at `at` and where it ends; None when it is not exactly what `pack` wrote."""
    header = _HEADER.match(data, at)
    if header is None:
        return None
    end = header.end() + int(header[2])
    text = data[header.end() : end]
    if int(header[1], 16) != zlib.crc32(text) or data[end : end + 1] != b"\n":
        return None
    doc: dict[str, Any] = orjson.loads(text)
    return doc, end + 1


def scan(data: bytes) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(start, end, document) of every record up to the torn tail, if there is one; `LogCorrupt` if a whole record
    stands after a broken one, because then it is not a tail."""
    at = 0
    while found := unpack(data, at):
        doc, end = found
        yield at, end, doc
        at = end
    if any(unpack(data, later.start()) for later in _HEADER.finditer(data, at + 1)):
        raise LogCorrupt(f"an index record does not match its checksum, {at} bytes into what was read")


@dataclass(frozen=True, slots=True)
class Append:
    """What is kept in memory of an entry."""

    base: Offset
    end: Offset
    bytes: int
    written_at: int
    barrier: Barrier
    segment: Offset
    number: int


class SegmentIndex:
    """One segment's appends, read as they come."""

    def __init__(self, store: Store, base: Offset) -> None:
        self.base = base
        self._store = store
        self._forget()

    def _forget(self) -> None:
        self.end = self.base
        self.position: Position | None = None
        self.scanned = 0
        self.stamp = b""
        """How its first record begins."""
        self._bases, self._bytes, self._times, self._places = array("Q"), array("Q"), array("Q"), array("Q")
        self._barriers = bytearray()

    def __len__(self) -> int:
        return len(self._bases)

    def refresh(self) -> bool:
        """Reads what was added since; True if that was anything."""
        name = index_name(self.base)
        # An object does not grow; to look at its size would be one more request.
        size = (self._store.size(name) or 0) if self._store.appends else None
        if size is not None and size < self.scanned:
            # A record was taken back after its fsync failed. What is there now is the truth.
            self._forget()
        if size == self.scanned:
            return False
        before = len(self)
        start = self.scanned
        try:
            data = self._store.recall(name) if size is None else self._store.read(name, start)
            if not start:
                self.stamp = data[:_STAMP_BYTES]
            for at, end, doc in scan(data):
                if doc.get("format", 1) > FORMAT:
                    raise LogTooNew(
                        f"the log has format {doc['format']} from offset {self.end} on, this version knows {FORMAT}",
                        where=f"{self._store.label}/{name}",
                    )
                if doc["base"] != self.end:
                    raise LogCorrupt(f"an append begins at {doc['base']} where {self.end} was due")
                self._bases.append(doc["base"])
                self._bytes.append(doc["bytes"])
                self._times.append(doc["written_at"])
                self._places.append(start + at)
                self._barriers.append(barrier_of(doc))
                self.end += doc["rows"]
                self.position = doc["marks"][1][-1]
                self.scanned = start + end
        except LogCorrupt as error:
            raise LogCorrupt(error.what, where=f"{self._store.label}/{name}", fix=RESTORE) from None
        return len(self) > before

    def append(self, number: int) -> Append:
        end = self._bases[number + 1] if number + 1 < len(self) else self.end
        return Append(
            self._bases[number], end, self._bytes[number], self._times[number], Barrier(self._barriers[number]),
            self.base, number,
        )  # fmt: skip

    def find(self, offset: Offset) -> int:
        """The append that holds `offset`; its number counts from 0."""
        return bisect.bisect_right(self._bases, offset) - 1

    def place(self, number: int) -> tuple[int, int]:
        at = self._places[number]
        return at, (self._places[number + 1] if number + 1 < len(self) else self.scanned) - at

    def entry(self, number: int) -> Entry:
        at, size = self.place(number)
        name = index_name(self.base)
        found = unpack(self._store.read(name, at, size) if self._store.appends else self._store.recall(name))
        if found is None:
            raise LogError(
                f"the index record of offset {self._bases[number]} is gone",
                where=f"{self._store.label}/{index_name(self.base)}",
                fix="What it held was delivered and trimmed; raise retention_seconds or retention_bytes to keep it.",
            )
        entry = Entry.from_doc(found[0], segment_name(self.base))
        if (entry.base, entry.end) != (self._bases[number], self.append(number).end):
            raise replaced_error(self.base, self._store)
        return entry


class Index:
    """All segments of a log, of which only few are in memory."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bases: list[Offset] = []
        self._cached: OrderedDict[Offset, SegmentIndex] = OrderedDict()
        self._looked_at = 0.0

    def bases(self) -> list[Offset]:
        """Where segments begin, as the store lists them now."""
        self._bases = [int(name[:-4]) for name in self._store.names() if name.endswith(".idx")]
        return self._bases

    def refresh(self, empty: Tail = ORIGIN, *, until: Offset | None = None) -> Tail:
        """Where the log ends now; `empty` says where it begins while it has no events. Two looks when idle, one in an
        object store. Nothing after `until` is looked for: it may end later."""
        if not self._bases and not self.bases():
            return empty
        while True:
            last = self.segment(self._bases[-1])
            if self._store.appends or not len(last):
                last.refresh()
            enough = until is not None and last.end >= until
            following = self._find(last.end) if len(last) and not enough else None
            if following is None:
                if self._was_trimmed(last) and self.bases():
                    continue
                break
            self._bases.append(following.base)
        if last.position is None:
            # A first record was torn, and its segment does not count; or it was trimmed behind our back.
            self._bases.pop()
            self._cached.pop(last.base, None)
            gone = self._store.size(index_name(last.base)) is None
            return self.refresh(empty, until=until) if self._bases or (gone and self.bases()) else empty
        return Tail(last.end, last.position)

    def _was_trimmed(self, last: SegmentIndex) -> bool:
        """Whether what we take for the newest segment is gone: newer ones came, and this one went, between two looks.
        Files that grow show it by their size; an object is looked at a few times a second, also for whether it is still
        the one that was read."""
        if self._store.appends or time.monotonic() - self._looked_at < _LOOK_SECONDS:
            return False
        self._looked_at = time.monotonic()
        there = self._store.read(index_name(last.base), 0, _STAMP_BYTES)
        if there and last.stamp and there != last.stamp:
            raise replaced_error(last.base, self._store)
        return not there

    def _find(self, base: Offset) -> SegmentIndex | None:
        """The segment that begins there, once it has an append. Offsets are dense: the name of the next one is known
        before it exists."""
        found = SegmentIndex(self._store, base)
        return self.segment(base, found) if found.refresh() else None

    def segment(self, base: Offset, read: SegmentIndex | None = None) -> SegmentIndex:
        """`read`: it was read just now."""
        found = read or self._cached.get(base)
        if found is None:
            found = SegmentIndex(self._store, base)
            found.refresh()
        if base not in self._cached:
            self._cached[base] = found
            kept = sum(map(len, self._cached.values()))
            for old in list(self._cached)[:-_SEGMENTS]:
                # The last segment is asked for at every look at the tail, so it stays.
                if kept > _APPENDS and old != self._bases[-1]:
                    kept -= len(self._cached.pop(old))
        self._cached.move_to_end(base)
        return found

    def appends(self, start: Offset) -> Iterator[Append]:
        """From the one that holds `start`, without a gap: `LogError` if that was trimmed, `LogCorrupt` if one does not
        begin where the one before it ends. The caller has refreshed."""
        due = start
        first = bisect.bisect_right(self._bases, start) - 1
        bases = self._bases[max(first, 0) :]
        for base, following in zip_longest(bases, bases[1:]):
            segment = self.segment(base)
            if following is not None and segment.end != following:
                self._check_end(segment, following)
            for number in range(max(segment.find(start), 0), len(segment)):
                append = segment.append(number)
                if append.base > due:
                    raise trimmed_error(due, append.base, self._store)
                if append.end > start:
                    yield append
                due = append.end

    def _check_end(self, segment: SegmentIndex, following: Offset) -> None:
        if self._store.appends:
            segment.refresh()  # it grew since it was read
        if len(segment) and segment.end != following:
            raise LogCorrupt(
                f"an append ends at offset {segment.end}, but the next one begins at {following}: two captures wrote"
                " this log at once",
                where=f"{self._store.label}/{index_name(segment.base)}",
                fix=f"See to it that only one runs. {RESTORE}",
            )

    def begin_before(self, epoch_ms: int) -> Offset:
        """Where the last segment begins whose first append was written before this time. The caller has refreshed."""

        def written_at(base: Offset) -> int:
            segment = self.segment(base)
            return segment.append(0).written_at if len(segment) else 0  # just trimmed, so it was old

        return self._bases[max(bisect.bisect_left(self._bases, epoch_ms, key=written_at) - 1, 0)]

    def entry(self, append: Append) -> Entry:
        return self.segment(append.segment).entry(append.number)

    def head(self) -> Offset | None:
        return self._bases[0] if self._bases else None


def replaced_error(base: Offset, store: Store) -> LogCorrupt:
    return LogCorrupt(
        f"the index record at offset {base} is not the one that was read before: two captures have written this log",
        where=f"{store.label}/{index_name(base)}",
        fix=f"See to it that only one runs. {RESTORE}",
    )


def trimmed_error(offset: Offset, head: Offset, store: Store) -> LogError:
    return LogError(
        f"offset {offset} is asked for, but the log begins at {head}",
        where=store.label,
        fix="It was delivered and trimmed; raise retention_seconds or retention_bytes to keep more.",
    )
