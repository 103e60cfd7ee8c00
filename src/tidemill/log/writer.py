"""The log's only writer, in the capture process.

An append writes its blocks, waits for the disk, then writes one index record: visible wholly or not at all
(invariant 3). Where it fails it leaves the log as it was, and the same call may be made again.
"""

from __future__ import annotations

import time
from contextlib import suppress

from tidemill.errors import BadAppend, LogError, LogFull
from tidemill.log import order
from tidemill.log.backlog import Backlog
from tidemill.log.bookmark import ACKNOWLEDGED, POSITION, Bookmark
from tidemill.log.config import LogConfig
from tidemill.log.entry import BlockRef, Constants, Entry, Tail, index_name, segment_name
from tidemill.log.index import Index, pack
from tidemill.log.recovery import OpenSegment, recover
from tidemill.log.spill import Spill, place
from tidemill.log.store import Store, open_store
from tidemill.model.change import Committed, SpillAborted, SpillCommitted, Spilled
from tidemill.model.position import Offset, Position

# The backlog is counted in this many heaps at most, give or take.
_HEAPS = 1024


class LogWriter:
    """Made by `open`; close it, or let the process die: both leave a log that opens again."""

    def __init__(self, store: Store, config: LogConfig, base: Tail | None, delivered: Offset) -> None:
        recovered = recover(store, base, delivered)
        self.tail = recovered.tail
        self._store = store
        self._config = config
        self._segment = recovered.segment
        self._written_at = recovered.written_at
        self._spills: dict[int, Spill] = {}
        self._acknowledged = Bookmark(store, ACKNOWLEDGED)
        self._resting = Bookmark(store, POSITION)
        self._backlog = Backlog(config.max_bytes // _HEAPS)
        acknowledged = self.acknowledged()
        self._count_backlog(acknowledged.offset if acknowledged else delivered)

    @classmethod
    def open(
        cls,
        uri: str | Store,
        config: LogConfig,
        *,
        base: Tail | None = None,
        delivered: Offset | None = None,
        ours: bool = False,
    ) -> LogWriter:
        """Takes the writer's lock, cuts a torn tail, removes spills of a dead process.

        `base` is the checkpoint: an empty log begins there, and a log that ends before it is `LogCorrupt`. Events from
        `base` up to `delivered` were delivered, too, and come again under the same offsets: a checkpoint inside a
        transaction (invariant 5). `ours` as of `open_store`.
        """
        store = open_store(uri, fsync=config.fsync, ours=ours)
        store.lock()
        try:
            return cls(store, config, base, max(delivered or 0, base.offset if base else 0))
        except BaseException:
            store.close()
            raise

    def append(self, change: Committed) -> Entry:
        """No events: nothing is appended, only the tail's position moves on."""
        _check(change, self._store.label)
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
            return self._publish(segment, tuple(refs), change.events, change.marks, change.barrier)
        except BaseException:
            # What cannot be cut now lies behind the last indexed byte and is written over.
            with suppress(LogError):
                if not self._may_be_published(segment):
                    self._store.cut(name, segment.bytes)
            raise

    def spill(self, piece: Spilled) -> None:
        self._store.check_lock()
        self._admit()
        spill = self._spills.get(piece.transaction) or Spill(self._store, piece.transaction)
        spill.add(piece)
        self._spills[piece.transaction] = spill

    def commit_spill(self, change: SpillCommitted) -> Entry:
        """Never `LogFull`: the bytes are on disk already. A transaction that spilled nothing moves the position."""
        spill = self._spills.get(change.transaction) or Spill(self._store, change.transaction)
        kept = spill.without(change.aborted) if change.aborted else spill
        if kept.events:
            try:
                entry = self._adopt(kept, change)
            except BaseException:
                if kept is not spill:
                    kept.drop()
                raise
        else:
            entry = self._advance(change.through)
        # What is published stays published; a leftover is removed when the log is opened again.
        with suppress(LogError):
            if kept is not spill or not kept.events:
                spill.drop()
        self._spills.pop(change.transaction, None)
        return entry

    def drop_spill(self, change: SpillAborted) -> None:
        spill = self._spills.pop(change.transaction, None)
        if spill is not None and not (spill.adopted and self._may_be_published(OpenSegment(self.tail.offset))):
            spill.drop()

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
        if now is None or not self._store.appends or now.bytes >= self._config.segment_bytes:
            return OpenSegment(base)
        return now

    def _adopt(self, spill: Spill, change: SpillCommitted) -> Entry:
        self._store.check_lock()
        order.check(spill.refs, self._store.label)
        segment = OpenSegment(self.tail.offset)
        refs = spill.adopt(segment.base, Constants(change.position, change.tx_id, change.commit_time))
        try:
            return self._publish(segment, refs, spill.events, ((spill.events, change.through),), spill.barrier)
        except BaseException:
            if not self._may_be_published(segment):
                spill.disown()
            raise

    def _may_be_published(self, segment: OpenSegment) -> bool:
        """In an object store a record may have arrived although its answer did not: then its data stays, and the same
        append, tried again, writes both once more."""
        return not self._store.appends and self._store.size(index_name(segment.base)) is not None

    def _publish(
        self,
        segment: OpenSegment,
        refs: tuple[BlockRef, ...],
        events: int,
        marks: tuple[tuple[Offset, Position], ...],
        barrier: bool,
    ) -> Entry:
        """The moment of truth: one index record."""
        size = sum(ref.size for ref in refs)
        # Kept from going back, so that it can be searched by time.
        written_at = max(int(time.time() * 1000), self._written_at)
        entry = Entry(self.tail.offset, events, size, written_at, barrier, marks, refs, self.tail.position)
        record = pack(entry)
        self._store.publish(index_name(segment.base), segment.index_bytes, record)
        if self._segment is not None and self._segment is not segment:
            self._store.release(index_name(self._segment.base))
            self._store.release(segment_name(self._segment.base))
        segment.bytes = max(ref.at + ref.size for ref in refs)
        segment.index_bytes += len(record)
        self._segment = segment
        self._written_at = written_at
        self.tail = entry.tail
        self._backlog.add(entry.end, size)
        return entry

    def _advance(self, through: Position) -> Entry:
        self._store.check_lock()
        since = self.tail
        # Durable: of a stream that has just begun, nothing else says where. `latest` would be another place by then.
        self._resting.put(Tail(since.offset, through))
        self.tail = Tail(since.offset, through)
        return Entry(since.offset, 0, 0, self._written_at, False, ((0, through),), (), since.position)

    def _count_backlog(self, delivered: Offset) -> None:
        index = Index(self._store)
        index.refresh()
        for append in index.appends(max(delivered, index.head() or 0)):
            self._backlog.add(append.end, append.bytes)


def _check(change: Committed, where: str) -> None:
    rows = sum(block.rows for block in change.blocks)
    if rows != change.events or not change.marks or change.marks[-1][0] != rows:
        raise BadAppend(
            f"an append of {change.events} events has {rows} rows and ends with {change.marks[-1:]}", where=where
        )
