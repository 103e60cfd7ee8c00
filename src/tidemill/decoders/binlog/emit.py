"""Rows that `scan` noted leave here: those of whole transactions as `Committed`, those of an open one as `Spilled`.

`binlog` calls `flush` when a buffer is used up or the notes are full; parts that take an event from `scan` call it to
let everything before the event leave first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.decoders._shared.mysql.table_lookup import DdlChange, barrier_of
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.blocks import statements
from tidemill.decoders.binlog.progress import Progress
from tidemill.decoders.binlog.stream import BinlogStream, BinlogTransaction
from tidemill.errors import TidemillError
from tidemill.model.barrier import Barrier
from tidemill.model.change import Change, Committed, SpillCommitted, Spilled
from tidemill.model.columns import Ints


class Emitter:
    """`open` is the transaction being spilled; `spill` is its number, and `spilled` how many events of it have left.
    Both stay as they are after its end, for whoever says what became of it."""

    def __init__(self, stream: BinlogStream, progress: Progress, *, mark_events: int) -> None:
        self._stream = stream
        self._progress = progress
        self._mark_events = mark_events
        self.open: BinlogTransaction | None = None
        self.spill = 0
        self.spilled = 0

    def flush(self, *, spill_open: bool) -> Iterator[Change]:
        """Hands on every noted row that may leave now, and forgets it."""
        stream, state = self._stream, self._stream.state
        rows, txs = int(state[scanning.ROWS]), int(state[scanning.TXS])
        at, barrier = int(state[scanning.POS]), Barrier(int(state[scanning.BARRIER]))
        if state[scanning.OPEN] and state[scanning.SPILLING]:
            yield from self._spill(0, rows, barrier)
        elif state[scanning.OPEN]:
            first = int(state[scanning.OPEN_ROW])
            yield from self._commit(first, txs - 1, barrier)
            if spill_open:
                self._begin_spill()
                yield from self._spill(first, rows, barrier)
            else:
                # Not worth a spill yet: its bytes stay in the buffer and are scanned again with the next read.
                # A table's new shape is noticed only once, so its barrier stays.
                state[scanning.OPEN], stream.saved_at = 0, -1
                stream.forget_rows(int(state[scanning.OPEN_AT]))
                state[scanning.BARRIER] = int(barrier)
                return
        else:
            yield from self._commit(rows, txs, barrier)
        stream.forget_rows(at)

    def _commit(self, rows: int, txs: int, barrier: Barrier) -> Iterator[Committed]:
        if not txs:
            return
        notes = self._stream.rows
        ends = np.append(notes.tx_row[1:txs], rows)  # events up to the end of each transaction
        wanted = np.searchsorted(ends, np.arange(self._mark_events, rows + self._mark_events, self._mark_events))
        chosen = np.unique(np.append(np.minimum(wanted, txs - 1), txs - 1))
        ordinal = np.arange(rows) - notes.tx_row[notes.tx[:rows]]
        try:
            blocks = self._stream.blocks.rows(0, rows, np.arange(rows), ordinal, committed=True)
        except TidemillError:
            yield from self._commit_singly(ends, barrier)
            raise
        marks, first = [], 0
        for i in chosen.tolist():
            self._progress.advance(first, i + 1)
            marks.append((int(ends[i]), self._stream.place.text()))
            first = i + 1
        yield Committed(blocks, rows, tuple(marks), barrier)

    def _commit_singly(self, ends: Ints, barrier: Barrier) -> Iterator[Committed]:
        """Up to the transaction that cannot be decoded, which is named."""
        stream, first = self._stream, 0
        for i, last in enumerate(ends.tolist()):
            place = np.arange(last - first)
            try:
                blocks = stream.blocks.rows(first, last, place, place, committed=True)
            except TidemillError as error:
                self._name(error, stream.noted(i))
                stream.state[[scanning.ROWS, scanning.TXS, scanning.OPEN]] = 0  # what was noted has left, or never will
                raise
            self._progress.advance(i, i + 1)
            yield Committed(blocks, last - first, ((last - first, stream.place.text()),), barrier)
            first = last

    def before(self, error: TidemillError) -> Iterator[Change]:
        """Whole transactions before the one at which the stream cannot be decoded leave; it is named, and `place` is
        right before it."""
        state = self._stream.state
        if state[scanning.OPEN]:
            self._name(error, self.open or self._stream.newest())
        if not state[scanning.SPILLING]:
            yield from self.flush(spill_open=False)
        yield self.nothing()

    def _name(self, error: TidemillError, transaction: BinlogTransaction) -> None:
        at = f"transaction {self._progress.position(transaction)}"
        error.where = f"{error.where}, {at}" if error.where else at

    def _begin_spill(self) -> None:
        self.spill += 1
        self.open, self.spilled = self._stream.newest(), 0
        self._stream.state[scanning.SPILLING] = 1

    def _spill(self, first: int, last: int, barrier: Barrier) -> Iterator[Spilled]:
        if last > first:
            place = np.arange(last - first) + self.spilled
            blocks = self._stream.blocks.rows(first, last, place, place, committed=False)
            self.spilled += last - first
            yield Spilled(self.spill, blocks, last - first, barrier)

    def spill_statement(self, changes: list[DdlChange]) -> Iterator[Spilled]:
        """A statement inside the transaction that is being spilled."""
        if changes:
            place = np.arange(len(changes)) + self.spilled
            self.spilled += len(changes)
            blocks = statements(changes, place, None)
            yield Spilled(self.spill, blocks, len(changes), barrier_of(changes))

    def spill_now(self) -> Iterator[Change]:
        """What is noted of the open transaction leaves, and so will the rest of it."""
        yield from self.flush(spill_open=True)

    def end_spill(self) -> BinlogTransaction:
        assert self.open is not None
        ended = self.open
        self.open = None
        self._stream.state[[scanning.OPEN, scanning.SPILLING, scanning.HELD]] = 0
        return ended

    def take_open(self, end: int) -> BinlogTransaction:
        """The open transaction consists of one statement, which ends at `end`: it is no longer `scan`'s."""
        state = self._stream.state
        state[scanning.POS] = end
        if not state[scanning.OPEN]:
            return BinlogTransaction(scanning.ANONYMOUS, 0, NO_TIME)
        if state[scanning.SPILLING]:
            return self.end_spill()
        own = self._stream.newest()
        state[scanning.TXS] -= 1
        state[[scanning.OPEN, scanning.HELD]] = 0
        return own

    def nothing(self) -> Committed:
        """Only `place` has moved."""
        return Committed((), 0, ((0, self._stream.place.text()),))

    def committed_spill(self, spill: int, count: int, ended: BinlogTransaction, time: int, xid: int) -> Change:
        if not count:
            return self.nothing()
        return SpillCommitted(spill, self._progress.position(ended), xid, time, self._stream.place.text())
