"""The triggers that record changes, as SQL text. docs/sqlite.md says what each is for.

A value is recorded as it is: the columns of the change table have no affinity, so that storage class, bytes and bits
stay. REPLACE deletes rows without firing their DELETE triggers (unless PRAGMA recursive_triggers is on), so the rows
that stand in the way of a new one are noted before it comes, and recorded as deleted once they are gone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tidemill.decoders.sqlite import SqliteTable
from tidemill.sources._shared.sqlite_catalog import OWN, UniqueIndex, default_literal, quote

CHANGES, SHAPES, READERS = f"{OWN}changes", f"{OWN}shapes", f"{OWN}readers"
REPLACED, META = f"{OWN}replaced", f"{OWN}meta"
INSERT, UPDATE, DELETE, DDL = 1, 2, 3, 6

#: Milliseconds since 1970, by the writer's clock. `unixepoch('subsec')` needs SQLite 3.42.
NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"

KINDS = ("before_insert", "after_insert", "before_update", "after_update", "after_delete")


def trigger_name(shape: int, kind: str) -> str:
    return f"{OWN}{shape}_{kind}"


def values(count: int, first: int = 0) -> str:
    return ", ".join(f"v{i}" for i in range(first, first + count))


def rowid_name(table: SqliteTable) -> str | None:
    """How the rowid can be named: a column may hide one of its names."""
    taken = {c.name.lower() for c in table.columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)


def row_list(table: SqliteTable, row: str) -> str:
    """All columns of a row, in order."""
    return ", ".join(f"{row}.{quote(c.name)}" for c in table.columns)


def create_triggers(shape: int, table: SqliteTable, uniques: Sequence[UniqueIndex]) -> dict[str, str]:
    """By name. Texts stand in the file as they are here, until a column or the table is renamed: then SQLite puts the
    new name into them."""
    count, name = len(table.columns), quote(table.name)
    into = f"INSERT INTO {CHANGES} (shape, op, at, {values(count)})"
    conflict = _conflict(table, uniques)
    own, fresh = _note(table, "OLD"), _note(table, "NEW")
    key = " AND ".join(f"x.{k} = {REPLACED}.{v} AND x.{k} IS {REPLACED}.{v} COLLATE BINARY" for k, v in _keys(table))
    gone = f"{REPLACED}.shape = {shape} AND (({fresh}) OR NOT EXISTS (SELECT 1 FROM {name} AS x WHERE {key}))"
    note = (
        f"DELETE FROM {REPLACED} WHERE shape = {shape};"
        f" INSERT INTO {REPLACED} (shape, rid, {values(count)})"
        f" SELECT {shape}, {_rid(table, 'x')}, {row_list(table, 'x')} FROM {name} AS x WHERE"
    )
    emit = f"{into} SELECT {shape}, {DELETE}, {NOW}, {values(count)} FROM {REPLACED} WHERE {gone};"
    forget = f"DELETE FROM {REPLACED} WHERE shape = {shape} AND {own};"
    here = f"SELECT 1 FROM {name} AS x WHERE"
    bodies = {
        "before_insert": f"BEFORE INSERT ON {name} WHEN EXISTS ({here} {conflict}) BEGIN {note} {conflict}; END",
        "after_insert": f"AFTER INSERT ON {name} BEGIN {emit} DELETE FROM {REPLACED} WHERE shape = {shape};"
        f" {into} VALUES ({shape}, {INSERT}, {NOW}, {row_list(table, 'NEW')}); END",
        "after_delete": f"AFTER DELETE ON {name} BEGIN {forget}"
        f" {into} VALUES ({shape}, {DELETE}, {NOW}, {row_list(table, 'OLD')}); END",
    }
    others = f"({conflict}) AND NOT ({_same(table, 'x', 'OLD')})"
    bodies["before_update"] = (
        f"BEFORE UPDATE ON {name} WHEN {_may_replace(table, uniques)}EXISTS ({here} {others})"
        f" BEGIN {_load_inputs(table, uniques)}{note} {others}; END"
    )
    bodies["after_update"] = (
        f"AFTER UPDATE ON {name} BEGIN {forget} {emit} DELETE FROM {REPLACED} WHERE {gone};"
        f" INSERT INTO {CHANGES} (shape, op, at, {values(2 * count)})"
        f" VALUES ({shape}, {UPDATE}, {NOW}, {row_list(table, 'OLD')}, {row_list(table, 'NEW')}); END"
    )
    return {
        trigger_name(shape, kind): f"CREATE TRIGGER {quote(trigger_name(shape, kind))} {body}"
        for kind, body in bodies.items()
    }


def recorded_names(after_insert: str, count: int) -> tuple[str, ...]:
    """The columns that a trigger records, by the names that they have now."""
    names = re.findall(r'NEW\."((?:[^"]|"")+)"', after_insert)
    return tuple(name.replace('""', '"') for name in names[-count:])


def _keys(table: SqliteTable) -> list[tuple[str, str]]:
    """What tells rows apart: (name in the table, column of the note)."""
    if not table.without_rowid:
        return [(rowid_name(table) or "rowid", "rid")]
    places = {c.name: i for i, c in enumerate(table.columns)}
    return [(quote(name), f"v{places[name]}") for name in table.key]


def _rid(table: SqliteTable, row: str) -> str:
    return "NULL" if table.without_rowid else f"{row}.{rowid_name(table)}"


def _note(table: SqliteTable, row: str) -> str:
    return " AND ".join(f"{REPLACED}.{v} IS {row}.{k} COLLATE BINARY" for k, v in _keys(table))


def _same(table: SqliteTable, a: str, b: str) -> str:
    return " AND ".join(f"{a}.{k} IS {b}.{k} COLLATE BINARY" for k, _ in _keys(table))


def _conflict(table: SqliteTable, uniques: Sequence[UniqueIndex]) -> str:
    """Rows that a new row may replace; more than these do no harm, because only what is gone counts. A partial index
    is taken as a whole; of one with an expression only its columns are known."""
    found = [] if table.without_rowid else [f"x.{rowid_name(table)} = NEW.{rowid_name(table)}"]
    found += unique_conditions(table, uniques)
    return " OR ".join(f"({condition})" for condition in found)


def unique_conditions(table: SqliteTable, uniques: Sequence[UniqueIndex]) -> list[str]:
    """Of each unique index: x is a row that the new one stands against. REPLACE makes a NULL that may not be one the
    column's default, after our trigger."""
    named = {c.name: c for c in table.columns}
    found = []
    for index in uniques:
        equal = []
        for name, collation in index.columns:
            value, default = f"NEW.{quote(name)}", None
            if not named[name].nullable:
                default = default_literal(named[name])
            value = value if default is None else f"coalesce({value}, {default})"
            equal.append(f"x.{quote(name)} = {value} COLLATE {quote(collation)}")
        if not index.expression:
            found.append(" AND ".join(equal))
    return found


def _load_inputs(table: SqliteTable, uniques: Sequence[UniqueIndex]) -> str:
    """A statement that does nothing but name every column. Before an UPDATE, SQLite loads of the row only what it sets
    and what triggers name, and makes generated columns of that: of a column that is not there, of NULL."""
    names = {c for index in uniques for c, _ in index.columns}
    if not any(c.generated and c.name in names for c in table.columns):
        return ""
    return f"SELECT {', '.join(f'NEW.{quote(c.name)}' for c in table.columns if not c.generated)}; "


def _may_replace(table: SqliteTable, uniques: Sequence[UniqueIndex]) -> str:
    """An UPDATE that leaves keys alone replaces nothing, and looks for nothing. Any column may bring a row into a
    partial index, or change one that is generated. `UPDATE OF` would not do: it does not know SET rowid = ..."""
    names = {c for index in uniques for c, _ in index.columns} | set(table.key)
    if any(index.partial for index in uniques) or any(c.generated and c.name in names for c in table.columns):
        return ""
    columns = [quote(c.name) for c in table.columns if c.name in names]
    if not table.without_rowid:
        columns.append(str(rowid_name(table)))
    return f"({' OR '.join(f'NEW.{c} IS NOT OLD.{c} COLLATE BINARY' for c in columns)}) AND "
