"""What triggers depend on, read from the file: columns, unique indexes, and what the application's own triggers and
foreign keys do in the middle of a statement."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from tidemill.decoders.sqlite import SqliteKind, SqliteTable, kind_of
from tidemill.sources._shared.sqlite_catalog import OWN, default_literal, read_table, unique_indexes, why_unreadable
from tidemill.sources._shared.sqlite_statements import TriggerStatement, generated_expressions
from tidemill.sources._shared.sqlite_writes import ForeignKey, WriteGraph
from tidemill.sources.sqlite.conflicts import TriggerSpec
from tidemill.sources.sqlite.triggers import AFTER_KINDS, BEFORE_KINDS, trigger_name


def read_writes(db: sqlite3.Connection) -> WriteGraph:
    triggers = db.execute(
        "SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger' AND name NOT GLOB ? ORDER BY rowid",
        [f"{OWN}*"],
    ).fetchall()
    references = db.execute(
        'SELECT DISTINCT s.name, f."table", f.on_update, f.on_delete, f.seq, f."to", c.type FROM sqlite_schema AS s,'
        ' pragma_foreign_key_list(s.name) AS f JOIN pragma_table_xinfo(s.name) AS c ON c.name = f."from" COLLATE NOCASE'
        " WHERE s.type = 'table'"
    ).fetchall()
    return WriteGraph((TriggerStatement.parse(*row) for row in triggers), (ForeignKey(*row) for row in references))


def read_spec(db: sqlite3.Connection, name: str, sql: str, writes: WriteGraph) -> TriggerSpec:
    names = tuple(column for (column,) in db.execute("SELECT name FROM pragma_table_xinfo(?)", [name]))
    table, uniques = read_table(db, name), tuple(unique_indexes(db, name))
    hidden = db.execute("SELECT 1 FROM pragma_table_xinfo(?) WHERE hidden IN (2, 3)", [name]).fetchone()
    generated = generated_expressions(sql) if hidden else {}
    return TriggerSpec(
        table, names, generated, _defaults(db, table), uniques, writes.is_nested(name), _is_mixed(table, writes)
    )


def _defaults(db: sqlite3.Connection, table: SqliteTable) -> dict[str, str]:
    """One that calls a function of the application's is left out: a program without it may write to the table, as long
    as it names the column."""
    found = {c.name: c.default for c in table.columns if not c.nullable and c.default and c.default.upper() != "NULL"}
    strings = {c.name: default_literal(c) or f"({found[c.name]})" for c in table.columns if c.name in found}
    return {name: text for name, text in strings.items() if not why_unreadable(db, table.name, text)}


def _is_mixed(table: SqliteTable, writes: WriteGraph) -> bool:
    classes = {c.name.lower(): _affinity(c.declared) for c in table.columns}
    places = dict(enumerate(table.key))
    return any(
        _affinity(key.declared) != classes.get((key.column or places.get(key.place, "")).lower())
        for key in writes.references(table.name)
    )


def _affinity(declared: str) -> str:
    """As far as comparisons differ by it. ANY is one of two, by the table."""
    kind = kind_of(declared)
    if kind in (SqliteKind.TEXT, SqliteKind.BLOB):
        return kind.value
    return {"": "blob", "ANY": "any"}.get(declared.strip().upper(), "numeric")


@dataclass(frozen=True, slots=True)
class Misplaced:
    """The application's triggers of a table that do not stand to ours as they should. SQLite runs the latest first:
    what one that is `late` writes to the same table is recorded before the change that it follows from. `early` ones
    are BEFORE triggers that write to their own table after ours have looked at it."""

    late: tuple[TriggerStatement, ...]
    early: tuple[TriggerStatement, ...]

    def __bool__(self) -> bool:
        return bool(self.late or self.early)


@dataclass(frozen=True, slots=True)
class MadeTriggers:
    """All triggers of the file, read once: sqlite_schema has no index, and to ask it for each of many tables takes
    seconds. By the names of their tables, in lower case: name, and when it was made (as a rank) with its text."""

    by_table: Mapping[str, Mapping[str, tuple[int, str]]]

    @classmethod
    def read(cls, db: sqlite3.Connection) -> MadeTriggers:
        found: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
        rows = db.execute("SELECT tbl_name, name, rowid, sql FROM sqlite_schema WHERE type = 'trigger'")
        for table, name, number, sql in rows:  # a trigger has the table's name as its statement spells it
            found[str(table).lower()][str(name)] = int(number), str(sql)
        return cls(found)

    def of(self, table: str) -> Mapping[str, tuple[int, str]]:
        return self.by_table.get(table.lower(), {})

    def ours(self, shape: int, table: str) -> dict[str, str]:
        """Those of this description that are on the table. They go along with one that is renamed, even if its name is
        taken anew."""
        prefix = trigger_name(shape, "")
        return {name: sql for name, (_, sql) in self.of(table).items() if name.startswith(prefix)}


def find_misplaced(made: MadeTriggers, table: str, shape: int, writes: WriteGraph) -> Misplaced:
    ranks = {name: rank for name, (rank, _) in made.of(table).items()}
    after = min((ranks.get(trigger_name(shape, kind), 0) for kind in AFTER_KINDS), default=0)
    before = max((ranks.get(trigger_name(shape, kind), 0) for kind in BEFORE_KINDS), default=0)
    return Misplaced(
        tuple(t for t in writes.triggers(table) if not t.before and ranks[t.name] > after),
        tuple(t for t in writes.first_triggers(table) if ranks[t.name] < before),
    )
