"""What is made in the file: the change table, a description of each table that is recorded, and its triggers.

`install` brings all of it up to date with the tables as they are, in one write transaction: idempotent, and called
again whenever the schema has changed. So a change that was recorded before it has the old description, one after it
the new one (invariant 6), and what it inserts itself (a row that says that a table changed) is its own transaction.
`is_installed` looks whether there is anything to do, and writes nothing.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidemill.decoders.sqlite import SqliteTable
from tidemill.sources._shared.patterns import Pattern
from tidemill.sources._shared.sqlite_catalog import OWN, quote, read_table, table_names
from tidemill.sources._shared.sqlite_names import is_selected, patterns_of
from tidemill.sources._shared.sqlite_writes import WriteGraph
from tidemill.sources.sqlite import gaps
from tidemill.sources.sqlite.conflicts import TriggerSpec, are_known
from tidemill.sources.sqlite.errors import TableUncapturable
from tidemill.sources.sqlite.limits import MOST_COLUMNS, find_obstacle
from tidemill.sources.sqlite.removal import drop_everything
from tidemill.sources.sqlite.resume import identity, last_number
from tidemill.sources.sqlite.specs import MadeTriggers, find_misplaced, read_spec, read_writes
from tidemill.sources.sqlite.triggers import (
    AFTER_KINDS,
    CHANGES,
    DDL,
    INSERT,
    META,
    NOW,
    READERS,
    REPLACED,
    SHAPES,
    TRUNCATE,
    UPDATE,
    create_triggers,
    know_old_rows,
    recorded_names,
    row_list,
    trigger_name,
    values,
)

_TABLES = (
    f"CREATE TABLE IF NOT EXISTS {META} (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    f"CREATE TABLE IF NOT EXISTS {SHAPES} (shape INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, current INTEGER,"
    " kind TEXT, text TEXT, document TEXT, renamed TEXT, previous INTEGER)",
    f"CREATE TABLE IF NOT EXISTS {READERS} (name TEXT PRIMARY KEY, confirmed INTEGER, tables TEXT, known TEXT)"
    " WITHOUT ROWID",
)
_REPLACED = f"CREATE TABLE {REPLACED} (shape, own, at, rid, "  # and the values of a row


@dataclass(frozen=True, slots=True)
class SetupRequest:
    """Who wants what. `seen`: no change up to this one was recorded after the schema changed; None where the reader
    begins now, and then what other readers have delivered stands for it. `recopy_rows`: a table of which changes may be
    missing is recorded anew, all of its rows, unless it has more."""

    reader: str
    tables: Sequence[str]
    seen: int | None
    where: str
    recopy_rows: int = 0


@dataclass(slots=True)
class InstallReport:
    """`gaps`: tables, and why changes of theirs may be missing; `copied`: those of which all rows follow therefore."""

    changed: list[str] = field(default_factory=list)
    gaps: dict[str, str] = field(default_factory=dict)
    copied: dict[str, str] = field(default_factory=dict)
    schema_version: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    number: int
    table: SqliteTable


@dataclass(frozen=True, slots=True)
class _Reader:
    """`known`: the tables of the file at its last look."""

    name: str
    confirmed: int
    patterns: tuple[Pattern, ...]
    known: frozenset[str]

    @classmethod
    def of(cls, name: str, confirmed: int, tables: str, known: str) -> _Reader:
        return cls(name, confirmed, patterns_of(json.loads(tables)), frozenset(json.loads(known)))


def is_installed(db: sqlite3.Connection, reader: str, tables: Sequence[str]) -> int | None:
    """Inside a transaction. The version of the schema for which all is as `install` would leave it; else None."""
    row = db.execute("SELECT sql FROM sqlite_schema WHERE name = ?", [REPLACED]).fetchone()
    if identity(db) is None or row is None or not row[0].startswith(_REPLACED):
        return None
    found, patterns, current = table_names(db), patterns_of(tables), _current(db)
    row = db.execute(f"SELECT tables, known FROM {READERS} WHERE name = ?", [reader]).fetchone()
    if row != (json.dumps(list(tables)), json.dumps(sorted(found))) or _find_unwanted(db, found, current):
        return None
    writes, made = read_writes(db), MadeTriggers.read(db)
    for name, sql in found.items():
        if not is_selected(patterns, name):
            continue
        if name not in current or not _is_recorded(made, current[name], read_spec(db, name, sql, writes), writes):
            return None
    (version,) = db.execute("PRAGMA schema_version").fetchone()
    return int(version)


def install(db: sqlite3.Connection, request: SetupRequest) -> InstallReport:
    """Inside a write transaction."""
    return _Installation(db, request).run()


class _Installation:
    def __init__(self, db: sqlite3.Connection, request: SetupRequest) -> None:
        self._db, self._request = db, request
        self._report = InstallReport()
        self._writes, self._made = read_writes(db), MadeTriggers.read(db)
        self._seen = request.seen

    def run(self) -> InstallReport:
        db, request, report = self._db, self._request, self._report
        found, patterns = table_names(db), patterns_of(request.tables)
        _create_tables(db, [name for name in found if is_selected(patterns, name)])
        self._forget_gone(set(found))
        readers = [_Reader.of(*row) for row in db.execute(f"SELECT name, confirmed, tables, known FROM {READERS}")]
        if self._seen is None:
            self._seen = min((reader.confirmed for reader in readers), default=None)
        db.execute(
            f"INSERT INTO {READERS} VALUES (?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET tables = excluded.tables, known = excluded.known",
            [request.reader, last_number(db), json.dumps(list(request.tables)), json.dumps(sorted(found))],
        )
        db.execute(f"DELETE FROM {REPLACED}")  # left by statements that are over
        current = _current(db)
        self._retire(set(found), current)
        for name, sql in found.items():
            if is_selected(patterns, name):
                spec = read_spec(db, name, sql, self._writes)
                if obstacle := find_obstacle(spec.table):
                    raise TableUncapturable(obstacle[0], where=request.where, fix=obstacle[1])
                if name in current:
                    self._follow(current[name], spec, sql)
                else:
                    self._add(spec, sql, fresh=any(self._misses(reader, name) for reader in readers))
        for reader in readers:
            lacking = {table: why for table, why in report.gaps.items() if is_selected(reader.patterns, table)}
            gaps.record(db, lacking, reader.name)
        if request.reader not in {reader.name for reader in readers}:
            # What was recorded here is for the others: a new reader begins after it.
            db.execute(f"UPDATE {READERS} SET confirmed = ? WHERE name = ?", [last_number(db), request.reader])
        (report.schema_version,) = db.execute("PRAGMA schema_version").fetchone()
        return report

    def _forget_gone(self, there: set[str]) -> None:
        """A table that comes to have the name of one that is gone now is new to every reader, also to one that rests
        until then."""
        for reader, known in self._db.execute(f"SELECT name, known FROM {READERS}").fetchall():
            kept = json.dumps(sorted(there.intersection(json.loads(known))))
            if kept != known:
                self._db.execute(f"UPDATE {READERS} SET known = ? WHERE name = ?", [kept, reader])

    def _misses(self, reader: _Reader, table: str) -> bool:
        """Whether the table was made after this reader's last look, and is wanted by it."""
        wants = reader.name == self._request.reader or is_selected(reader.patterns, table)
        return wants and table not in reader.known

    def _add(self, spec: TriggerSpec, sql: str, *, fresh: bool) -> None:
        """A table that was not recorded. A fresh one was made after a reader's last look, and so was all that is in
        it."""
        number = self._describe(spec.table, "create" if fresh else "first", sql, None)
        self._create(number, spec)
        if fresh:
            self._say(number)
            self._record_rows(number, spec.table)
        self._report.changed.append(spec.table.name)

    def _follow(self, shape: _Shape, spec: TriggerSpec, sql: str) -> None:
        """A table that is recorded, and may have changed since."""
        db, table = self._db, spec.table
        if _is_recorded(self._made, shape, spec, self._writes):
            return
        self._report.changed.append(table.name)
        there = self._made.ours(shape.number, table.name)
        recorder = there.get(trigger_name(shape.number, "after_insert"))
        then = tuple(c.name for c in shape.table.columns)
        now = recorded_names(recorder, len(then)) if recorder else then
        renamed = tuple((was, is_now) for was, is_now in zip(then, now, strict=True) if was != is_now)
        why = self._gap(shape, spec, there, dict(renamed)) if self._seen is not None else ""
        drop_triggers(db, shape.number)
        number = shape.number
        if shape.table != table:  # else an index or a trigger came or went, or ours are of an earlier version
            number = self._describe(table, "alter", sql, shape.number, renamed)
        self._create(number, spec)
        if number != shape.number:
            self._say(number)
            if self._seen is not None and recorder and not why:
                why = self._complete(shape, number, table, now)
        if why and self._is_small(table):
            self._say(number, TRUNCATE)
            self._record_rows(number, table)
            self._report.copied[table.name] = why
        elif why:
            self._report.gaps[table.name] = why

    def _gap(self, shape: _Shape, spec: TriggerSpec, there: dict[str, str], renamed: dict[str, str]) -> str:
        """Why changes after `seen` may be missing, or stand in the wrong order; empty where they do not."""
        needed = {trigger_name(shape.number, kind) for kind in AFTER_KINDS}
        if missing := needed - there.keys():
            what = (
                "triggers were removed" if len(missing) < len(needed) else "it was made anew, or its triggers removed"
            )
            return f"{what}: changes until they were installed again are not recorded"
        if not self._has_changed(shape):
            return ""
        known = there.get(trigger_name(shape.number, "before_insert"), "")
        former = {now.lower(): was.lower() for was, now in renamed.items()}
        if not are_known(spec.uniques, known, former):
            return "a unique index was made: rows that REPLACE deleted until the triggers knew it are not recorded"
        late = find_misplaced(self._made, spec.table.name, shape.number, self._writes).late
        if any(map(self._writes.returns, late)):
            return (
                "a trigger that writes to it was made: until ours ran before it, changes may stand in the wrong order"
            )
        if not know_old_rows(shape.number, spec, there):
            return "a trigger or foreign key that bears on it was made: until ours knew it, changes may be missing"
        return ""

    def _has_changed(self, shape: _Shape) -> bool:
        changed = f"SELECT 1 FROM {CHANGES} WHERE change_id > ? AND shape = ?"
        return self._db.execute(changed, [self._seen, shape.number]).fetchone() is not None

    def _is_small(self, table: SqliteTable) -> bool:
        most = self._request.recopy_rows
        rows = self._db.execute(f"SELECT count(*) FROM (SELECT 1 FROM {quote(table.name)} LIMIT ?)", [most + 1])
        return 0 < most >= int(rows.fetchone()[0])

    def _complete(self, old: _Shape, number: int, table: SqliteTable, now: Sequence[str]) -> str:
        """Rows that were changed between the ALTER and now were recorded without the new columns: they follow whole, as
        they are now. Why they cannot, where that is so."""
        if {c.name for c in table.columns} <= set(now):
            return ""
        count, places = len(old.table.columns), {name: i for i, name in enumerate(now)}
        if not table.key or not set(table.key) <= places.keys():
            lacking = "columns were added, and its changes since then lack them: it has no primary key"
            return lacking if self._has_changed(old) else ""
        keys = ", ".join(f"x.{quote(name)} COLLATE BINARY" for name in table.key)
        inserted = ", ".join(f"v{places[name]}" for name in table.key)
        updated = ", ".join(f"v{count + places[name]}" for name in table.key)
        one = f"FROM {CHANGES} WHERE change_id > ?1 AND shape = ?2 AND op ="
        wide = 2 * len(table.columns)
        self._db.execute(
            f"INSERT INTO {CHANGES} (shape, op, at, {values(wide)}) SELECT {number}, {UPDATE}, {NOW},"
            f" {row_list(table, 'x')}, {row_list(table, 'x')} FROM {quote(table.name)} AS x"
            f" WHERE ({keys}) IN (SELECT {inserted} {one} {INSERT} UNION SELECT {updated} {one} {UPDATE})",
            [self._seen, old.number],
        )
        return ""

    def _retire(self, there: set[str], current: dict[str, _Shape]) -> None:
        for name in _find_unwanted(self._db, there, current):
            shape = current[name]
            drop_triggers(self._db, shape.number)
            self._db.execute(f"UPDATE {SHAPES} SET current = 0 WHERE shape = ?", [shape.number])
            if name not in there:
                self._say(self._describe(shape.table, "drop", f"DROP TABLE {quote(name)}", shape.number))
                self._report.changed.append(name)

    def _describe(
        self,
        table: SqliteTable,
        kind: str,
        text: str,
        previous: int | None,
        renamed: Sequence[tuple[str, str]] = (),
    ) -> int:
        if previous is not None:
            self._db.execute(f"UPDATE {SHAPES} SET current = 0 WHERE shape = ?", [previous])
        cursor = self._db.execute(
            f"INSERT INTO {SHAPES} (name, current, kind, text, document, renamed, previous)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [table.name, kind != "drop", kind, text, table.to_json(), json.dumps(renamed), previous],
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def _say(self, shape: int, op: int = DDL) -> None:
        self._db.execute(f"INSERT INTO {CHANGES} (shape, op, at) VALUES (?, ?, {NOW})", [shape, op])

    def _record_rows(self, number: int, table: SqliteTable) -> None:
        self._db.execute(
            f"INSERT INTO {CHANGES} (shape, op, at, {values(len(table.columns))})"
            f" SELECT {number}, {INSERT}, {NOW}, {row_list(table, 'x')} FROM {quote(table.name)} AS x"
        )

    def _create(self, shape: int, spec: TriggerSpec) -> None:
        """Ours that run before a change come after BEFORE triggers of the application that write to the same table, and
        SQLite runs the latest first (ADR 65): so these are made again, as they are, in the order that they had."""
        db, table = self._db, spec.table
        _widen(db, CHANGES, 2 * len(table.columns))
        _widen(db, REPLACED, len(table.columns))
        statements = create_triggers(shape, spec)
        after = {trigger_name(shape, kind) for kind in AFTER_KINDS}
        for name, statement in statements.items():
            if name not in after:
                db.execute(statement)
        if self._writes.first_triggers(table.name):
            for trigger in self._writes.triggers(table.name):
                if trigger.before:
                    db.execute(f"DROP TRIGGER {quote(trigger.name)}")
                    db.execute(trigger.sql)
        for name in after:
            db.execute(statements[name])


def _create_tables(db: sqlite3.Connection, names: Sequence[str]) -> None:
    """At once as wide as these tables need: a column that is added later costs a new look at the whole schema."""
    if identity(db) is None:  # there is nothing, or somebody dropped a part of it, and the rest is of no use
        drop_everything(db)
    for statement in _TABLES:
        db.execute(statement)
    db.execute(f"INSERT OR IGNORE INTO {META} VALUES ('identity', ?)", [secrets.token_hex(8)])
    made = dict(db.execute("SELECT name, sql FROM sqlite_schema WHERE name IN (?, ?)", [CHANGES, REPLACED]).fetchall())
    widest = min(max((len(read_table(db, name).columns) for name in names), default=1), MOST_COLUMNS)
    if CHANGES not in made:
        head = "change_id INTEGER PRIMARY KEY AUTOINCREMENT, shape, op, at"
        db.execute(f"CREATE TABLE {CHANGES} ({head}, {values(2 * widest)})")
    if not made.get(REPLACED, "").startswith(_REPLACED):  # it is of an earlier version
        db.execute(f"DROP TABLE IF EXISTS {REPLACED}")
        db.execute(f"{_REPLACED}{values(max(widest, width(db) // 2))})")


def _current(db: sqlite3.Connection) -> dict[str, _Shape]:
    rows = db.execute(f"SELECT shape, name, document FROM {SHAPES} WHERE current")
    return {name: _Shape(number, SqliteTable.from_json(document)) for number, name, document in rows}


def _find_unwanted(
    db: sqlite3.Connection, there: Sequence[str] | set[str] | dict[str, str], current: dict[str, _Shape]
) -> list[str]:
    """Recorded tables that are gone, and those that no reader wants any more."""
    readers = [patterns_of(json.loads(row[0])) for row in db.execute(f"SELECT tables FROM {READERS}").fetchall()]
    return [n for n in current if n not in there or not any(is_selected(patterns, n) for patterns in readers)]


def _is_recorded(made: MadeTriggers, shape: _Shape, spec: TriggerSpec, writes: WriteGraph) -> bool:
    """Whether its triggers are there as they should be."""
    name = spec.table.name
    return (
        shape.table == spec.table
        and made.ours(shape.number, name) == create_triggers(shape.number, spec)
        and not find_misplaced(made, name, shape.number, writes)
    )


def _widen(db: sqlite3.Connection, name: str, count: int) -> None:
    for i in range(width(db, name), count):
        db.execute(f"ALTER TABLE {name} ADD COLUMN v{i}")


def width(db: sqlite3.Connection, name: str = CHANGES) -> int:
    """How many values a row has room for."""
    (count,) = db.execute("SELECT count(*) FROM pragma_table_info(?) WHERE name GLOB 'v[0-9]*'", [name]).fetchone()
    return int(count)


def drop_triggers(db: sqlite3.Connection, shape: int) -> None:
    rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB ?", [f"{OWN}{shape}_*"])
    for (trigger,) in rows.fetchall():
        db.execute(f"DROP TRIGGER {quote(trigger)}")
