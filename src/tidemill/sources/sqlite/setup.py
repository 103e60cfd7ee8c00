"""What is made in the file: the change table, a description of each table that is recorded, and its triggers.

`install` brings all of it up to date with the tables as they are, in one write transaction: idempotent, and called
again whenever the schema has changed. So a change that was recorded before it has the old description, one after it
the new one (invariant 6), and what it inserts itself (a row that says that a table changed) is its own transaction.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from tidemill.decoders.sqlite import SqliteTable
from tidemill.sources._shared.sqlite_catalog import (
    OWN,
    UniqueIndex,
    quote,
    read_table,
    table_names,
    trigger_names_table,
    unique_indexes,
)
from tidemill.sources._shared.sqlite_names import full_name, is_selected, patterns_of
from tidemill.sources.sqlite import gaps
from tidemill.sources.sqlite.errors import TableUncapturable
from tidemill.sources.sqlite.resume import last_number
from tidemill.sources.sqlite.triggers import (
    CHANGES,
    DDL,
    INSERT,
    META,
    NOW,
    READERS,
    REPLACED,
    SHAPES,
    UPDATE,
    create_triggers,
    recorded_names,
    row_list,
    rowid_name,
    trigger_name,
    unique_conditions,
    values,
)

_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS {SHAPES} (shape INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, current INTEGER,"
    " kind TEXT, text TEXT, document TEXT, renamed TEXT, previous INTEGER)",
    f"CREATE TABLE IF NOT EXISTS {READERS} (name TEXT PRIMARY KEY, confirmed INTEGER, tables TEXT, known TEXT)"
    " WITHOUT ROWID",
)
_MOST_COLUMNS = 990  # a change of an UPDATE has each column twice, and SQLite allows 2,000


@dataclass(slots=True)
class InstallReport:
    """`gaps`: tables, and why changes of theirs may be missing. `tables` are recorded from now on."""

    tables: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    number: int
    table: SqliteTable


def install(db: sqlite3.Connection, reader: str, tables: Sequence[str], seen: int | None, where: str) -> InstallReport:
    """Inside a write transaction. `seen`: no change up to this one was recorded after the schema changed; None where
    the reader begins now, and then what other readers have delivered stands for it."""
    found = table_names(db)
    patterns = patterns_of(tables)
    _create_tables(db, [name for name in found if is_selected(patterns, name)])
    row = db.execute(f"SELECT known FROM {READERS} WHERE name = ?", [reader]).fetchone()
    known = set(json.loads(row[0])) if row else set(found)
    readers = db.execute(f"SELECT name, confirmed, tables FROM {READERS}").fetchall()
    if seen is None:
        seen = min((confirmed for _, confirmed, _ in readers), default=None)
    db.execute(
        f"INSERT INTO {READERS} VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET tables = excluded.tables, known = excluded.known",
        [reader, last_number(db), json.dumps(list(tables)), json.dumps(sorted(found))],
    )
    db.execute(f"DELETE FROM {REPLACED}")  # VACUUM may have given rows other rowids
    report = InstallReport()
    current = _current(db)
    for name, sql in found.items():
        if is_selected(patterns, name):
            report.tables.append(name)
            fresh = name not in known and row is not None
            _install_table(db, name, sql, current.get(name), seen, report, where, fresh=fresh)
    _retire(db, set(found), current, report)
    for name, _, chosen in readers:
        own = patterns_of(json.loads(chosen))
        gaps.record(db, {table: why for table, why in report.gaps.items() if is_selected(own, table)}, name)
    (report.schema_version,) = db.execute("PRAGMA schema_version").fetchone()
    return report


def _create_tables(db: sqlite3.Connection, names: Sequence[str]) -> None:
    """At once as wide as these tables need: a column that is added later costs a new look at the whole schema."""
    for statement in _TABLES:
        db.execute(statement)
    db.execute(f"INSERT OR IGNORE INTO {META} VALUES ('identity', ?)", [secrets.token_hex(8)])
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", [CHANGES]).fetchone():
        return
    widest = min(max((len(read_table(db, name).columns) for name in names), default=1), _MOST_COLUMNS)
    head = "change_id INTEGER PRIMARY KEY AUTOINCREMENT, shape, op, at"
    db.execute(f"CREATE TABLE {CHANGES} ({head}, {values(2 * widest)})")
    db.execute(f"CREATE TABLE {REPLACED} (shape, rid, {values(widest)})")


def _current(db: sqlite3.Connection) -> dict[str, _Shape]:
    rows = db.execute(f"SELECT shape, name, document FROM {SHAPES} WHERE current")
    return {name: _Shape(number, SqliteTable.from_json(document)) for number, name, document in rows}


def _install_table(
    db: sqlite3.Connection,
    name: str,
    sql: str,
    shape: _Shape | None,
    seen: int | None,
    report: InstallReport,
    where: str,
    *,
    fresh: bool,
) -> None:
    table, uniques = read_table(db, name), unique_indexes(db, name)
    _check_capturable(table, where)
    if shape is None:
        number = _describe(db, table, "create" if fresh else "first", sql, None)
        _create(db, number, table, uniques)
        if fresh:  # what is in it came after our last look
            _say(db, number)
            into = f"INSERT INTO {CHANGES} (shape, op, at, {values(len(table.columns))})"
            db.execute(f"{into} SELECT {number}, {INSERT}, {NOW}, {row_list(table, 'x')} FROM {quote(name)} AS x")
        report.changed.append(name)
        return
    there, overtaking = _triggers(db, shape.number, name), newer_triggers(db, name, shape.number)
    if shape.table == table and there == create_triggers(shape.number, table, uniques) and not overtaking:
        return
    report.changed.append(name)
    recorder = there.get(trigger_name(shape.number, "after_insert"))
    if seen is not None and (why := _gap(db, shape, table, uniques, seen)):
        report.gaps[name] = why
    drop_triggers(db, shape.number)
    if shape.table == table:  # an index came or went, or the triggers are of an earlier version
        _create(db, shape.number, table, uniques)
        return
    then = tuple(c.name for c in shape.table.columns)
    now = recorded_names(recorder, len(then)) if recorder else then
    renamed = tuple((was, is_now) for was, is_now in zip(then, now, strict=True) if was != is_now)
    number = _describe(db, table, "alter", sql, shape.number, renamed)
    _create(db, number, table, uniques)
    _say(db, number)
    if seen is not None and recorder:
        _complete(db, shape, number, table, now, seen, report)


def _gap(
    db: sqlite3.Connection, shape: _Shape, table: SqliteTable, uniques: Sequence[UniqueIndex], seen: int
) -> str | None:
    """Why changes after `seen` may be missing, or stand in the wrong order."""
    there = _triggers(db, shape.number, table.name)
    needed = {trigger_name(shape.number, kind) for kind in ("after_insert", "after_update", "after_delete")}
    if missing := needed - there.keys():
        what = "triggers were removed" if len(missing) < len(needed) else "it was made anew, or its triggers removed"
        return f"{what}: changes until they were installed again are not recorded"
    changed = f"SELECT 1 FROM {CHANGES} WHERE change_id > ? AND shape = ?"
    if not db.execute(changed, [seen, shape.number]).fetchone():
        return None
    known = there.get(trigger_name(shape.number, "before_insert"), "")
    if any(condition not in known for condition in unique_conditions(table, uniques)):
        return "a unique index was made: rows that REPLACE deleted until the triggers knew it are not recorded"
    newer = newer_triggers(db, table.name, shape.number).values()
    if any(trigger_names_table(sql, table.name) for sql in newer):
        return "a trigger that writes to it was made: until ours ran before it, changes may stand in the wrong order"
    return None


def _complete(
    db: sqlite3.Connection,
    old: _Shape,
    number: int,
    table: SqliteTable,
    now: Sequence[str],
    seen: int,
    report: InstallReport,
) -> None:
    """Rows that were changed between the ALTER and now were recorded without the new columns: they follow whole, as
    they are now."""
    if {c.name for c in table.columns} <= set(now):
        return
    count, places = len(old.table.columns), {name: i for i, name in enumerate(now)}
    if not table.key or not set(table.key) <= places.keys():
        changed = f"SELECT 1 FROM {CHANGES} WHERE change_id > ? AND shape = ?"
        if db.execute(changed, [seen, old.number]).fetchone():
            report.gaps[table.name] = "columns were added, and its changes since then lack them: it has no primary key"
        return
    keys = ", ".join(f"x.{quote(name)}" for name in table.key)
    inserted = ", ".join(f"v{places[name]}" for name in table.key)
    updated = ", ".join(f"v{count + places[name]}" for name in table.key)
    one = f"FROM {CHANGES} WHERE change_id > ?1 AND shape = ?2 AND op ="
    wide = 2 * len(table.columns)
    db.execute(
        f"INSERT INTO {CHANGES} (shape, op, at, {values(wide)})"
        f" SELECT {number}, {UPDATE}, {NOW}, {row_list(table, 'x')}, {row_list(table, 'x')} FROM {quote(table.name)}"
        f" AS x WHERE ({keys}) IN (SELECT {inserted} {one} {INSERT} UNION SELECT {updated} {one} {UPDATE})",
        [seen, old.number],
    )


def _retire(db: sqlite3.Connection, there: set[str], current: dict[str, _Shape], report: InstallReport) -> None:
    """Tables that are gone, and those that no reader wants any more."""
    readers = [patterns_of(json.loads(row[0])) for row in db.execute(f"SELECT tables FROM {READERS}").fetchall()]
    for name, shape in current.items():
        if name in there and any(is_selected(patterns, name) for patterns in readers):
            continue
        drop_triggers(db, shape.number)
        db.execute(f"UPDATE {SHAPES} SET current = 0 WHERE shape = ?", [shape.number])
        if name not in there:
            _say(db, _describe(db, shape.table, "drop", f"DROP TABLE {quote(name)}", shape.number))
            report.changed.append(name)


def _describe(
    db: sqlite3.Connection,
    table: SqliteTable,
    kind: str,
    text: str,
    previous: int | None,
    renamed: Sequence[tuple[str, str]] = (),
) -> int:
    if previous is not None:
        db.execute(f"UPDATE {SHAPES} SET current = 0 WHERE shape = ?", [previous])
    cursor = db.execute(
        f"INSERT INTO {SHAPES} (name, current, kind, text, document, renamed, previous) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [table.name, kind != "drop", kind, text, table.to_json(), json.dumps(renamed), previous],
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _say(db: sqlite3.Connection, shape: int) -> None:
    db.execute(f"INSERT INTO {CHANGES} (shape, op, at) VALUES (?, {DDL}, {NOW})", [shape])


def _create(db: sqlite3.Connection, shape: int, table: SqliteTable, uniques: Sequence[UniqueIndex]) -> None:
    _widen(db, CHANGES, 2 * len(table.columns))
    _widen(db, REPLACED, len(table.columns))
    for statement in create_triggers(shape, table, uniques).values():
        db.execute(statement)


def _widen(db: sqlite3.Connection, name: str, count: int) -> None:
    for i in range(width(db, name), count):
        db.execute(f"ALTER TABLE {name} ADD COLUMN v{i}")


def width(db: sqlite3.Connection, name: str = CHANGES) -> int:
    """How many values a row has room for."""
    (count,) = db.execute("SELECT count(*) FROM pragma_table_info(?) WHERE name GLOB 'v[0-9]*'", [name]).fetchone()
    return int(count)


def _triggers(db: sqlite3.Connection, shape: int, table: str) -> dict[str, str]:
    """Ours that are on the table. They go along with one that is renamed, even if its name is taken anew."""
    rows = db.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name GLOB ? AND tbl_name = ?",
        [f"{OWN}{shape}_*", table],
    )
    return {str(name): str(sql) for name, sql in rows}


def newer_triggers(db: sqlite3.Connection, table: str, shape: int) -> dict[str, str]:
    """The application's that were made after ours. SQLite runs the latest first: what it writes to the same table would
    be recorded before that which it follows from."""
    rows = db.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? AND name NOT GLOB ? AND rowid >"
        " (SELECT min(rowid) FROM sqlite_schema WHERE type = 'trigger' AND name GLOB ?)",
        [table, f"{OWN}*", f"{OWN}{shape}_*"],
    )
    return {str(name): str(sql) for name, sql in rows}


def drop_triggers(db: sqlite3.Connection, shape: int) -> None:
    rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB ?", [f"{OWN}{shape}_*"])
    for (trigger,) in rows.fetchall():
        db.execute(f"DROP TRIGGER {quote(trigger)}")


def _check_capturable(table: SqliteTable, where: str) -> None:
    refuse = partial(TableUncapturable, where=where)
    if len(table.columns) > _MOST_COLUMNS:
        raise refuse(
            f"{full_name(table.name)} has {len(table.columns)} columns, and {_MOST_COLUMNS} can be recorded",
            fix="Name the tables that are meant in `tables`, without this one.",
        )
    if not table.without_rowid and rowid_name(table) is None:
        raise refuse(
            f"columns of {full_name(table.name)} take all three names of its rowid",
            fix="Rename one of rowid, oid and _rowid_, or name other tables in `tables`.",
        )


def remove(db: sqlite3.Connection, reader: str) -> list[str]:
    """Inside a write transaction. The reader goes; with the last one everything of ours. Answers what was dropped."""
    if not db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", [READERS]).fetchone():
        return []
    db.execute(f"DELETE FROM {READERS} WHERE name = ?", [reader])
    gaps.forget(db, reader)
    if db.execute(f"SELECT 1 FROM {READERS}").fetchone():
        return []
    kinds = {"trigger": "TRIGGER", "table": "TABLE"}
    rows = db.execute(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'trigger') AND substr(name, 1, ?) = ?"
        " ORDER BY type DESC, name",
        [len(OWN), OWN],
    ).fetchall()
    for kind, name in rows:
        db.execute(f"DROP {kinds[kind]} {quote(name)}")
    return [f"{kind} {name}" for kind, name in rows]
