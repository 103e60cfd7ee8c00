"""How the tables of a Turso file were at each position: rows of `sqlite_schema` in the change table, and looks at it.

Turso 0.8 records CREATE, DROP, ADD and DROP COLUMN there, and no RENAME. So the schema is also looked at when its
version has changed: what then differs without a record is taken over where the look was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from tidemill.contracts import StructureHistory
from tidemill.decoders.sqlite import SchemaStatement, SqliteTable, column_changes
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.sources._shared.sqlite_catalog import initial_values, quote, table_of_statement
from tidemill.sources.turso.resume import CdcPlace


@dataclass(frozen=True, slots=True)
class CdcTable:
    sql: str
    described: SqliteTable
    table: Table


class CdcTables:
    def __init__(self, history: StructureHistory, database: str) -> None:
        self._history, self._database = history, database
        self.known: dict[str, CdcTable] = {}

    def begin(self, place: CdcPlace, live: Mapping[str, str]) -> None:
        """As they were at `place`; as they are now, if nothing is noted of that time. What is noted of later times
        comes again, also a statement that a look has found and that did not reach the log."""
        notes = self._history.structures()
        kept = [note for note in notes if CdcPlace.parse(note.position).order <= place.order]
        if len(kept) < len(notes):
            self._history.forget_structures(kept[-1].sequence if kept else 0)
        if not kept:
            documents: dict[str, bytes | None] = {name: orjson.dumps(sql) for name, sql in live.items()}
            self._history.keep_structures(place.text(), documents)
            kept = self._history.structures()
        for note in kept:
            if note.document is None:
                self.known.pop(note.name, None)
            elif made := self._make(note.name, orjson.loads(note.document), note.position):
                self.known[note.name] = made

    def apply(self, name: str, sql: str | None, position: Position) -> SchemaStatement | None:
        """A table is now as the statement says, or gone. None where that is nothing new."""
        old = self.known.get(name)
        if sql is None:
            if old is None:
                return None
            self._history.keep_structures(position, {name: None})
            del self.known[name]
            return SchemaStatement(old.table, f"DROP TABLE {quote(name)}", "drop", [], old.described)
        if old is not None and old.sql == sql:
            return None
        made = self._make(name, sql, position)
        if made is None or (old is not None and old.described == made.described):
            return None
        self._history.keep_structures(position, {name: orjson.dumps(sql)})
        self.known[name] = made
        before = old.described if old else None
        changes = column_changes(before, made.described)
        return SchemaStatement(made.table, sql, "alter" if old else "create", changes, before, made.described)

    def differences(self, live: Mapping[str, str]) -> dict[str, str | None]:
        """What a look at the schema shows and no record has told."""
        found: dict[str, str | None] = {name: None for name in self.known if name not in live}
        return found | {
            name: sql for name, sql in live.items() if name not in self.known or self.known[name].sql != sql
        }

    def _make(self, name: str, sql: str, position: Position) -> CdcTable | None:
        described = table_of_statement(sql)
        if described is None:
            return None
        old = self.known.get(name)
        initial = initial_values(old.described, described, ()) if old else None
        table = self._history.register(described.to_table(self._database, initial=initial), position)
        return CdcTable(sql, described, table)
