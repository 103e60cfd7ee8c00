"""Statements that stand in the binlog as text: about transactions, DDL, and changes of rows without the rows.

Called by `control` for QUERY events and their like. What a DDL statement did is for `TableLookup.ddl` to say.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.decoders._shared.mysql.table_lookup import DdlChange, TableLookup, barrier_of
from tidemill.decoders.binlog import events
from tidemill.decoders.binlog import scan as scanning
from tidemill.decoders.binlog.blocks import statements
from tidemill.decoders.binlog.emit import Emitter
from tidemill.decoders.binlog.ends import TransactionEnds
from tidemill.decoders.binlog.progress import Progress
from tidemill.decoders.binlog.stream import BinlogStream, BinlogTransaction
from tidemill.errors import SKIP, SourceError
from tidemill.model.change import Change, Committed

_COMMENT = re.compile(r"\s*(/\*(?!!|M!).*?\*/|--\s[^\n]*\n|#[^\n]*\n)", re.DOTALL)
_FIRST_TOKENS = re.compile(r"[\s(]*([a-z]+)(?:\s+([a-z]+))?", re.IGNORECASE)
# The last three are calls of stored functions that change rows.
_CHANGES_ROWS = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "SELECT", "DO", "CALL"})
_EMPTIED = re.compile(r"\s*DELETE\s+FROM\s+((?:`(?:[^`]|``)+`\.)?`(?:[^`]|``)+`)\s*(?:/\*.*\*/)?\s*", re.IGNORECASE)


class Statements:
    def __init__(
        self, stream: BinlogStream, tables: TableLookup, progress: Progress, emitter: Emitter, ends: TransactionEnds
    ) -> None:
        self._stream = stream
        self._tables = tables
        self._progress = progress
        self._emitter = emitter
        self._ends = ends

    def query(self, query: events.Query, seconds: int, end: int) -> Iterator[Change]:
        state = self._stream.state
        text = query.text
        while comment := _COMMENT.match(text):
            text = text[comment.end() :]
        tokens = _FIRST_TOKENS.match(text)
        first, second = (tokens[1].upper(), (tokens[2] or "").upper()) if tokens else ("", "")
        match first, second:
            case "BEGIN", _:
                raise self._stream.broken(scanning.BAD_EVENT)
            case "COMMIT", _:
                yield from self._ends.commit(seconds, 0, end)
            case "SAVEPOINT", _:
                self._ends.save(text)
                state[scanning.POS] = end
            case ("RELEASE", "SAVEPOINT") | ("XA", "END" | "PREPARE"):
                state[scanning.POS] = end
            case "ROLLBACK", "TO":
                self._ends.roll_back_to(text)
                state[scanning.POS] = end
            case "ROLLBACK", _:
                yield from self._ends.roll_back(end)
            case "XA", "START" | "BEGIN":
                if not state[scanning.OPEN]:
                    self._stream.begin(scanning.ANONYMOUS, 0, NO_TIME, 2)
                state[[scanning.OPEN, scanning.HELD]] = 2, 1
                state[scanning.POS] = end
            case "XA", "COMMIT" | "ROLLBACK":
                yield from self._ends.resolve(events.xid_of(text), second == "COMMIT", seconds, end)
            case _ if first in _CHANGES_ROWS and not (emptied := _EMPTIED.fullmatch(text)):
                yield from self.row_change(first, replace(query, text=text), seconds, end)
            case _ if query.pending:
                yield from self._end([], seconds, end, None)
            case _:
                # What a server writes for a MEMORY table that it lost with a restart.
                if first == "DELETE" and emptied is not None:
                    text = f"TRUNCATE TABLE {emptied[1]}"
                yield from self._ddl(replace(query, text=text), seconds, end)

    def row_change(self, kind: str, query: events.Query, seconds: int, end: int) -> Iterator[Change]:
        """Of a session with another binlog_format. What it changed is not in the binlog (invariant 7)."""
        if self._tables.writes(query.text, query.database, query.session):
            raise SourceError(
                f"the binlog has a statement ({kind}) in place of the rows it changed, maybe of a captured table",
                where=self._stream.where(),
                fix=f"Set binlog_format=ROW, also in sessions that changed it for themselves. {SKIP}",
            )
        yield from self._end([], seconds, end, None)

    def _ddl(self, query: events.Query, seconds: int, end: int) -> Iterator[Change]:
        """Everything before it leaves first; it is applied once, because its bytes are never scanned again."""
        state, emitter = self._stream.state, self._emitter
        inside = state[scanning.OPEN] == 2  # CREATE TABLE ... SELECT
        if inside and not state[scanning.SPILLING]:
            yield from emitter.spill_now()
            state[scanning.POS] = end
        own = None if inside else emitter.take_open(end)
        yield from emitter.flush(spill_open=False)
        here = self._progress.here(emitter.open if inside else own)
        changes = self._tables.ddl(query.text, query.database, here, query.session)
        if changes:
            self._stream.known.forget()
        yield from self._end(changes, seconds, end, own)

    def _end(self, changes: list[DdlChange], seconds: int, end: int, own: BinlogTransaction | None) -> Iterator[Change]:
        """What the statement did leaves: with the transaction around it, or as one of its own."""
        state = self._stream.state
        if own is None and state[scanning.OPEN] == 2:
            state[scanning.POS] = end
            yield from self._emitter.spill_statement(changes)
            return
        if own is None:
            own = self._emitter.take_open(end)
            yield from self._emitter.flush(spill_open=False)
        self._progress.finish(own)
        known = (self._progress.position(own), own.commit_time(seconds))
        blocks = statements(changes, np.arange(len(changes)), known)
        marks = ((len(changes), self._stream.place.text()),)
        yield Committed(blocks, len(changes), marks, barrier_of(changes))
