"""PostgreSQL's pgoutput (protocol 1 to 4) to blocks. The capture loop feeds it the replication stream as it arrives.

How an UPDATE passes through: `scan` notes where its old and new tuples start; when the buffer is used up,
`table_blocks` takes all rows of one table at once, `cut` finds their cells, `convert` turns each column into an Arrow
array, and the rows of whole transactions leave as one `Committed`. No step makes a Python object for a row.

A transaction larger than `spill_bytes`, and every transaction that the server streams before its commit, leaves in
pieces (`Spilled`) and becomes visible only with `SpillCommitted` (invariant 3); memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tidemill.decoders.pgoutput import messages
from tidemill.decoders.pgoutput import scan as scanning
from tidemill.decoders.pgoutput.blocks import TWO_THOUSAND, table_blocks
from tidemill.decoders.pgoutput.columns import value_of
from tidemill.decoders.pgoutput.copy_text import CopyTextDecoder, RowMemory
from tidemill.decoders.pgoutput.messages import Cursor, Relation, RelationColumn
from tidemill.decoders.pgoutput.relations import Announcement, DescribedBy, Relations, RelationTables, StreamPlace
from tidemill.decoders.pgoutput.rows import OpenTransaction, PgOutputRows, TableStatement
from tidemill.decoders.pgoutput.scan import STATEMENT, WITNESS
from tidemill.errors import DecodeError, TidemillError
from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.change import Change, Committed, SpillAborted, SpillCommitted, Spilled
from tidemill.model.columns import Ints
from tidemill.model.position import Position
from tidemill.model.table import Table

__all__ = [
    "STATEMENT", "TWO_THOUSAND", "WITNESS", "Announcement", "CopyTextDecoder", "Cursor", "DescribedBy",
    "PgOutputDecoder", "Relation", "RelationColumn", "RowMemory", "StreamPlace", "TableStatement", "format_lsn",
    "value_of",
]  # fmt: skip


def format_lsn(lsn: int) -> Position:
    return Position(f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}")


class PgOutputDecoder:
    """One connection's stream. `feed` it the unconsumed bytes, take the changes, then drop `consumed` bytes.

    `tables` answers what the stream does not say (type names, keys), gives tables their versions, knows how they were
    before, and makes events of what changed. `server_message` is given frames that are not CopyData and raises as it
    sees fit.
    `mark_events` is how far apart the places are at which a batch may end. `observe` is given every transaction that
    committed before its changes leave: commit LSNs, ends, xids and times, in the order of commits, and whether a server
    that is asked to begin there sends them again; it may raise. `statements` reads a message of our event
    triggers: at most two, of captured tables, in order; without it they are left out.
    """

    def __init__(
        self,
        tables: RelationTables,
        server_message: Callable[[str, bytes], None],
        *,
        observe: Callable[[Ints, Ints, Ints, Ints, bool], None] = lambda lsn, end, xid, time, again: None,
        messages: bool = True,
        statements: Callable[[bytes, int], list[TableStatement]] | None = None,
        mark_events: int = 1000,
        spill_bytes: int = 16 << 20,
        capacity: int = 1 << 17,
    ) -> None:
        self._relations = Relations(tables)
        self._server_message = server_message
        self._observe = observe
        self._mark_events = mark_events
        self._spill_bytes = spill_bytes
        self._rows = PgOutputRows(capacity)
        self._state = np.zeros(scanning.STATE_SIZE, np.int64)
        self._state[scanning.MUTE] = not messages
        self._state[scanning.DDL] = statements is not None
        self._statements = statements
        self._slots = self._relations.slots
        self._committed = 0  # the last transaction that was observed
        self._spills: dict[int, OpenTransaction] = {}  # by transaction
        self._open_xid = 0  # the transaction between Begin and Commit that is being spilled
        self._buffer = np.empty(0, np.uint8)
        self.consumed = 0
        # Kernels are loaded, the first time compiled (seconds), before a server sends anything.
        list(self.feed(self._buffer))

    def resume(self, after: int) -> None:
        """Transactions that commit before `after` are in the log: they are observed, and make no change again. None
        has a position before `after`, so that the log's end never goes back."""
        self._state[scanning.AFTER] = after

    @property
    def wal_end(self) -> int:
        """The newest LSN of a keepalive: everything committed before it has been fed."""
        return int(self._state[scanning.WAL_END])

    @property
    def sent_at(self) -> int:
        """When the server sent the last frame that was fed, by its own clock: nanoseconds since 1970; 0 before one."""
        sent = int(self._state[scanning.SENT])
        return sent and (sent + TWO_THOUSAND) * 1000

    @property
    def idle(self) -> bool:
        """Nothing is half received, so `wal_end` may be acknowledged once all changes are delivered."""
        return not self._state[scanning.OPEN] and not self._state[scanning.STREAM]

    def reply_requested(self) -> bool:
        """Whether the server asked for an answer since the last call."""
        asked = bool(self._state[scanning.REPLY])
        self._state[scanning.REPLY] = 0
        return asked

    def feed(self, data: memoryview | npt.NDArray[np.uint8]) -> Iterator[Change]:
        """Changes of all that is complete in `data`. Take them all before looking at `consumed`.

        An error comes after the changes of every transaction before the one that cannot be decoded, and names that one.
        """
        try:
            yield from self._decode(data)
        except TidemillError as error:
            state = self._state
            if not state[scanning.STREAM] and not state[scanning.SPILLING]:
                if state[scanning.OPEN]:
                    self._name(error, int(state[scanning.TXS]) - 1)
                yield from self._flush(spill_open=False)
            raise

    def _decode(self, data: memoryview | npt.NDArray[np.uint8]) -> Iterator[Change]:
        self._buffer = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        state, slots = self._state, self._slots
        state[scanning.POS] = 0
        self._relations.begin()
        while True:
            status = scanning.scan(
                self._buffer, len(self._buffer), state, slots.oids, slots.slot_of, slots.width, slots.keys,
                *self._rows.vectors(),
            )  # fmt: skip
            match status:
                case scanning.MORE:
                    break
                case scanning.FULL:
                    yield from self._flush(spill_open=int(state[scanning.OPEN_ROW]) == 0)
                case scanning.CONTROL:
                    yield from self._control()
                case scanning.UNKNOWN_RELATION:
                    yield from self._meet()
                case scanning.SERVER:
                    at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
                    self._server_message(chr(self._buffer[at]), self._buffer[at + 5 : end].tobytes())
                    state[scanning.POS] = end
                case _:
                    raise self._broken_error(int(status))
        yield from self._flush(spill_open=len(self._buffer) - int(state[scanning.OPEN_AT]) > self._spill_bytes)
        self.consumed = int(state[scanning.POS])

    def _start(self, position: int) -> None:
        self._state[[scanning.ROWS, scanning.TXS, scanning.BARRIER, scanning.ALONE]] = 0
        self._state[scanning.POS] = position
        self._slots.documents.clear()

    def _flush(self, *, spill_open: bool) -> Iterator[Change]:
        """Hands on every noted row that may leave now, and forgets it."""
        state = self._state
        rows, txs = int(state[scanning.ROWS]), int(state[scanning.TXS])
        at, barrier, first = int(state[scanning.POS]), Barrier(int(state[scanning.BARRIER])), 0
        if state[scanning.STREAM]:
            yield from self._spill(int(state[scanning.STREAM]), 0, rows, barrier)
        elif state[scanning.OPEN] and state[scanning.SPILLING]:
            yield from self._spill(self._open_xid, 0, rows, barrier)
        elif state[scanning.OPEN]:
            first = int(state[scanning.OPEN_ROW])
            yield from self._commit(first, txs - 1, barrier)
            if spill_open:
                self._open_xid = int(self._rows.tx_id[txs - 1])
                state[scanning.SPILLING] = 1
                yield from self._spill(self._open_xid, first, rows, barrier)
            else:
                # Not worth a spill yet: its bytes stay in the buffer and are scanned again with the next read.
                at = int(state[scanning.OPEN_AT])
                state[scanning.OPEN] = 0
                self._relations.unlearn(at)
        else:
            yield from self._commit(rows, txs, barrier)
        self._start(at)
        if barrier and rows == first and (state[scanning.STREAM] or state[scanning.SPILLING]):
            state[scanning.BARRIER] = int(barrier)  # of a table that changed; its first row is still to come

    def _commit(self, rows: int, txs: int, barrier: Barrier) -> Iterator[Committed]:
        if not txs:
            return
        notes = self._rows
        # Unlike one that was streamed, it has a row (or the server, before 15, always sends it): it comes again.
        self._observe(notes.tx_lsn[:txs], notes.tx_end[:txs], notes.tx_id[:txs], notes.tx_time[:txs], True)
        self._committed = int(notes.tx_lsn[txs - 1])
        if self._is_known(int(notes.tx_lsn[txs - 1])):
            return
        ends = np.append(self._rows.tx_row[1:txs], rows)  # events up to the end of each transaction
        wanted = np.searchsorted(ends, np.arange(self._mark_events, rows + self._mark_events, self._mark_events))
        chosen = np.unique(np.append(np.minimum(wanted, txs - 1), txs - 1))
        marks = tuple((int(ends[i]), format_lsn(int(self._rows.tx_end[i]))) for i in chosen)
        tx = self._rows.tx[:rows]
        ordinal = np.arange(rows) - self._rows.tx_row[tx]
        try:
            found = self._blocks(0, rows, np.arange(rows), ordinal, committed=True)
        except TidemillError:
            yield from self._commit_singly(ends, barrier)
            raise
        yield Committed(found, rows, marks, barrier)

    def _commit_singly(self, ends: Ints, barrier: Barrier) -> Iterator[Committed]:
        """Up to the transaction that cannot be decoded, which is named."""
        first = 0
        for i, last in enumerate(ends.tolist()):
            if self._is_known(int(self._rows.tx_lsn[i])):
                continue
            place = np.arange(last - first)
            try:
                found = self._blocks(first, last, place, place, committed=True)
            except TidemillError as error:
                self._name(error, i)
                self._state[[scanning.ROWS, scanning.TXS, scanning.OPEN]] = 0  # what was noted has left, or never will
                raise
            yield Committed(found, last - first, ((last - first, format_lsn(int(self._rows.tx_end[i]))),), barrier)
            first = last

    def _is_known(self, lsn: int) -> bool:
        return bool(lsn < self._state[scanning.AFTER])

    def _name(self, error: TidemillError, tx: int) -> None:
        at = f"transaction {int(self._rows.tx_id[tx])} at {format_lsn(int(self._rows.tx_lsn[tx]))}"
        error.where = f"{error.where}, {at}" if error.where else at

    def _spill(self, transaction: int, first: int, last: int, barrier: Barrier) -> Iterator[Spilled]:
        spill = self._spills.setdefault(transaction, OpenTransaction())
        if last > first:
            place = np.arange(last - first) + spill.events
            spill.note(self._rows.sub[first:last])
            try:
                found = self._blocks(first, last, place, place, committed=False)
            except TidemillError as error:
                # It counts where the transaction commits: others commit before it, or it never does.
                spill.failed = spill.failed or error
            if spill.failed is None:
                yield Spilled(transaction, found, last - first, barrier)

    def _control(self) -> Iterator[Change]:
        """Relation, Type, the pieces of streamed transactions, and the commit of a spilled one."""
        state = self._state
        at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
        kind = chr(self._buffer[at + 30])
        message = messages.Cursor(self._buffer[at + 31 : end].tobytes())
        if kind == "M":
            if self._has_ended_transactions():  # as in `_meet`
                yield from self._flush(spill_open=False)
                return
            self._statement(messages.logical_message(message, streamed=bool(state[scanning.STREAM])), at, end)
            state[scanning.POS] = end
            return
        if kind in "RY":
            if state[scanning.STREAM]:
                message.number("I")
            if kind == "R":
                known = bool(state[scanning.OPEN] and state[scanning.KNOWN])
                self._relations.announce(at, messages.relation(message), self._place(), known=known)
            else:
                oid, schema, name = message.number("I"), message.text(), message.text()
                self._relations.types[oid] = f"{schema}.{name}" if schema else name
            state[scanning.POS] = end
            return
        # A streamed transaction's piece, commit or abort stands between transactions, and "E" alone ends a piece.
        if (kind == "E") != bool(state[scanning.STREAM]) or (kind != "C" and state[scanning.OPEN]):
            raise DecodeError(f'message "{kind}" inside a transaction')
        yield from self._flush(spill_open=False)
        state[scanning.POS] = end
        match kind:
            case "S":
                state[scanning.STREAM] = message.number("I")
                self._spills.setdefault(int(state[scanning.STREAM]), OpenTransaction())
            case "E":
                state[scanning.STREAM] = 0
            case "c":
                commit = messages.stream_commit(message)
                yield from self._commit_spill(commit.xid, commit.commit_lsn, commit.end_lsn, commit.time, streamed=True)
            case "C":  # only met here when its rows were spilled
                _flags, lsn, end_lsn = message.number("B"), message.number("Q"), message.number("Q")
                state[[scanning.OPEN, scanning.SPILLING]] = 0
                yield from self._commit_spill(self._open_xid, lsn, end_lsn, message.number("q"), streamed=False)
            case "A":
                yield from self._abort(message.number("I"), message.number("I"))
            case _:
                raise DecodeError(
                    f'the server sent a message of kind "{kind}", which no protocol version up to 4 has here'
                )

    def _commit_spill(self, xid: int, lsn: int, end_lsn: int, time: int, *, streamed: bool) -> Iterator[Change]:
        # As `scan` has them: 64 bits, whatever a damaged stream says.
        commit, end, number, when = (
            np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64).view(np.int64) for value in (lsn, end_lsn, xid, time)
        )
        spill = self._spills.pop(xid, OpenTransaction())
        if streamed and self._is_known(lsn):
            self._relations.forget(xid)
        elif streamed:
            spill.aborted |= self._relations.commit(int(self._state[scanning.POS]), xid, lsn)
        # What is streamed comes also without a row of ours. The next connection, which begins at its commit, is not
        # sent it before that and, from 15 on, gets nothing of it: no position may stand there.
        nothing_left = streamed and not spill.survives()
        self._observe(commit, end, number, when, not nothing_left)
        self._committed = max(self._committed, int(commit[0]))
        if nothing_left or self._is_known(lsn):
            if spill.events:
                yield SpillAborted(xid)
        elif spill.failed:
            spill.failed.where = f"{spill.failed.where}, transaction {xid} at {format_lsn(lsn)}".removeprefix(", ")
            raise spill.failed
        elif spill.events:
            position, through = format_lsn(lsn), format_lsn(end_lsn)
            yield SpillCommitted(xid, position, xid, time + TWO_THOUSAND, through, frozenset(spill.aborted))
        else:
            yield Committed((), 0, ((0, format_lsn(end_lsn)),))

    def _abort(self, xid: int, subxid: int) -> Iterator[Change]:
        self._relations.abort(int(self._state[scanning.POS]), xid, subxid)
        if xid != subxid:
            self._spills.setdefault(xid, OpenTransaction()).aborted.add(subxid)
        elif self._spills.pop(xid, OpenTransaction()).events:
            yield SpillAborted(xid)

    def _has_ended_transactions(self) -> bool:
        state = self._state
        if state[scanning.STREAM] or state[scanning.SPILLING] or not state[scanning.OPEN]:
            return False
        return bool(state[scanning.TXS] > 1 and state[scanning.OPEN_ROW] > 0)

    def _place(self) -> StreamPlace:
        """Where we are. A streamed transaction commits after all that were observed."""
        state = self._state
        if state[scanning.OPEN] and not state[scanning.STREAM]:
            last = int(state[scanning.TXS]) - 1
            return StreamPlace(int(self._rows.tx_lsn[last]), tx=int(self._rows.tx_id[last]))
        return StreamPlace(max(self._committed + 1, int(state[scanning.AFTER])), int(state[scanning.STREAM]))

    def _meet(self) -> Iterator[Change]:
        """The first row of a relation since it was announced: if its table has changed, an event stands before it."""
        state = self._state
        at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
        sub, oids = messages.relations_of(self._buffer[at + 30 : end].tobytes(), streamed=bool(state[scanning.STREAM]))
        place = self._place()
        met = next(filter(None, (self._relations.meet(oid, place) for oid in oids)), None)
        if met is None:
            raise self._broken_error(scanning.UNKNOWN_RELATION)
        if met.changed or met.statements:
            if self._has_ended_transactions():
                # What ended before it is an append of its own; the open transaction is scanned again from its
                # beginning, alone.
                yield from self._flush(spill_open=False)
                return
            self._mark_change()
        for statement, mark in zip(met.statements, self._relations.settle(at, met, place, sub), strict=True):
            self._note_statement(statement, end, mark)

    def _statement(self, found: messages.LogicalMessage, at: int, end: int) -> None:
        """A row for each table, in a slot of its own."""
        assert self._statements is not None
        place = self._place()
        for each in self._statements(found.content, place.lsn):
            self._note_statement(each, end, found.xid)
            self._relations.state(at, each, place, found.xid)
            self._mark_change()

    def _note_statement(self, statement: TableStatement, end: int, sub: int) -> None:
        row, slot, document = int(self._state[scanning.ROWS]), *self._slots.add_statement(statement)
        self._rows.note_statement(row, slot, document, end, int(self._state[scanning.TXS]) - 1, sub)
        self._state[scanning.ROWS] = row + 1

    def _mark_change(self) -> None:
        """A table changed in the open transaction, which becomes an append of its own."""
        self._state[scanning.BARRIER] |= int(Barrier.SCHEMA_CHANGE)
        self._state[scanning.ALONE] = not self._state[scanning.STREAM] and not self._state[scanning.SPILLING]

    def _blocks(self, first: int, last: int, offset: Ints, ordinal: Ints, *, committed: bool) -> tuple[Block, ...]:
        def admit_nulls(slot: int, columns: Sequence[str]) -> Table:
            return self._relations.admit_nulls(slot, columns, self._place().lsn)

        return table_blocks(
            self._rows, self._slots, self._buffer, first, last, offset, ordinal, committed=committed,
            admit_nulls=admit_nulls,
        )  # fmt: skip

    def _broken_error(self, status: int) -> DecodeError:
        head = self._buffer[(at := int(self._state[scanning.POS])) : at + 40].tobytes().hex()
        # Protocol fields, no row values: frame, LSNs, clock and the first bytes of the message.
        return DecodeError(
            scanning.BROKEN[status], where=f"frame {head[:62]}", fix="Restart the pipeline; if it repeats, report it."
        )
