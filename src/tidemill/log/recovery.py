"""What a writer does first: find where the log ends, and clear away what a killed one left half done."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tidemill.errors import LogCorrupt
from tidemill.log import staging
from tidemill.log.bookmark import ACKNOWLEDGED, POSITION, Bookmark
from tidemill.log.entry import ORIGIN, Entry, Tail, index_name, segment_name
from tidemill.log.index import SegmentIndex
from tidemill.log.spill import PREFIX
from tidemill.log.store import Store
from tidemill.model.position import Offset

# With fsync an append's data is on disk before its index record, so this is for logs written without; a huge
# transaction need not be read all over again.
_CHECKED_BYTES = 64 << 20

_MOVE_AWAY = "Move the log away: capture then resumes from the checkpoint, and nothing is lost."

_events = logging.getLogger("tidemill.log")


@dataclass(slots=True)
class OpenSegment:
    """The segment that is being written: where it begins, and how long its two files are."""

    base: Offset
    bytes: int = 0
    index_bytes: int = 0
    sealed: bool = False
    """Its data is in files that others wrote: the next append begins another one."""


@dataclass(frozen=True, slots=True)
class Recovered:
    tail: Tail
    written_at: int
    segment: OpenSegment | None


def recover(
    store: Store,
    base: Tail | None,
    delivered: Offset = 0,
    spills: Sequence[str] = (),
    staged: Callable[[str], bool] = lambda id: False,
) -> Recovered:
    """`base` is the checkpoint: where an empty log begins, and where no other may end before. What was `delivered`
    after it comes again. `spills` were there before the lock was taken: none is a newer writer's. `staged` as of
    `LogWriter.open`."""
    names = store.names()
    found, torn = _find_tail(store, [int(name[:-4]) for name in names if name.endswith(".idx")])
    resting = Bookmark(store, POSITION)
    noted = resting.get()
    if found.segment is None:
        known = [tail for tail in (noted, base, found.tail) if tail is not None]
        tail = max(known, key=lambda tail: tail.offset)
    else:
        tail = noted if noted is not None and noted.offset == found.tail.offset else found.tail
    _refuse_to_go_back(store, tail, base, delivered)

    # Nothing was touched until here, so that a log that is refused can still be looked at.
    store.check_lock()
    for segment in torn:
        _events.warning("torn segment removed", extra={"log": store.label, "segment": segment})
        store.remove(index_name(segment))
    if found.segment is None:
        if tail != noted:
            resting.put(tail)
    elif store.appends:
        _cut(store, index_name(found.segment.base), found.segment.index_bytes)
        _cut(store, segment_name(found.segment.base), found.segment.bytes)
    _remove_leftovers(store, spills)
    for id in staging.sweep(store, lambda id: bool(find_adopted(store, [id])), staged):
        _events.info("staged segments removed", extra={"log": store.label, "staged": id})
    return Recovered(tail, found.written_at, found.segment)


def _find_tail(store: Store, bases: list[Offset]) -> tuple[Recovered, list[Offset]]:
    """The last whole append, and the segments after it that have none."""
    lost = ORIGIN
    torn: list[Offset] = []
    for base in reversed(bases):
        index = SegmentIndex(store, base)
        index.refresh()
        for number in reversed(range(len(index))):
            entry = index.entry(number)
            if _whole(store, entry):
                at, size = index.place(number)
                end = max(ref.at + ref.size for ref in entry.blocks)
                sealed = store.appends and any(ref.segment != segment_name(base) for ref in entry.blocks)
                return Recovered(entry.tail, entry.written_at, OpenSegment(base, end, at + size, sealed)), torn
            lost = Tail(entry.base, entry.since)
        torn.append(base)
    return Recovered(lost, 0, None), torn


def _cut(store: Store, name: str, end: int) -> None:
    there = store.size(name) or 0
    if there > end:
        _events.warning("torn tail cut", extra={"log": store.label, "file": name, "bytes": there - end})
        store.cut(name, end)


def _whole(store: Store, entry: Entry) -> bool:
    checked = 0
    for ref in reversed(entry.blocks):
        if checked >= _CHECKED_BYTES:
            break
        if zlib.crc32(store.read(ref.segment, ref.at, ref.size)) != ref.crc:
            return False
        checked += ref.size
    ends: dict[str, int] = {}
    for ref in entry.blocks:
        ends[ref.segment] = max(ends.get(ref.segment, 0), ref.at + ref.size)
    return all((store.size(segment) or 0) >= end for segment, end in ends.items())


def _remove_leftovers(store: Store, spills: Sequence[str]) -> None:
    """Open transactions of a dead writer, data whose index record was never written, trimming cut short.

    In an object store the other writer may be alive and about to publish, so data at and after the head stays: it goes
    when the segment that begins there is trimmed. A newer one may even have taken over since our lock was taken, so
    only spills that were listed before it go."""
    store.check_lock()
    names = store.names()
    indexed = {name[:20] for name in names if name.endswith(".idx")}
    head = min(indexed, default="")
    for name in names:
        unnamed = name.endswith(".seg") and name[:20] not in indexed and (store.appends or name[:20] < head)
        if name in spills or (unnamed and not name.startswith(PREFIX)):
            store.remove(name)


def find_adopted(store: Store, ids: Collection[str]) -> dict[str, Entry]:
    """The appends of what was staged under these ids, without those that have none, or whose append was trimmed. An
    attempt that failed may have left names of files: the index decides."""
    found: dict[str, Entry] = {}
    entries: dict[Offset, Entry | None] = {}
    for id, base in staging.bases_of(store.names(), ids):
        if base not in entries:
            index = SegmentIndex(store, base)
            index.refresh()
            entries[base] = index.entry(0) if len(index) else None  # it begins its segment
        entry = entries[base]
        if entry is not None and any(staging.is_of(ref.segment, id) for ref in entry.blocks):
            found.setdefault(id, entry)
    return found


def list_spills(store: Store) -> tuple[str, ...]:
    return tuple(name for name in store.names() if name.startswith(PREFIX))


def _refuse_to_go_back(store: Store, tail: Tail, base: Tail | None, delivered: Offset) -> None:
    """Offsets that were delivered may never name other events (invariant 5). From `base` on the source sends the same
    ones again, so what was delivered of a transaction that is not whole in the log is none of them."""
    acknowledged = Bookmark(store, ACKNOWLEDGED).get()
    furthest = base.offset if base else 0
    if acknowledged is not None and acknowledged.offset > delivered:
        furthest = max(furthest, acknowledged.offset)
    if furthest > tail.offset:
        raise LogCorrupt(
            f"the log ends at offset {tail.offset}, but events before {furthest} were delivered from it",
            where=store.label,
            fix=_MOVE_AWAY,
        )
