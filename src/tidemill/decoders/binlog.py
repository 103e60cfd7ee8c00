"""The binlog of MySQL and MariaDB to blocks. The capture loop feeds it the replication stream as it arrives.

How an UPDATE passes through: `scan` notes where its before and after images start; when a gulp is used up, `_blblocks`
takes all rows of one table at once, `cut` finds their cells, each column's converter turns them into an Arrow
array, and the rows of whole transactions leave as one `Committed`. No step makes a Python object for a row.

A transaction larger than `spill_bytes`, and one that XA has only prepared, leaves in pieces (`Spilled`) and becomes
visible only with `SpillCommitted` (invariant 3); memory stays bounded.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tidemill.decoders import _blevents as events
from tidemill.decoders import _blmap as maps
from tidemill.decoders import _blscan as scanning
from tidemill.decoders._blblocks import Blocks, statements
from tidemill.decoders._blexpand import packet, packet_end, pieces, read_only
from tidemill.decoders._blmap import TableMap
from tidemill.decoders._blrows import Domain, Name, Names, Rows, Uuid
from tidemill.decoders._blrows import Tables as KnownTables
from tidemill.decoders.binlogplace import Place
from tidemill.decoders.gtid import Flavor, MariadbGtids, MysqlGtids
from tidemill.errors import ConnectionLost, DecodeError, SourceError
from tidemill.model.change import Change, Committed, SpillAborted, SpillCommitted, Spilled
from tidemill.model.position import Position
from tidemill.model.table import Table

__all__ = ["BinlogDecoder", "BinlogRefused", "DdlChange", "Flavor", "TableMap", "Tables"]

_IGNORABLE = 0x80  # LOG_EVENT_IGNORABLE_F: a reader that does not know the event may skip it
_ARTIFICIAL = 0x20  # LOG_EVENT_ARTIFICIAL_F: made up for the stream, in no file
_EXPAND_BYTES = 16 << 20
_LARGEST = np.iinfo(np.int32).max

_COMMENT = re.compile(r"\s*(/\*(?!!|M!).*?\*/|--\s[^\n]*\n|#[^\n]*\n)", re.DOTALL)
_WORDS = re.compile(r"[\s(]*([a-z]+)(?:\s+([a-z]+))?", re.IGNORECASE)
# The last three are calls of stored functions that change rows.
_CHANGES_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SELECT", "DO", "CALL"})
_SAVEPOINT = re.compile(r"\s*(?:ROLLBACK\s+TO\s+)?(?:SAVEPOINT\s+)?", re.IGNORECASE)
_EMPTIED = re.compile(r"\s*DELETE\s+FROM\s+((?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+`)\s*(?:/\*.*\*/)?\s*", re.IGNORECASE)


def _savepoint(text: str) -> str:
    """The name in `SAVEPOINT x` and `ROLLBACK TO x`; servers do not tell upper case from lower in them."""
    return _SAVEPOINT.sub("", text).strip().lower()


class BinlogRefused(SourceError):
    """The server ended the stream with an error of its own; the source knows what to make of the code."""

    def __init__(self, code: int, state: str, message: str) -> None:
        super().__init__(f"the server refused to send its binlog: {message} ({code}, {state})")
        self.code, self.state, self.message = code, state, message


@dataclass(frozen=True, slots=True)
class DdlChange:
    """What a statement did to one captured table. `document` is the block's `ddl` column; `table` is as it left it.
    With `truncate` the event is a TRUNCATE instead."""

    table: Table
    document: str
    barrier: bool = True
    truncate: bool = False


class Tables(Protocol):
    """Answers what the stream does not say."""

    def resolve(self, shape: TableMap, position: Position) -> Table | None:
        """The table's structure at this place, None if it is not captured. Asked once per number and description.
        `position` is the transaction's GTID, or the end of the event in its file where positions are of that kind."""

    def writes(self, text: str, database: str) -> bool:
        """Whether a statement that changes rows, and stands in the binlog in their place, may have changed rows of a
        captured table."""

    def ddl(self, text: str, database: str, position: Position) -> list[DdlChange]:
        """Applies a statement. Asked in order for every statement that is not about a transaction; `position` as
        above, behind the statement."""


@dataclass(frozen=True, slots=True)
class _Transaction:
    name: int
    number: int
    time: int


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An XA transaction whose rows are spilled, waiting for its commit."""

    spill: int
    events: int
    began: _Transaction


class BinlogDecoder:
    """One connection's stream. `feed` it the unconsumed bytes, take the changes, then drop `consumed` bytes.

    `began` is where the stream begins; `place` is how far whole transactions have come. `mark_events` is how far apart
    the places are at which a batch may end. `checksum` is what the session asked for; what counts is what each binlog
    file says of itself.
    """

    def __init__(
        self,
        tables: Tables,
        *,
        flavor: Flavor,
        began: Position,
        checksum: bool = True,
        mark_events: int = 1000,
        zero_dates: Literal["keep", "null"] = "keep",
        spill_bytes: int = 16 << 20,
        capacity: int = 1 << 17,
    ) -> None:
        self._tables = tables
        self._flavor = flavor
        self._mark_events = mark_events
        self._spill_bytes = spill_bytes
        self._rows = Rows(capacity)
        self._state = np.zeros(scanning.STATE_SIZE, np.int64)
        self._state[scanning.CHECKSUM] = checksum
        self._known = KnownTables()
        self._shape_of: dict[str, int] = {}  # the newest slot of each table
        self._names = Names()
        self._blocks = Blocks(self._rows, self._known, self._names, null_zero_dates=zero_dates == "null")
        self._buffer = np.empty(0, np.uint8)
        self._spills = 0  # numbers given to spilled transactions
        self._open: _Transaction | None = None  # the one being spilled
        self._open_events = 0
        self._prepared: dict[events.Xid, _Prepared] = {}
        self._saved: dict[str, int] = {}  # savepoints, and how many rows were noted before each
        self._saved_at = -1  # OPEN_AT of the transaction that they are of
        self.place = Place.parse(began, flavor)
        self._state[scanning.LOG_POS] = self.place.offset
        self._state[scanning.FILE] = self._names.number(Name(f"{self.place.file}:"))
        self.consumed = 0

    @property
    def idle(self) -> bool:
        """Nothing is half received and no XA transaction waits, so `place` is all that was sent."""
        return not self._state[scanning.OPEN] and not self._prepared

    def feed(self, data: memoryview | npt.NDArray[np.uint8]) -> Iterator[Change]:
        """Changes of all that is complete in `data`. Take them all before looking at `consumed`."""
        whole = read_only(data)
        if len(whole) > _LARGEST:
            whole = whole[:_LARGEST]
        at = 0
        while True:
            status = yield from self._walk(whole, at, packets=True)
            at = int(self._state[scanning.POS])
            if status == scanning.MORE:
                break
            reached = yield from self._expand(whole, at)
            if reached is None:
                break
            at = reached
        self.consumed = at

    def _walk(
        self, buffer: npt.NDArray[np.uint8], start: int, *, packets: bool, spill: bool = False
    ) -> Generator[Change, None, int]:
        """Scans one buffer; MORE when it is used up, EXPAND at an event that must be unpacked first."""
        state = self._state
        self._buffer = self._blocks.buffer = buffer
        state[scanning.PACKETS], state[scanning.POS] = packets, start
        self._saved_at = -1
        while True:
            status = int(
                scanning.scan(
                    buffer, len(buffer), state, *self._known.vectors(), *self._names.vectors(), *self._rows.vectors()
                )
            )
            match status:
                case scanning.MORE | scanning.EXPAND:
                    break
                case scanning.FULL:
                    if not state[scanning.ROWS] and state[scanning.TXS] <= 1:
                        self._grow()  # one event has more rows than there is room for
                    yield from self._flush(spill_open=int(state[scanning.OPEN_ROW]) == 0)
                case scanning.CONTROL:
                    yield from self._control()
                case scanning.SERVER:
                    at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
                    self._server_packet(buffer[at + 4 : end].tobytes())
                case _:
                    raise self._broken(status)
        large = len(buffer) - int(state[scanning.OPEN_AT]) > self._spill_bytes
        yield from self._flush(spill_open=spill or (large and status == scanning.MORE))
        return status

    def _grow(self) -> None:
        kept = self._rows
        self._rows = self._blocks.notes = Rows(kept.capacity * 2)
        for now, before in zip(self._rows.vectors(), kept.vectors(), strict=True):
            now[: len(before)] = before

    def _start(self, position: int) -> None:
        if self._known.crowded and not self._state[scanning.OPEN]:
            self._known.forget()
        self._state[[scanning.ROWS, scanning.TXS, scanning.EVENTS, scanning.BARRIER]] = 0
        self._state[scanning.POS] = position

    def _flush(self, *, spill_open: bool) -> Iterator[Change]:
        """Hands on every noted row that may leave now, and forgets it."""
        state = self._state
        rows, txs = int(state[scanning.ROWS]), int(state[scanning.TXS])
        at, barrier = int(state[scanning.POS]), bool(state[scanning.BARRIER])
        if state[scanning.OPEN] and state[scanning.SPILLING]:
            yield from self._spill(0, rows, barrier)
        elif state[scanning.OPEN]:
            first = int(state[scanning.OPEN_ROW])
            yield from self._commit(first, txs - 1, barrier)
            if spill_open:
                self._begin_spill(txs - 1)
                yield from self._spill(first, rows, barrier)
            else:
                # Not worth a spill yet: its bytes stay in the buffer and are scanned again with the next gulp.
                # A table's new shape is noticed only once, so its barrier stays.
                state[scanning.OPEN], self._saved_at = 0, -1
                self._start(int(state[scanning.OPEN_AT]))
                state[scanning.BARRIER] = barrier
                return
        else:
            yield from self._commit(rows, txs, barrier)
        self._start(at)

    def _commit(self, rows: int, txs: int, barrier: bool) -> Iterator[Committed]:
        if not txs:
            return
        ends = np.append(self._rows.tx_row[1:txs], rows)  # events up to the end of each transaction
        wanted = np.searchsorted(ends, np.arange(self._mark_events, rows + self._mark_events, self._mark_events))
        chosen = np.unique(np.append(np.minimum(wanted, txs - 1), txs - 1))
        marks, first = [], 0
        for i in chosen.tolist():
            self._advance(first, i + 1)
            marks.append((int(ends[i]), self.place.text()))
            first = i + 1
        ordinal = np.arange(rows) - self._rows.tx_row[self._rows.tx[:rows]]
        blocks = self._blocks.rows(0, rows, np.arange(rows), ordinal, committed=True)
        yield Committed(blocks, rows, tuple(marks), barrier)

    def _advance(self, first: int, last: int) -> None:
        """`place` moves over the transactions from `first` up to, not including, `last`."""
        notes = self._rows
        name, number = notes.tx_name[first:last], notes.tx_no[first:last]
        if self.place.gtids is not None:
            breaks = np.flatnonzero((np.diff(name) != 0) | (np.diff(number) != 1)) + 1
            starts, stops = np.append(0, breaks).tolist(), np.append(breaks, len(name)).tolist()
            for start, stop in zip(starts, stops, strict=True):
                self._done(int(name[start]), int(number[start]), int(number[stop - 1]))
        self.place.offset = int(notes.tx_end[last - 1])

    def _done(self, name: int, first: int, last: int) -> None:
        """Adds the GTIDs of one server from `first` to `last`."""
        match self.place.gtids, self._names[name].counter:
            case MysqlGtids() as gtids, Uuid(uuid, tag):
                if first == last:
                    gtids.add(uuid, first, tag)
                else:
                    gtids.add_interval(uuid, tag, first, last + 1)
            case MariadbGtids() as gtids, Domain(domain, server):
                gtids.add(domain, server, last)
            case None, _:
                pass
            case _:
                raise SourceError(
                    "a transaction has no GTID, but this source resumes by GTID",
                    where=self._where(),
                    fix="Set gtid_mode=ON at the server; what was written without GTIDs needs a resync.",
                )

    def _finish(self, transaction: _Transaction) -> None:
        """A transaction that ended outside of `scan`."""
        if transaction.name or self.place.gtids is not None:
            self._done(transaction.name, transaction.number, transaction.number)
        self.place.offset = int(self._state[scanning.LOG_POS])

    def _position(self, transaction: _Transaction | None) -> Position:
        if transaction is not None and transaction.name:
            return Position(f"{self._names[transaction.name].prefix}{transaction.number}")
        return Position(f"{self.place.file}:{self._state[scanning.LOG_POS]}")

    def _here(self, transaction: _Transaction | None) -> Position:
        """Of the kind that the stream resumes by."""
        return self._position(None if self.place.gtids is None else transaction)

    # Spilled transactions

    def _begin_spill(self, index: int) -> None:
        self._spills += 1
        self._open, self._open_events = self._noted(index), 0
        self._state[scanning.SPILLING] = 1

    def _noted(self, index: int) -> _Transaction:
        notes = self._rows
        return _Transaction(int(notes.tx_name[index]), int(notes.tx_no[index]), int(notes.tx_time[index]))

    def _spill(self, first: int, last: int, barrier: bool) -> Iterator[Spilled]:
        if last > first:
            place = np.arange(last - first) + self._open_events
            blocks = self._blocks.rows(first, last, place, place, committed=False)
            self._open_events += last - first
            yield Spilled(self._spills, blocks, last - first, barrier)

    def _spill_now(self) -> Iterator[Change]:
        """What is noted of the open transaction leaves, and so will the rest of it."""
        yield from self._flush(spill_open=True)

    def _end_spill(self) -> _Transaction:
        assert self._open is not None
        ended = self._open
        self._open = None
        self._state[[scanning.OPEN, scanning.SPILLING, scanning.HELD]] = 0
        return ended

    def _commit_spill(self, seconds: int, xid: int) -> Iterator[Change]:
        ended = self._end_spill()
        self._finish(ended)
        time = ended.time if ended.time != scanning.NO_TIME else seconds * 1_000_000
        yield self._committed_spill(self._spills, self._open_events, ended, time, xid)

    def _committed_spill(self, spill: int, count: int, ended: _Transaction, time: int, xid: int) -> Change:
        if not count:
            return Committed((), 0, ((0, self.place.text()),))
        return SpillCommitted(spill, self._position(ended), xid, time, self.place.text())

    # Events that `scan` leaves to Python

    def _control(self) -> Iterator[Change]:
        state = self._state
        at, end = int(state[scanning.POS]), int(state[scanning.FRAME_END])
        head = at + (5 if state[scanning.PACKETS] else 0)
        event = self._buffer[head:end].tobytes()
        kind, seconds = event[4], int.from_bytes(event[:4], "little")
        if kind in (4, 15):
            if state[scanning.OPEN] and (kind == 15 or not event[17] & _ARTIFICIAL):
                raise self._broken(scanning.BAD_EVENT)
            yield from self._abandon()
            yield from self._flush(spill_open=False)
            self._format(event) if kind == 15 else self._rotate(event)
            state[scanning.POS] = end
            return
        body = event[events.HEADER : -4 if state[scanning.PACKETS] and state[scanning.CHECKSUM] else None]
        match kind:
            case 19:
                yield from self._table_map(body)
                state[scanning.POS] = end
            case 33:
                self._learn_uuid(body)  # and the same event is looked at again
            case 162 if not body[12] & 0xC0:
                self._learn_domain(event)
            case 162:
                prepared = bool(body[12] & 0x40)
                name = self._learn_domain(event)
                self._note(
                    name, int.from_bytes(body[:8], "little", signed=True), scanning.NO_TIME, 2 if prepared else 1
                )
                state[scanning.HELD] = prepared
                state[scanning.POS] = end
            case 42:
                if state[scanning.OPEN]:
                    raise self._broken(scanning.BAD_EVENT)
                gtid = events.tagged_gtid(body)
                prefix = f"{gtid.uuid}:{gtid.tag}:" if gtid.tag else f"{gtid.uuid}:"
                name = self._names.number(Name(prefix, Uuid(gtid.uuid, gtid.tag)))
                self._note(name, gtid.number, gtid.time or scanning.NO_TIME, 1)
                state[scanning.POS] = end
            case 2:
                yield from self._query(events.query(body), seconds, end)
            case 16:  # only met here when its rows were spilled
                yield from self._commit_held(end, seconds, int.from_bytes(body[:8], "little"))
            case 38:
                yield from self._prepare(body, seconds, end)
            case 9 | 11 | 17:  # the file of a LOAD DATA; what was done with it comes as 18
                state[scanning.POS] = end
            case 18:
                query = events.load_query(body)
                yield from self._row_statement("LOAD DATA", query.text, query.database, seconds, end)
            case 26:
                raise SourceError(
                    "the binlog has an incident: the server could not write some changes to it",
                    where=self._where(),
                    fix="Changes are missing from the binlog. Run resync for the tables, from a new position.",
                )
            case _ if int.from_bytes(event[17:19], "little") & _IGNORABLE:
                state[scanning.POS] = end
            case _:
                raise DecodeError(f"the binlog has an event of type {kind}, which is unknown here", where=self._where())

    def _note(self, name: int, number: int, time: int, opened: int) -> None:
        """Begins a transaction as `scan` does."""
        state, notes, t = self._state, self._rows, int(self._state[scanning.TXS])
        notes.tx_name[t], notes.tx_no[t], notes.tx_time[t] = name, number, time
        notes.tx_xid[t], notes.tx_row[t] = 0, state[scanning.ROWS]
        state[scanning.TXS] += 1
        state[[scanning.OPEN, scanning.HELD]] = opened, 0
        state[[scanning.OPEN_AT, scanning.OPEN_ROW]] = state[scanning.POS], state[scanning.ROWS]

    def _learn_uuid(self, body: bytes) -> None:
        text = body[1:17].hex()
        name = f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
        self._names.number(Name(f"{name}:", Uuid(name)), body[1:17])

    def _learn_domain(self, event: bytes) -> int:
        (server,) = struct.unpack_from("<I", event, 5)
        (domain,) = struct.unpack_from("<I", event, events.HEADER + 8)
        name = Name(f"{domain}-{server}-", Domain(domain, server))
        return self._names.number(name, struct.pack("<QQ", domain, server))

    def _format(self, event: bytes) -> None:
        found = events.format_description(event[events.HEADER :])
        if found.checksum and zlib.crc32(event[:-4]) != int.from_bytes(event[-4:], "little"):
            raise self._broken(scanning.BAD_CHECKSUM)
        self._state[scanning.CHECKSUM] = found.checksum
        self._known.forget()

    def _rotate(self, event: bytes) -> None:
        # The server makes this event up when a stream begins, with a checksum or without one as it sees fit.
        if len(event) > 31 and zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little"):
            event = event[:-4]
        elif self._state[scanning.CHECKSUM] and not event[17] & _ARTIFICIAL:
            raise self._broken(scanning.BAD_CHECKSUM)
        if len(event) < 28:
            raise self._broken(scanning.BAD_EVENT)
        try:
            file = event[27:].decode()
        except UnicodeDecodeError as error:
            raise DecodeError("a ROTATE event names no file") from error
        offset = int.from_bytes(event[19:27], "little")
        if offset >> 32:
            raise DecodeError("a ROTATE event names no place in a file")
        self._state[scanning.LOG_POS] = offset
        self._state[scanning.FILE] = self._names.number(Name(f"{file}:"))
        self.place.file, self.place.offset = file, offset

    def _table_map(self, body: bytes) -> Iterator[Change]:
        state = self._state
        shape = maps.parse(body, mariadb=self._flavor is Flavor.MARIADB)
        transaction = self._open or (self._noted(int(state[scanning.TXS]) - 1) if state[scanning.OPEN] else None)
        table = self._tables.resolve(shape, self._here(transaction))
        slot = scanning.NOT_CAPTURED
        if table is not None:
            slot = self._known.slot(shape, table)
            if self._shape_of.setdefault(table.full_name, slot) != slot:
                state[scanning.BARRIER] = 1  # the table changed its shape here
                self._shape_of[table.full_name] = slot
        self._known.point(shape.table_id, slot, body)
        yield from ()

    def _query(self, query: events.Query, seconds: int, end: int) -> Iterator[Change]:
        state = self._state
        text = query.text
        while comment := _COMMENT.match(text):
            text = text[comment.end() :]
        words = _WORDS.match(text)
        first, second = (words[1].upper(), (words[2] or "").upper()) if words else ("", "")
        match first, second:
            case "BEGIN", _:
                raise self._broken(scanning.BAD_EVENT)
            case "COMMIT", _:
                yield from self._commit_held(end, seconds, 0)
            case "SAVEPOINT", _:
                self._save(text)
                state[scanning.POS] = end
            case ("RELEASE", "SAVEPOINT") | ("XA", "END" | "PREPARE"):
                state[scanning.POS] = end
            case "ROLLBACK", "TO":
                self._roll_back_to(text)
                state[scanning.POS] = end
            case "ROLLBACK", _:
                yield from self._roll_back(end)
            case "XA", "START" | "BEGIN":
                if not state[scanning.OPEN]:
                    self._note(scanning.ANONYMOUS, 0, scanning.NO_TIME, 2)
                state[[scanning.OPEN, scanning.HELD]] = 2, 1
                state[scanning.POS] = end
            case "XA", "COMMIT" | "ROLLBACK":
                yield from self._resolve(events.xid_of(text), second == "COMMIT", seconds, end)
            case ("CREATE" | "DROP", "TEMPORARY"):
                yield from self._statement_end([], seconds, end, None)
            case _ if first in _CHANGES_ROWS and not (emptied := _EMPTIED.fullmatch(text)):
                yield from self._row_statement(first, text, query.database, seconds, end)
            case _ if query.pending:
                yield from self._statement_end([], seconds, end, None)
            case _:
                # What a server writes for a MEMORY table that it lost with a restart.
                if first == "DELETE" and emptied is not None:
                    text = f"TRUNCATE TABLE {emptied[1]}"
                yield from self._ddl(text, query.database, seconds, end)

    def _row_statement(self, kind: str, text: str, database: str, seconds: int, end: int) -> Iterator[Change]:
        """Of a session with another binlog_format. What it changed is not in the binlog (invariant 7)."""
        if self._tables.writes(text, database):
            raise SourceError(
                f"the binlog has a statement ({kind}) in place of the rows it changed, maybe of a captured table",
                where=self._where(),
                fix="Set binlog_format=ROW, also in sessions that changed it for themselves. Run resync for the"
                " tables.",
            )
        yield from self._statement_end([], seconds, end, None)

    def _ddl(self, text: str, database: str, seconds: int, end: int) -> Iterator[Change]:
        """Everything before it leaves first; it is applied once, because its bytes are never scanned again."""
        state = self._state
        inside = state[scanning.OPEN] == 2  # CREATE TABLE ... SELECT
        if inside and not state[scanning.SPILLING]:
            yield from self._spill_now()
            state[scanning.POS] = end
        own = None if inside else self._leave(end)
        yield from self._flush(spill_open=False)
        changes = self._tables.ddl(text, database, self._here(self._open if inside else own))
        if changes:
            self._known.forget()
        yield from self._statement_end(changes, seconds, end, own)

    def _leave(self, end: int) -> _Transaction | None:
        """The open transaction consists of one statement: it is no longer `scan`'s."""
        state = self._state
        state[scanning.POS] = end
        if not state[scanning.OPEN]:
            return _Transaction(scanning.ANONYMOUS, 0, scanning.NO_TIME)
        if state[scanning.SPILLING]:
            return self._end_spill()
        own = self._noted(int(state[scanning.TXS]) - 1)
        state[scanning.TXS] -= 1
        state[[scanning.OPEN, scanning.HELD]] = 0
        return own

    def _statement_end(
        self, changes: list[DdlChange], seconds: int, end: int, own: _Transaction | None
    ) -> Iterator[Change]:
        state = self._state
        if own is None and state[scanning.OPEN] == 2:
            state[scanning.POS] = end
            if changes:
                place = np.arange(len(changes)) + self._open_events
                self._open_events += len(changes)
                blocks = statements(changes, place, None)
                yield Spilled(self._spills, blocks, len(changes), any(c.barrier for c in changes))
            return
        if own is None:
            own = self._leave(end)
            yield from self._flush(spill_open=False)
        assert own is not None
        self._finish(own)
        time = own.time if own.time != scanning.NO_TIME else seconds * 1_000_000
        place = np.arange(len(changes))
        blocks = statements(changes, place, (self._position(own), time)) if changes else ()
        marks = ((len(changes), self.place.text()),)
        yield Committed(blocks, len(changes), marks, any(change.barrier for change in changes))

    # Ends of transactions, XA

    def _commit_held(self, end: int, seconds: int, xid: int) -> Iterator[Change]:
        """The end of a transaction that was spilled, or that XA held."""
        if self._state[scanning.OPEN] != 2:
            raise self._broken(scanning.BAD_EVENT)
        yield from self._spill_now()
        self._state[scanning.POS] = end
        yield from self._commit_spill(seconds, xid)

    def _roll_back(self, end: int) -> Iterator[Change]:
        if self._state[scanning.OPEN] != 2:
            raise self._broken(scanning.BAD_EVENT)
        yield from self._spill_now()
        self._state[scanning.POS] = end
        self._finish(self._end_spill())
        if self._open_events:
            yield SpillAborted(self._spills)
        yield Committed((), 0, ((0, self.place.text()),))

    def _save(self, text: str) -> None:
        state = self._state
        if self._saved_at != state[scanning.OPEN_AT]:
            self._saved, self._saved_at = {}, int(state[scanning.OPEN_AT])
        self._saved[_savepoint(text)] = int(state[scanning.ROWS])

    def _roll_back_to(self, text: str) -> None:
        """MariaDB writes down what a savepoint took back where the transaction used a temporary table, or a table of
        an engine without transactions; rows of such a table are not among these, but in a transaction of their own."""
        state = self._state
        row = self._saved.get(_savepoint(text)) if self._saved_at == state[scanning.OPEN_AT] else None
        if row is None or state[scanning.SPILLING] or state[scanning.OPEN] != 2:
            raise SourceError(
                "a large transaction was rolled back to a savepoint after its changes were written to the binlog",
                where=self._where(),
                fix="Its changes are partly in the log already. That happens where a transaction uses temporary tables,"
                " or an engine without transactions. Run resync for the tables.",
            )
        state[scanning.ROWS] = row

    def _abandon(self) -> Iterator[Change]:
        """A server that died while it wrote a transaction leaves its first events at the end of a file; when it came
        back it rolled the changes back, and the stream goes on with the next file. (MySQL cuts the file, MariaDB does
        not.)"""
        state = self._state
        if not state[scanning.OPEN]:
            return
        if state[scanning.SPILLING]:
            state[scanning.ROWS] = 0
            self._end_spill()
            if self._open_events:
                yield SpillAborted(self._spills)
        else:
            state[scanning.ROWS] = state[scanning.OPEN_ROW]
            state[scanning.TXS] -= 1
            state[[scanning.OPEN, scanning.HELD]] = 0

    def _prepare(self, body: bytes, seconds: int, end: int) -> Iterator[Change]:
        """The rows of a prepared XA transaction wait, invisible, until it is committed or rolled back.

        Its GTID counts as done only then: after a restart the server sends it again, as long as positions are GTID sets
        of MySQL. A position of MariaDB, or in a file, cannot leave one out; there the commit of a transaction that was
        prepared before the restart is an error (`_resolve`), never a silent loss (invariant 7).
        """
        one_phase, xid = events.xa_prepare(body)
        if self._state[scanning.OPEN] != 2:
            raise self._broken(scanning.BAD_EVENT)
        yield from self._spill_now()
        self._state[scanning.POS] = end
        if one_phase:
            yield from self._commit_spill(seconds, 0)
            return
        began = self._end_spill()
        if not isinstance(self.place.gtids, MysqlGtids):
            self._finish(began)
        self._prepared[xid] = _Prepared(self._spills, self._open_events, began)

    def _resolve(self, xid: events.Xid, committed: bool, seconds: int, end: int) -> Iterator[Change]:
        own = self._leave(end)
        assert own is not None
        yield from self._flush(spill_open=False)
        held = self._prepared.pop(xid, None)
        if held is None and committed:
            raise SourceError(
                "an XA transaction was committed whose changes were sent before this stream began",
                where=self._where(),
                fix="What it changed is not known here. Run resync for the tables.",
            )
        if held is not None and isinstance(self.place.gtids, MysqlGtids):
            self._finish(held.began)
        self._finish(own)
        if held is not None and held.events and not committed:
            yield SpillAborted(held.spill)
        time = own.time if own.time != scanning.NO_TIME else seconds * 1_000_000
        yield (
            self._committed_spill(held.spill, held.events, own, time, 0)
            if held is not None and committed
            else (Committed((), 0, ((0, self.place.text()),)))
        )

    # What is compressed, or larger than a packet

    def _expand(self, whole: npt.NDArray[np.uint8], at: int) -> Generator[Change, None, int | None]:
        """Unpacks events from `at` on and scans them. Answers where to go on, None if more must arrive first."""
        places: dict[int, int] = {}  # where an event begins in the expanded bytes -> in the stream
        held, end = bytearray(), at
        for piece, start, stop in pieces(whole, at, checksum=bool(self._state[scanning.CHECKSUM])):
            if start >= 0:
                places[len(held)] = start
            held += piece
            end = max(end, stop)
            if len(held) >= _EXPAND_BYTES:
                yield from self._walk(read_only(bytes(held)), 0, packets=False, spill=True)
                del held[: int(self._state[scanning.POS])]
                places.clear()
        if end == at:
            return None
        places[len(held)] = end
        reached = yield from self._walk_expanded(bytes(held), places, spill=False)
        if reached > at:
            return reached
        if packet(whole, end) is not None:  # there is more, but not of what must be unpacked: it goes on without us
            return (yield from self._walk_expanded(bytes(held), places, spill=True))
        last = packet_end(whole, end)
        if last is not None and last > end + 4 and whole[end + 4]:
            self._server_packet(whole[end + 4 : last].tobytes())
        return None

    def _walk_expanded(self, held: bytes, places: dict[int, int], *, spill: bool) -> Generator[Change, None, int]:
        yield from self._walk(read_only(held), 0, packets=False, spill=spill)
        reached = int(self._state[scanning.POS])
        if reached not in places:
            raise self._broken(scanning.BAD_FRAME)
        return places[reached]

    def _server_packet(self, packet: bytes) -> None:
        if packet[0] == 0xFF and len(packet) >= 3:
            code, rest = int.from_bytes(packet[1:3], "little"), packet[3:]
            state, text = (rest[1:6], rest[6:]) if rest[:1] == b"#" else (b"HY000", rest)
            raise BinlogRefused(code, state.decode("latin-1"), text.decode("utf-8", "replace"))
        if packet[0] == 0xFE and len(packet) < 9:
            raise ConnectionLost("the server ended the binlog stream", where=self._where())
        raise self._broken(scanning.BAD_FRAME)

    # Errors

    def _where(self) -> str:
        return f"{self.place.file}:{self._state[scanning.LOG_POS]}"

    def _broken(self, status: int) -> DecodeError:
        what = {
            scanning.BAD_FRAME: "a packet of the binlog stream is malformed",
            scanning.BAD_EVENT: "an event of the binlog does not follow the protocol, or stands where it cannot",
            scanning.BAD_CHECKSUM: "the checksum of a binlog event does not match",
            scanning.UNKNOWN_TABLE: "rows belong to a table that was never described",
            scanning.BAD_ROW: "a row does not fit its event",
        }[status]
        at = int(self._state[scanning.POS])
        # Header fields only, no row values.
        head = self._buffer[at : at + 24].tobytes().hex()
        return DecodeError(
            what, where=f"{self._where()}, event {head}", fix="Restart the pipeline; if it repeats, report the event."
        )
