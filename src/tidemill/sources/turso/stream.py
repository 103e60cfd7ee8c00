"""From looks at the change table to appends of the log: whole transactions, large ones in pieces.

A look reads changes and schema in one read transaction. So what differs between the schema and what the records tell
stands after the last of these changes, whoever writes meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill.decoders.sqlite import SchemaStatement, ddl_block, write_record
from tidemill.model.barrier import Barrier
from tidemill.model.change import Change, Committed, SpillCommitted, Spilled
from tidemill.model.position import Position
from tidemill.sources._shared.errors import RECOVER
from tidemill.sources._shared.sqlite_catalog import quote
from tidemill.sources.turso.client import CdcForm, TursoFile
from tidemill.sources.turso.decode import CdcDecoder, CdcRow, RowGroups, transaction_ends
from tidemill.sources.turso.errors import CdcReset
from tidemill.sources.turso.resume import CdcPlace, lost_change
from tidemill.sources.turso.tables import CdcTables

if TYPE_CHECKING:
    from tidemill.sources.turso import TursoConfig

ROWS = 20_000  # read at once
_MICROS = 1_000_000


@dataclass(frozen=True, slots=True)
class CdcLook:
    """Changes after our place. `live` are the selected tables' statements where `version` of the schema is new, and
    these are all of the changes; else None."""

    rows: list[CdcRow]
    version: int
    live: Mapping[str, str] | None


class CdcStream:
    """Of one connection. `place` is the end of what was handed out."""

    def __init__(
        self,
        file: TursoFile,
        form: CdcForm,
        decoder: CdcDecoder,
        tables: CdcTables,
        place: CdcPlace,
        config: TursoConfig,
        mark_events: int,
        note: Callable[[Mapping[str, str], Position], None],
    ) -> None:
        """`note` marks tables of which something may be missing, with the reason."""
        self.place, self.tables = place, tables
        self._file, self._form, self._decoder, self._config = file, form, decoder, config
        self._mark_events, self._note = mark_events, note
        self._version = -1
        self._read: dict[int, tuple[Any, ...]] = {}  # by the last look that found any, by number
        self._spills = 0

    @property
    def version(self) -> int:
        """Of the schema as the last look saw it, -1 before the first."""
        return self._version

    def changes(self) -> Iterator[Change]:
        """What one look finds."""
        look = self._look()
        rows = look.rows
        if rows:
            ends = transaction_ends(rows).tolist() if self._form.transactions else [len(rows)]
            if len(rows) == ROWS and self._form.transactions and len(ends) == 1:
                yield from self._find_renamed(self._tables_of(rows[0].transaction))
                yield from self._spill(rows)
            else:
                yield from self._find_renamed(rows)
                # Of as many as fit into a look the last transaction may go on.
                whole = ends[:-1] if len(rows) == ROWS and self._form.transactions else ends
                yield from self._read_committed(rows, whole)
        if look.live is not None:
            for name, sql in self.tables.differences(look.live).items():
                yield from self._statement(name, sql)
            self._version = look.version

    def _look(self) -> CdcLook:
        limit = ROWS if self._form.transactions else -1  # without transactions a look is one: it is not cut
        live, place = None, self.place
        known = int(place.number > 0)
        with self._file.reading():
            # With the one before: somebody may empty the table, or make it anew, and it grows beyond our place.
            rows = self._file.rows(
                f"SELECT {self._form.columns} FROM {quote(self._form.table)} WHERE change_id >= ? ORDER BY change_id"
                f" LIMIT {limit + known if limit > 0 else limit}", [place.number],
            )  # fmt: skip
            version = self._file.schema_version()
            statements = self._schema_rows() if any(map(_lacks_statement, rows)) else {}
            if known:
                last = rows.pop(0) if rows and rows[0][0] == place.number else None
                if last is None or last[1] != place.second or last != self._read.get(place.number, last):
                    raise lost_change(place, last is not None, self._config.where)
            if version != self._version and len(rows) != limit:
                live = self._live()
        if rows and rows[0][0] != place.number + 1:
            raise CdcReset(
                f"changes {place.number + 1} to {rows[0][0] - 1} are gone from the change table",
                where=self._config.where, fix=RECOVER,
            )  # fmt: skip
        if rows:
            self._read = {row[0]: row for row in rows}
        made = [CdcRow(*row) for row in rows]
        if statements:
            made = [
                replace(r, after=statements.get(r.id)) if _lacks_statement(row) else r
                for r, row in zip(made, rows, strict=True)
            ]
        return CdcLook(made, version, live)

    def _schema_rows(self) -> dict[int, bytes]:
        """Records of the schema as it is now, by rowid."""
        rows = self._file.rows("SELECT rowid, type, name, tbl_name, rootpage, sql FROM sqlite_schema")
        return {row[0]: write_record(row[1:]) for row in rows}

    def _live(self) -> dict[str, str]:
        return {name: sql for name, sql in self._file.statements().items() if self._config.is_selected(name)}

    def _tables_of(self, transaction: int) -> list[CdcRow]:
        """Rows of a transaction that begins after our place, one of each table, and all of the schema's."""
        rows = self._file.rows(
            f"SELECT {self._form.columns} FROM {quote(self._form.table)} WHERE change_id > ?1 AND change_txn_id = ?2"
            " AND (table_name = 'sqlite_schema' OR change_id IN (SELECT min(change_id)"
            f" FROM {quote(self._form.table)} WHERE change_id > ?1 AND change_txn_id = ?2 GROUP BY table_name))",
            [self.place.number, transaction],
        )
        return [CdcRow(*row) for row in rows]

    def _find_renamed(self, rows: list[CdcRow]) -> Iterator[Committed]:
        """Tables that were renamed, which no record tells, and written to before a look has found their new names."""
        names = dict.fromkeys(row.table for row in rows if row.table and row.table not in self.tables.known)
        unknown = [name for name in names if self._config.is_selected(name)]
        if not unknown:
            return
        created, live = self._decoder.find_created(rows), self._live()
        for name in unknown:
            if name not in created and name in live:
                yield from self._statement(name, live[name])

    def _statement(self, name: str, sql: str | None) -> Iterator[Committed]:
        """One that no record tells: it stands after our place, and is the place then."""
        place = replace(self.place, found=self.place.found + 1)
        statement = self.tables.apply(name, sql, place.text())
        if statement is not None:
            if (why := _describe_loss(statement)) and self._file.rows(f"SELECT 1 FROM {quote(name)} LIMIT 1"):
                self._note({name: why}, self.place.text())
            self.place = place
            block = ddl_block(statement, 0, 0, (str(place.text()), 0, place.second * _MICROS))
            yield Committed((block,), 1, ((1, place.text()),), Barrier.SCHEMA_CHANGE)

    def _read_committed(self, rows: list[CdcRow], ends: list[int]) -> Iterator[Committed]:
        """Transactions together, but one with a statement on its own: a batch ends before and after it."""
        plain: list[tuple[int, int]] = []
        for first, end in zip([0, *ends[:-1]], ends, strict=True):
            if not any(row.table == "sqlite_schema" for row in rows[first:end]):
                plain.append((first, end))
                continue
            yield from self._plain(rows, plain)
            plain = []
            place = CdcPlace(rows[end - 1].number, rows[end - 1].second)
            made, count, statements = self._decoder.blocks(rows[first:end], place.text(), 0, 0)
            self.place = place
            barrier = Barrier.SCHEMA_CHANGE if statements else Barrier.NONE
            yield Committed(tuple(made), count, ((count, place.text()),), barrier)
        yield from self._plain(rows, plain)

    def _plain(self, rows: list[CdcRow], spans: list[tuple[int, int]]) -> Iterator[Committed]:
        """Rows of these spans, which follow each other. Where transactions are not told apart each row is one to its
        events, and all of them are one to the log."""
        if not spans:
            return
        first, last = spans[0][0], spans[-1][1]
        own = rows[first:last]
        ends = [end - first for _, end in spans] if self._form.transactions else list(range(1, len(own) + 1))
        places = [CdcPlace(own[end - 1].number, own[end - 1].second).text() for end in ends]
        groups = RowGroups(np.repeat(np.arange(len(ends)), np.diff([0, *ends])), [str(place) for place in places])
        blocks, counts = self._decoder.transactions(own, groups)
        events = np.cumsum(counts).tolist()
        self.place = CdcPlace(own[-1].number, own[-1].second)
        marks: list[tuple[int, Position]] = []
        for count, place in zip(events, places, strict=True) if self._form.transactions else ():
            if count - (marks[-1][0] if marks else 0) >= self._mark_events and count < events[-1]:
                marks.append((count, place))
        yield Committed(tuple(blocks), events[-1], (*marks, (events[-1], self.place.text())))

    def _spill(self, rows: list[CdcRow]) -> Iterator[Change]:
        """One transaction that is larger than a read."""
        self._spills += 1
        number, handed = rows[0].transaction, 0
        while rows:
            own = [row for row in rows if row.transaction == number]
            if own:
                blocks, count, statements = self._decoder.blocks(own, None, handed, handed)
                handed += count
                self.place = CdcPlace(own[-1].number, own[-1].second)
                if count:
                    barrier = Barrier.SCHEMA_CHANGE if statements else Barrier.NONE
                    yield Spilled(self._spills, tuple(blocks), count, barrier)
            if len(own) < ROWS:
                break
            rows = self._look().rows
        place = self.place
        yield SpillCommitted(self._spills, place.text(), number, place.second * _MICROS, place.text())


def _describe_loss(statement: SchemaStatement) -> str:
    """What rows lack of a table whose statement stands in no record; empty where that is nothing."""
    kinds = {change["change"] for change in statement.changes}
    if statement.kind == "create":
        return "it was renamed, or made by a connection without the pragma: rows from before are not captured"
    if {"add", "drop"} <= kinds:
        return "a column was renamed: what rows had in it before is not captured under its new name"
    return ""


def _lacks_statement(row: tuple[Any, ...]) -> bool:
    """Whether a row of `CdcForm.columns` tells that a statement of the schema is new, and not how it is (modes id and
    before): it is completed as other rows are."""
    _, _, _, kind, table, _, before, after = row
    return table == "sqlite_schema" and after is None and (kind == 0 or (kind == 1 and before is None))
