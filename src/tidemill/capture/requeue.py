"""Rows that waited in quarantine come into the log once more, at its end (ADR 53).

    waits    [first, ...)   rows of the table, among those of others; the stream leaves them out
    decided                 an operator, or a changed policy, said what becomes of the schema change
    again    at the tail    the same rows, in order, in appends of their own: for the stream they are rows like others
    ended                   nothing waits before this offset; rows that the source sends from now on need not wait

The loop calls `turn` where the log has all that it was given and nothing is being written, so that no row of the source
comes between the last of them and the end. What waits is copied piece by piece, each piece visible wholly or not at
all. The name of a piece says what it holds: killed at any point, the next capture goes on after the last one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tidemill.contracts.schema_change_store import SchemaChangeStore
from tidemill.errors import LogFull, StateError, is_retryable
from tidemill.log.entry import BlockRef
from tidemill.log.reader import LogReader
from tidemill.log.requeued import (
    find_staged,
    is_kept_back,
    read_waiting,
    requeued_for,
    staging_id,
    write_waiting,
)
from tidemill.log.staging import Staging
from tidemill.log.writer import LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.block import META, Block
from tidemill.model.clock import utc_now
from tidemill.model.columns import column
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine
from tidemill.retry import RetryPolicy
from tidemill.telemetry import events
from tidemill.telemetry.failpoints import failpoint

_IDLE_SECONDS, _BUSY_SECONDS = 1.0, 0.02
# A turn pauses the source: it is long enough to copy faster than rows come, and short enough that no server hangs up.
_TURN_SECONDS = 1.0
_PIECE_BYTES = 32 << 20
# More than that is not appended before the stream has delivered some: the log may be full of what waits.
_UNDELIVERED_BYTES = 4 * _PIECE_BYTES


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows that become visible together: all that waits between two offsets."""

    start: Offset
    end: Offset
    refs: tuple[BlockRef, ...]
    barrier: Barrier


class Requeuer:
    """For the loop's thread."""

    def __init__(
        self, log: LogWriter, reader: LogReader, store: SchemaChangeStore, pipeline: str, stop: threading.Event
    ) -> None:
        self._log, self._reader, self._store, self._pipeline, self._stop = log, reader, store, pipeline, stop
        self._next = 0.0
        self._resumed: set[int] = set()  # numbers of quarantines of which this process knows the last piece
        self._structure: dict[int, str] = {}  # of the last row that was appended again
        self._noted: dict[str, Offset] | None = None  # as it stands beside the log
        self.tables: dict[str, Offset] = {}
        """Those that wait, and from where on, as far as `turn` knows."""
        self.busy = False
        """Whether rows that waited are on their way into the log."""

    def turn(self) -> int:
        """Events that became visible."""
        now = time.monotonic()
        if now < self._next:
            return 0
        self._next = now + _IDLE_SECONDS
        try:
            known = self._store.quarantines(self._pipeline)
        except StateError as error:
            if not is_retryable(error):
                raise
            events.warn("ddl.state_waits", error=error.what, where=error.where)
            return 0
        waiting = [each for each in known if each.is_open]
        self.busy = any(each.decided for each in waiting)
        self._note_waiting({each.table: each.first for each in reversed(waiting)}, known)
        self._log.keep_from(min((each.through for each in waiting), default=None))
        visible = 0
        for each in waiting:
            if each.decided:
                visible += self._requeue(each, known, until=now + _TURN_SECONDS)
                self._next = time.monotonic() + (_BUSY_SECONDS if visible else _IDLE_SECONDS)
                break  # one after the other: a later one of the same table may wait for rows of this one
        self._reader.unmap()
        return visible

    def _note_waiting(self, tables: dict[str, Offset], known: Sequence[Quarantine]) -> None:
        """Beside the log, which a lost state store does not take along."""
        self.tables = tables
        if self._noted is None:
            self._noted = read_waiting(self._log.store)
            for table in sorted(self._noted.keys() - {each.table for each in known}):
                events.fail(
                    "ddl.quarantine_forgotten", table=table, first=self._noted[table],
                    fix="The state store does not know that its rows wait from there on: they will not be delivered."
                    f" Restore it, or copy the table anew: tidemill snapshot start FILE --table {table}",
                )  # fmt: skip
        if tables != self._noted:
            write_waiting(self._log.store, tables)
            self._noted = tables

    def _requeue(self, quarantine: Quarantine, known: Sequence[Quarantine], until: float) -> int:
        visible, at = 0, self._resume(quarantine)
        others = [each for each in known if each.number < quarantine.number]
        while not self._stop.is_set() and self._log.undelivered_bytes() <= _UNDELIVERED_BYTES:
            piece = self._next_piece(at, others)
            if piece is None:
                self._end(at)
                break
            rows = self._append(at, piece)
            if rows is None:
                break  # the stream delivers first
            visible += rows
            at = self._note(replace(at, through=piece.end))
            if time.monotonic() > until:
                break
        return visible

    def _resume(self, quarantine: Quarantine) -> Quarantine:
        """As the log knows it: a process that was killed may have appended a piece that is not noted."""
        number, head = quarantine.number, self._reader.head()
        while number not in self._resumed:
            ids = find_staged(self._log.store.names(), number, quarantine.through)
            adopted = self._log.find_adopted(ids)
            if not adopted:
                self._resumed.add(number)
                break
            quarantine = self._note(replace(quarantine, through=max(ids[id] for id in adopted)))
        if quarantine.through < head:
            events.fail(
                "ddl.quarantined_rows_lost", table=quarantine.table, number=number, first=quarantine.through,
                last=head - 1,
                fix="The log in which they waited is gone. Restore it, or copy the table anew: tidemill snapshot start"
                f" FILE --table {quarantine.table}",
            )  # fmt: skip
            quarantine = self._note(replace(quarantine, through=head, lost_at=quarantine.lost_at or utc_now()))
        return quarantine

    def _next_piece(self, at: Quarantine, others: Sequence[Quarantine]) -> _Piece | None:
        """Whole appends: those of one structure together, one with a barrier alone. None if nothing waits any more."""
        tail = self._log.tail.offset
        found: list[BlockRef] = []
        barrier, end, size = Barrier.NONE, at.through, 0
        for entry in self._reader.between(at.through, tail) if at.through < tail else ():
            mine = [
                ref
                for ref in entry.refs(at.first, tail)
                if ref.table == at.table and requeued_for(ref) < at.number and not is_kept_back(ref, others)
            ]
            mine.sort(key=lambda ref: ref.first)
            fits = not entry.barrier and {ref.fingerprint for ref in mine} <= {ref.fingerprint for ref in found}
            if mine and found and (not fits or size >= _PIECE_BYTES):
                break
            found += mine
            end, size = entry.end, size + sum(ref.size for ref in mine)
            barrier |= entry.barrier if mine else Barrier.NONE
            if barrier:
                break
        if not found:
            return None
        if self._structure.get(at.number) != found[0].fingerprint:
            barrier |= Barrier.SCHEMA_CHANGE
        return _Piece(at.through, end, tuple(found), barrier)

    def _append(self, at: Quarantine, piece: _Piece) -> int | None:
        """How many rows became visible; None while the log has no room for them."""
        staging = Staging(self._log.store, staging_id(at.number, piece.start, piece.end))
        blocks = _renumber(self._reader.read, piece.refs)
        manifest = staging.seal([staging.write(f"part{number}", part) for number, part in enumerate(blocks)])
        failpoint("requeue.staged")
        try:
            entry = self._log.adopt(manifest, self._log.tail.position, barrier=piece.barrier)
        except LogFull:
            staging.drop()
            return None
        failpoint("requeue.appended")
        self._structure[at.number] = piece.refs[-1].fingerprint
        return entry.rows

    def _end(self, at: Quarantine) -> None:
        end = self._log.tail.offset
        self._note(replace(at, through=end, ended=end))
        failpoint("requeue.ended")
        events.emit("ddl.quarantine_ended", table=at.table, number=at.number, offset=end)

    def _note(self, at: Quarantine) -> Quarantine:
        """Nothing else is appended before the store has said that it has this. Whether an attempt whose answer was lost
        ended the quarantine, nobody would know: rows that follow would be left out, or come twice."""
        tries = RetryPolicy(most=1.0).begin(self._stop)
        while True:
            try:
                self._store.note_requeued(self._pipeline, at.number, at.through, at.ended, at.lost_at)
                break
            except StateError as error:
                if not is_retryable(error) or not tries.pause():
                    raise
                events.warn("ddl.state_waits", error=error.what, where=error.where)
        failpoint("requeue.noted")
        return at


def _renumber(read: Callable[[BlockRef], Block], refs: Iterable[BlockRef]) -> Iterator[list[Block]]:
    """Their blocks in parts of bounded size, with offsets that count from 0 in each."""
    part: list[Block] = []
    first = size = 0
    for ref in refs:
        block = read(ref)
        offsets = column(np.arange(first, first + block.rows, dtype=np.uint64), pa.uint64())
        part.append(Block(block.table, block.batch.set_column(0, META.field("offset"), offsets)))
        first, size = first + block.rows, size + ref.size
        if size >= _PIECE_BYTES:
            yield part
            part, first, size = [], 0, 0
    if part:
        yield part
