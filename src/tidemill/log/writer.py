"""The log's only writer, in the capture process.

An append writes its blocks, waits for the disk, then writes one index record: visible wholly or not at all
(invariant 3). Where it fails it leaves the log as it was, and the same call may be made again.

In an object store the record may be visible although its answer did not come, or become visible later. So from its
first attempt on the append is certain: the same call again, or `settle`, puts the same bytes until the store says so.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tidemill.errors import BadAppend, LogError, LogFull, LogTakenOver
from tidemill.log import order, staging
from tidemill.log.backlog import Backlog
from tidemill.log.bookmark import ACKNOWLEDGED, POSITION, Bookmark
from tidemill.log.config import LogConfig
from tidemill.log.entry import BlockRef, Constants, Entry, Tail, index_name, segment_name
from tidemill.log.index import Index, pack
from tidemill.log.recovery import OpenSegment, find_adopted, list_spills, recover
from tidemill.log.spill import Spill, place
from tidemill.log.staging import Adoption, Manifest, Staged
from tidemill.log.store import Store, open_store
from tidemill.model.barrier import Barrier
from tidemill.model.change import Committed, SpillAborted, SpillCommitted, Spilled
from tidemill.model.position import Offset, Position
from tidemill.telemetry.failpoints import failpoint

# The backlog is counted in this many heaps at most, give or take.
_HEAPS = 1024


@dataclass(frozen=True, slots=True)
class _Publication:
    """An append whose data is stored, and the record that makes it visible."""

    change: Committed | SpillCommitted | Adoption
    entry: Entry
    segment: OpenSegment
    record: bytes


class LogWriter:
    """Made by `open`; close it, or let the process die: both leave a log that opens again."""

    def __init__(
        self,
        store: Store,
        config: LogConfig,
        base: Tail | None,
        delivered: Offset,
        spills: tuple[str, ...],
        staged: Callable[[str], bool],
        guard: Callable[[], None],
    ) -> None:
        recovered = recover(store, base, delivered, spills, staged)
        self.tail = recovered.tail
        self._store = store
        self._config, self._guard = config, guard
        self._segment = recovered.segment
        self._written_at = recovered.written_at
        self._spills: dict[int, Spill] = {}
        self._unanswered: _Publication | None = None
        self._acknowledged = Bookmark(store, ACKNOWLEDGED)
        self._resting = Bookmark(store, POSITION)
        self._backlog = Backlog(config.max_bytes // _HEAPS)
        self._unread: deque[Offset] = deque()  # where appends end that are objects and wait for delivery
        self._kept: Backlog | None = None  # what waits in quarantine, and all after it
        self._kept_from: Offset = 0
        acknowledged = self.acknowledged()
        self._count(self._backlog, acknowledged.offset if acknowledged else delivered)

    @classmethod
    def open(
        cls,
        uri: str | Store,
        config: LogConfig,
        *,
        base: Tail | None = None,
        delivered: Offset | None = None,
        ours: bool = False,
        staged: Callable[[str], bool] = lambda id: False,
        guard: Callable[[], None] = lambda: None,
    ) -> LogWriter:
        """Takes the writer's lock, cuts a torn tail, removes spills of a dead process.

        `base` is the checkpoint: an empty log begins there, and a log that ends before it is `LogCorrupt`. Events from
        `base` up to `delivered` were delivered, too, and come again under the same offsets: a checkpoint inside a
        transaction (invariant 5). `ours` as of `open_store`. `staged` says of an id (`log/staging.py`) whether somebody
        is still at work on it, or wants it adopted: what is staged under any other goes. `guard` is asked before
        anything becomes visible: it does not return where another process may write this log by now.
        """
        store = open_store(uri, fsync=config.fsync, ours=ours)
        spills = list_spills(store)
        store.lock()
        try:
            return cls(store, config, base, max(delivered or 0, base.offset if base else 0), spills, staged, guard)
        except BaseException:
            store.close()
            raise

    def append(self, change: Committed) -> Entry:
        """No events: nothing is appended, only the tail's position moves on."""
        _check(change, self._store.label)
        if (entry := self._repeat(change)) is not None:
            return entry
        if not change.events:
            return self._advance(change.through)
        self._admit()
        base = self.tail.offset
        segment = self._writable(base)
        name = self._store.own(segment_name(segment.base))
        refs, buffers = place(change.blocks, name, segment.bytes, base, change.barrier)
        order.check(refs, self._store.label)
        self._store.write(name, segment.bytes, buffers)
        try:
            return self._publish(segment, tuple(refs), change.events, change.marks, change.barrier, change)
        except BaseException:
            # What cannot be cut now lies after the last indexed byte and is written over.
            with suppress(LogError):
                if self._store.appends:
                    self._store.cut(name, segment.bytes)
            raise

    def settle(self) -> int:
        """Publishes for certain what was given up after its answer was lost, and says how many events became visible.
        Only then does `tail` say where the source has to go on."""
        if self._unanswered is None:
            return 0
        return self._put(self._unanswered).rows

    def spill(self, piece: Spilled) -> None:
        self._store.check_lock()
        self._admit()
        spill = self._spills.get(piece.transaction) or Spill(self._store, piece.transaction)
        spill.add(piece)
        self._spills[piece.transaction] = spill

    def commit_spill(self, change: SpillCommitted) -> Entry:
        """Never `LogFull`: the bytes are on disk already. A transaction that spilled nothing moves the position."""
        entry = self._repeat(change) or self._commit(change)
        # What is published stays published; a leftover is removed when the log is opened again.
        with suppress(LogError):
            self.drop_spill(SpillAborted(change.transaction))
        return entry

    def _commit(self, change: SpillCommitted) -> Entry:
        spill = self._spills.get(change.transaction) or Spill(self._store, change.transaction)
        kept = spill.without(change.aborted) if change.aborted else spill
        if not kept.events:
            return self._advance(change.through)
        try:
            return self._adopt(kept, change)
        except BaseException:
            if kept is not spill:
                _drop(kept)
            raise

    def adopt(
        self,
        manifest: Manifest,
        through: Position,
        *,
        constants: Constants | None = None,
        barrier: Barrier = Barrier.NONE,
        divisible: bool = False,
    ) -> Entry:
        """Makes what others staged visible, wholly, in one append at the log's end. `through` is where the source
        resumes after it; rows that lack position, transaction and time get the `constants`. `divisible`: they are no
        transaction of the source, and a batch may end after any block of them.

        What was adopted before is not adopted again: the answer is the append that it has. `StagingLost` if a part is
        gone; `LogFull` while there is no room.
        """
        change = Adoption((Staged(manifest, constants),), through, barrier, divisible)
        entry = self._repeat(change) or find_adopted(self._store, [manifest.id]).get(manifest.id)
        return self._drop_staged(change, entry or self._adopt_staged(change))

    def adopt_all(self, staged: Sequence[Staged], through: Position) -> Entry:
        """The same for what was staged under several ids, none of which was adopted before (`find_adopted`): one append
        and two waits for the disk, however many they are. Divisible; nothing of it needs a barrier."""
        change = Adoption(tuple(staged), through, divisible=True)
        return self._drop_staged(change, self._repeat(change) or self._adopt_staged(change))

    def _drop_staged(self, change: Adoption, entry: Entry) -> Entry:
        # What is published stays published; a leftover is removed when the log is opened again.
        for id in change.ids:
            with suppress(LogError):
                staging.remove(self._store, id)
        return entry

    def _adopt_staged(self, change: Adoption) -> Entry:
        if not change.events:
            return self._advance(change.through)
        self._store.check_lock()
        self._admit()
        segment = OpenSegment(self.tail.offset, sealed=True)
        refs = staging.link(self._store, change, segment.base)
        events = change.events
        try:
            order.check(refs, self._store.label)
            ends = [ref.last - segment.base for ref in refs] if change.divisible else [events]
            marks = tuple((end, change.through) for end in ends)
            entry = self._publish(segment, refs, events, marks, change.barrier, change)
        except BaseException:
            if self._store.appends:
                staging.unlink(self._store, refs)
            raise
        failpoint("log.adopted")
        return entry

    def find_adopted(self, ids: Collection[str]) -> dict[str, int]:
        """How many events of what was staged under each id are in the log, without those that were not adopted, or were
        trimmed."""
        return {
            id: sum(ref.rows for ref in entry.blocks if staging.is_of(ref.segment, id))
            for id, entry in find_adopted(self._store, ids).items()
        }

    @property
    def store(self) -> Store:
        """For who reads or stages beside the writer, in its process."""
        return self._store

    def drop_spill(self, change: SpillAborted) -> None:
        spill = self._spills.pop(change.transaction, None)
        if spill is not None:
            _drop(spill)

    def drop_spills(self) -> None:
        """After a lost connection: the source sends transactions that are still open from their beginning."""
        for transaction in list(self._spills):
            self.drop_spill(SpillAborted(transaction))

    def acknowledged(self) -> Tail | None:
        """What the stream has delivered, as it last said; cheap enough to ask in every turn of the loop."""
        return self._acknowledged.get()

    def undelivered_bytes(self) -> int:
        delivered = self.acknowledged()
        if delivered is not None:
            self._backlog.deliver(delivered.offset)
        return self._backlog.bytes

    def waiting_appends(self) -> int:
        """How many of those that this writer made are objects of their own and not delivered; in a directory none."""
        delivered = self.acknowledged()
        while self._unread and delivered is not None and self._unread[0] <= delivered.offset:
            self._unread.popleft()
        return len(self._unread)

    def keep_from(self, offset: Offset | None) -> None:
        """From here on nothing may go, although it was delivered: rows wait in quarantine. None: none do."""
        if offset is None:
            self._kept = None
            return
        if self._kept is None or offset < self._kept_from:
            self._kept = Backlog(self._config.max_bytes // _HEAPS)
            self._count(self._kept, offset)
        self._kept_from = offset
        self._kept.deliver(offset)

    def kept_bytes(self) -> int:
        """What is not delivered, and what was and may not go all the same."""
        return max(self.undelivered_bytes(), self._kept.bytes if self._kept is not None else 0)

    def close(self) -> None:
        with suppress(LogError):
            self.drop_spills()
        self._store.close()

    def _admit(self) -> None:
        waiting = self.undelivered_bytes()
        if waiting >= self._config.max_bytes:
            raise LogFull(
                f"{waiting} bytes wait for delivery, max_bytes is {self._config.max_bytes}",
                where=self._store.label,
                fix="Capture goes on when the stream has delivered; if it does not move, look at the sinks.",
            )

    def _writable(self, base: Offset) -> OpenSegment:
        """The open segment, or a new one that counts once its first append is published."""
        now = self._segment
        if now is None or now.sealed or not self._store.appends or now.bytes >= self._config.segment_bytes:
            return OpenSegment(base)
        return now

    def _adopt(self, spill: Spill, change: SpillCommitted) -> Entry:
        self._store.check_lock()
        order.check(spill.refs, self._store.label)
        segment = OpenSegment(self.tail.offset)
        refs = spill.adopt(segment.base, Constants(change.position, change.tx_id, change.commit_time))
        try:
            return self._publish(segment, refs, spill.events, ((spill.events, change.through),), spill.barrier, change)
        except BaseException:
            if self._store.appends:
                spill.disown()
            raise

    def _publish(
        self,
        segment: OpenSegment,
        refs: tuple[BlockRef, ...],
        events: int,
        marks: tuple[tuple[Offset, Position], ...],
        barrier: Barrier,
        change: Committed | SpillCommitted | Adoption,
    ) -> Entry:
        """The moment of truth: one index record."""
        size = sum(ref.size for ref in refs)
        # Kept from going back, so that it can be searched by time.
        written_at = max(int(time.time() * 1000), self._written_at)
        entry = Entry(self.tail.offset, events, size, written_at, barrier, marks, refs, self.tail.position)
        return self._put(_Publication(change, entry, segment, pack(entry)))

    def _put(self, made: _Publication) -> Entry:
        segment, entry = made.segment, made.entry
        self._unanswered = None if self._store.appends else made
        self._guard()
        try:
            self._store.publish(index_name(segment.base), segment.index_bytes, made.record)
        except LogTakenOver:
            self._unanswered = None
            raise
        self._unanswered = None
        if self._segment is not None and self._segment is not segment:
            self._store.release(index_name(self._segment.base))
            self._store.release(segment_name(self._segment.base))
        segment.bytes = max(ref.at + ref.size for ref in entry.blocks)
        segment.index_bytes += len(made.record)
        self._segment = segment
        self._written_at = entry.written_at
        self.tail = entry.tail
        for backlog in filter(None, (self._backlog, self._kept)):
            backlog.add(entry.end, entry.bytes)
        if not self._store.appends:
            self._unread.append(entry.end)
        return entry

    def _repeat(self, change: Committed | SpillCommitted | Adoption) -> Entry | None:
        """The entry, if this is the call whose answer was lost, made again."""
        if self._unanswered is None:
            return None
        if not _is_same(self._unanswered.change, change):
            raise BadAppend("an append comes before the one whose answer was lost is settled", where=self._store.label)
        return self._put(self._unanswered)

    def _advance(self, through: Position) -> Entry:
        self._guard()
        self._store.check_lock()
        since = self.tail
        # Durable: of a stream that has just begun, nothing else says where. `latest` would be another place by then.
        self._resting.put(Tail(since.offset, through))
        self.tail = Tail(since.offset, through)
        return Entry(since.offset, 0, 0, self._written_at, Barrier.NONE, ((0, through),), (), since.position)

    def _count(self, backlog: Backlog, begin: Offset) -> None:
        index = Index(self._store)
        index.refresh()
        for append in index.appends(max(begin, index.head() or 0)):
            backlog.add(append.end, append.bytes)


def _is_same(one: Committed | SpillCommitted | Adoption, other: Committed | SpillCommitted | Adoption) -> bool:
    if isinstance(one, Adoption) and isinstance(other, Adoption):
        return one.ids == other.ids
    return one is other


def _check(change: Committed, where: str) -> None:
    rows = sum(block.rows for block in change.blocks)
    if rows != change.events or not change.marks or change.marks[-1][0] != rows:
        raise BadAppend(
            f"an append of {change.events} events has {rows} rows and ends with {change.marks[-1:]}", where=where
        )


def _drop(spill: Spill) -> None:
    """What has the names of a segment stays: it is published, or may be. Otherwise it goes with that segment."""
    if not spill.adopted:
        spill.drop()
