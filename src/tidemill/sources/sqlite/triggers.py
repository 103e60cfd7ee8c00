"""The triggers that record changes, as SQL text. docs/sqlite.md says what each is for.

A value is recorded as it is: the columns of the change table have no affinity, so that storage class, bytes and bits
stay. REPLACE deletes rows without firing their DELETE triggers (unless PRAGMA recursive_triggers is on), so the rows
that stand in the way of a new one are noted before it comes, and recorded as deleted once they are gone. A note counts
in its own statement only, which is known by the time: 'now' is the same all through a statement
(https://sqlite.org/lang_datefunc.html), and VACUUM, which may give rows other rowids, is another one.

Where a statement may meet another one on the same table in its middle (`nested`: a BEFORE trigger of the application,
an action of a foreign key), what OLD and NEW say may have been overtaken. There our BEFORE triggers run after the
application's (ADR 65), note the row as it is then, and what else came in between follows as a change of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import ClassVar

from tidemill.decoders.sqlite import SqliteTable
from tidemill.sources._shared.sqlite_catalog import OWN, quote
from tidemill.sources.sqlite.conflicts import ConflictSql, TriggerSpec

CHANGES, SHAPES, READERS = f"{OWN}changes", f"{OWN}shapes", f"{OWN}readers"
REPLACED, META = f"{OWN}replaced", f"{OWN}meta"
INSERT, UPDATE, DELETE, TRUNCATE, DDL = 1, 2, 3, 4, 6

#: Milliseconds since 1970, by the writer's clock. `unixepoch('subsec')` needs SQLite 3.42.
NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"

#: What a note is of: a row that may be deleted without a word, the one that a statement is about, or one that was in
#: the way and is recorded as deleted, while the statement that did it may delete more.
_IN_THE_WAY, _UPDATED, _DELETED, _ADDED, _GONE = 0, 1, 2, 3, 4

_MOST_TELLING = 50  # columns by which an INSERT is known again

BEFORE_KINDS = ("before_insert", "before_update", "before_delete")
AFTER_KINDS = ("after_insert", "after_update", "after_delete")


def trigger_name(shape: int, kind: str) -> str:
    return f"{OWN}{shape}_{kind}"


def values(count: int, first: int = 0) -> str:
    return ", ".join(f"v{i}" for i in range(first, first + count))


def rowid_name(table: SqliteTable) -> str | None:
    """How the rowid can be named: a column may hide one of its names."""
    taken = {c.name.lower() for c in table.columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)


def every(conditions: Sequence[str], most: int = 50) -> str:
    """All of them, in groups: an expression of SQLite is at most 1,000 deep."""
    groups = [" AND ".join(conditions[at : at + most]) for at in range(0, len(conditions), most)]
    return " AND ".join(f"({group})" for group in groups)


def row_list(table: SqliteTable, row: str) -> str:
    """All columns of a row, in order."""
    return ", ".join(f"{row}.{quote(c.name)}" for c in table.columns)


def create_triggers(shape: int, spec: TriggerSpec) -> dict[str, str]:
    """By name. Texts stand in the file as they are here, until a column or the table is renamed: then SQLite puts the
    new name into them."""
    bodies = _kind_of(spec)(shape, spec).bodies()
    return {
        trigger_name(shape, kind): f"CREATE TRIGGER {quote(trigger_name(shape, kind))} {body}"
        for kind, body in bodies.items()
    }


def know_old_rows(shape: int, spec: TriggerSpec, there: Mapping[str, str]) -> bool:
    """Whether these triggers note a row before it is changed, if those of the table must: what OLD and NEW say may not
    be what is stored. Where keys are mixed, they must look for it by either form of its key."""
    known, wanted = there.get(trigger_name(shape, "before_delete")), _kind_of(spec).notes_old
    return wanted is None or (known is not None and wanted in known)


def _kind_of(spec: TriggerSpec) -> type[_Triggers]:
    if spec.mixed and spec.table.without_rowid:
        return _MixedKeyTriggers
    return _NestedTriggers if spec.nested or spec.mixed else _Triggers


def recorded_names(after_insert: str, count: int) -> tuple[str, ...]:
    """The columns that a trigger records, by the names that they have now."""
    names = re.findall(r'(?:NEW|x)\."((?:[^"]|"")*)"', after_insert.rpartition(_INSERTED)[2])
    return tuple(name.replace('""', '"') for name in names[:count])


_INSERTED = "/* the new row */"


class _Triggers:
    """Of a table whose statements do not meet each other."""

    #: A comment in the trigger that notes the row that a statement is about; None where none does.
    notes_old: ClassVar[str | None] = None

    def __init__(self, shape: int, spec: TriggerSpec) -> None:
        self.shape, self.spec, self.table = shape, spec, spec.table
        self.count, self.name = len(spec.table.columns), quote(spec.table.name)
        self.into = f"INSERT INTO {CHANGES} (shape, op, at, {values(self.count)})"
        self.into_both = f"INSERT INTO {CHANGES} (shape, op, at, {values(2 * self.count)})"
        self.notes = self.noted = f"{REPLACED}.shape = {shape} AND {REPLACED}.own = {_IN_THE_WAY}"

    def bodies(self) -> dict[str, str]:
        table, name, here = self.table, self.name, f"SELECT 1 FROM {self.name} AS x WHERE"
        sql = ConflictSql(self.spec, rowid_name(table))
        conflict, others = sql.conflict(), f"({sql.conflict()}) AND NOT ({self.same('x', 'OLD')})"
        clear = f"DELETE FROM {REPLACED} WHERE shape = {self.shape};"
        gone, replaced = self.find_gone(), self.find_gone(updated=True)
        return {
            "before_insert": f"BEFORE INSERT ON {name} WHEN EXISTS ({here} {conflict})"
            f" BEGIN {sql.marks()} {clear} {self.note(conflict)} END",
            "after_insert": f"AFTER INSERT ON {name} BEGIN {self.emit(gone)} {clear} {self.record_insert()} END",
            "before_update": f"BEFORE UPDATE ON {name} WHEN {sql.may_replace()}EXISTS ({here} {others})"
            f" BEGIN {sql.load_inputs()}{clear} {self.note(others)} END",
            "after_update": f"AFTER UPDATE ON {name} BEGIN {self.emit(replaced)}"
            f" DELETE FROM {REPLACED} WHERE {replaced}; {self.follow()}"
            f" {self.into_both} VALUES ({self.shape}, {UPDATE}, {NOW}, {row_list(table, 'OLD')},"
            f" {row_list(table, 'NEW')}); END",
            "after_delete": f"AFTER DELETE ON {name} BEGIN {self.forget()}"
            f" {self.into} VALUES ({self.shape}, {DELETE}, {NOW}, {row_list(table, 'OLD')}); END",
        }

    def note(self, condition: str, own: int = _IN_THE_WAY) -> str:
        """Rows as they are now."""
        return (
            f"INSERT INTO {REPLACED} (shape, own, at, rid, {values(self.count)}) SELECT {self.shape}, {own}, {NOW},"
            f" {self.rid('x')}, {row_list(self.table, 'x')} FROM {self.name} AS x WHERE {condition};"
        )

    def record_insert(self) -> str:
        return f"{self.into} VALUES ({_INSERTED} {self.shape}, {INSERT}, {NOW}, {row_list(self.table, 'NEW')});"

    def emit(self, gone: str) -> str:
        return f"{self.into} SELECT {self.shape}, {DELETE}, {NOW}, {values(self.count)} FROM {REPLACED} WHERE {gone};"

    def find_gone(self, *, updated: bool = False) -> str:
        """Notes of rows that are not there any more, or whose place the new row has. `updated`: the note of the row
        that was changed, if another statement has made one, is not of these."""
        kept = f" AND NOT ({self.of_updated()})" if updated else ""
        return f"{self.noted} AND at = {NOW}{kept} AND (({self.of('NEW')}) OR {self.absent()})"

    def absent(self, note: str = REPLACED) -> str:
        return f"NOT EXISTS (SELECT 1 FROM {self.name} AS x WHERE {self.at_key(note)})"

    def at_key(self, note: str = REPLACED) -> str:
        """`x` has the place of the noted row."""
        return " AND ".join(f"x.{k} = {note}.{v} AND x.{k} IS {note}.{v} COLLATE BINARY" for k, v in self.keys())

    def follow(self) -> str:
        """A noted row that is changed is still in the way."""
        columns = ", ".join(f"v{i} = NEW.{quote(c.name)}" for i, c in enumerate(self.table.columns))
        return f"UPDATE {REPLACED} SET rid = {self.rid('NEW')}, {columns} WHERE {self.notes} AND {self.of('OLD')};"

    def forget(self) -> str:
        return f"DELETE FROM {REPLACED} WHERE {self.notes} AND {self.of('OLD')};"

    def keys(self) -> list[tuple[str, str]]:
        """What tells rows apart: (name in the table, column of the note)."""
        if not self.table.without_rowid:
            return [(rowid_name(self.table) or "rowid", "rid")]
        places = {c.name: i for i, c in enumerate(self.table.columns)}
        return [(quote(name), f"v{places[name]}") for name in self.table.key]

    def rid(self, row: str) -> str:
        return "NULL" if self.table.without_rowid else f"{row}.{rowid_name(self.table)}"

    def of(self, row: str) -> str:
        """The note is of this row."""
        return " AND ".join(f"{REPLACED}.{v} IS {row}.{k} COLLATE BINARY" for k, v in self.keys())

    def of_updated(self) -> str:
        """The note is of the row that was updated."""
        return self.of("OLD")

    def same(self, a: str, b: str) -> str:
        """A row `a` of the table is `b`. What is equal by the key's own collation is found by its index."""
        found = [f"{a}.{k} = {b}.{k}" for k, _ in self.keys() if self.table.without_rowid]
        return " AND ".join([*found, *(f"{a}.{k} IS {b}.{k} COLLATE BINARY" for k, _ in self.keys())])


class _NestedTriggers(_Triggers):
    """Of a table whose statements may meet each other, or where OLD and NEW may not be what is stored (`mixed`). The
    row that a statement is about is noted, too: one that it updates, to know how it was at last, and one that it
    deletes, because it is gone before the statement's own AFTER trigger runs. Whichever trigger runs first while a
    noted row is gone records that, so it comes before whatever takes its place. A new row is recorded as it stands in
    the table: what changed it before its trigger could record it was recorded before it.

    REPLACE deletes one row after the other, and what foreign keys do then runs these triggers, too. So until the
    statement is over for its own row (`end`), it keeps its notes, also those of rows that are recorded as deleted:
    they tell the others that it is under way, and that a row which they write may come to stand in its way."""

    notes_old = ""
    #: Notes that are forgotten if their change did not happen.
    ignorable: ClassVar[tuple[int, ...]] = (_UPDATED, _DELETED)

    def __init__(self, shape: int, spec: TriggerSpec) -> None:
        super().__init__(shape, spec)
        self.noted = f"{REPLACED}.shape = {shape} AND {REPLACED}.own IN ({_IN_THE_WAY}, {_DELETED})"
        self.new = f"FROM {self.name} AS x WHERE {self.same('x', 'NEW')}"
        self.gone = f"SELECT 1 FROM {REPLACED} AS g WHERE g.shape = {shape} AND g.own = {_GONE} AND g.at = {NOW}"

    def bodies(self) -> dict[str, str]:
        table, name, here = self.table, self.name, f"SELECT 1 FROM {self.name} AS x WHERE"
        sql = ConflictSql(self.spec, rowid_name(table), f"FROM {name} AS cur WHERE {self.same('cur', 'OLD')}")
        inserts, updates = sql.conflict(), f"({sql.conflict(moved=True)}) AND NOT ({self.same('x', 'OLD')})"
        stale = f"DELETE FROM {REPLACED} WHERE shape = {self.shape} AND at <> {NOW};"
        # While one of them is gone, a statement that deletes rows is under way, and may delete the others.
        first = f"n.own = {_GONE} OR (n.own = {_IN_THE_WAY} AND {self.absent('n')})"
        pending = f"SELECT 1 FROM {REPLACED} AS n WHERE n.shape = {self.shape} AND ({first})"
        clear = (
            f"{stale} DELETE FROM {REPLACED} WHERE shape = {self.shape} AND own IN ({_IN_THE_WAY}, {_ADDED})"
            f" AND NOT EXISTS ({pending}); {self.forget_ignored(pending)}"
        )
        updated, deleted = (self.note(self.same("x", "OLD"), own) for own in (_UPDATED, _DELETED))
        noted_inserts, noted_updates = (
            self.note(f"({rows}) AND {self.without_note('x')}") for rows in (inserts, updates)
        )
        gone, replaced = self.find_gone(), self.find_gone(updated=True)
        absent = f"{self.noted} AND at = {NOW} AND {self.absent()}"
        brought = f"{self.without_note('NEW')} AND EXISTS ({self.gone})"
        return {
            "before_insert": f"BEFORE INSERT ON {name} WHEN EXISTS ({here} {inserts})"
            f" BEGIN {sql.marks()} {clear} {self.note_insert()} {noted_inserts} END",
            "before_update": f"BEFORE UPDATE ON {name} BEGIN {sql.load_inputs()}{clear} {updated} {noted_updates} END",
            "before_delete": f"BEFORE DELETE ON {name} BEGIN {self.notes_old}{stale}"
            f" {self.forget_ignored(pending)} {self.forget()} {deleted} END",
            "after_insert": f"AFTER INSERT ON {name} BEGIN {self.emit(gone)} {self.settle(gone)}"
            f" {self.record_insert()} {self.end(self.note_of_insert())} {self.note_new(brought)} END",
            "after_update": f"AFTER UPDATE ON {name} BEGIN {self.emit(replaced)} {self.settle(replaced)}"
            f" {self.follow()} {self.record_update()} {self.end(self.last())}"
            f" {self.note_new(f'{brought} AND {sql.may_be_in_the_way()}')} END",
            "after_delete": f"AFTER DELETE ON {name} BEGIN {self.emit(absent)} {self.settle(absent)} END",
        }

    def settle(self, gone: str) -> str:
        """What was recorded is not recorded again."""
        return (
            f"UPDATE {REPLACED} SET own = {_GONE} WHERE own = {_IN_THE_WAY} AND {gone};"
            f" DELETE FROM {REPLACED} WHERE {gone};"
        )

    def note_insert(self) -> str:
        """What is there of the new row. Its rowid is -1 where SQLite has not chosen it yet."""
        columns = self.telling_columns()
        names = "".join(f", v{i}" for i in columns)
        new = "".join(f", NEW.{quote(self.table.columns[i].name)}" for i in columns)
        head = f"{self.shape}, {_ADDED}, {NOW}, {self.rid('NEW')}"
        return f"INSERT INTO {REPLACED} (shape, own, at, rid{names}) VALUES ({head}{new});"

    def note_of_insert(self) -> str:
        """The note of the INSERT whose row is NEW, the latest one."""
        pairs = [(i, quote(self.table.columns[i].name)) for i in self.telling_columns()]
        same = "".join(f" AND v{i} IS NEW.{name} COLLATE BINARY" for i, name in pairs)
        if not self.table.without_rowid:
            same = f" AND rid IN (-1, {self.rid('NEW')}){same}"
        return f"(SELECT max(rowid) FROM {REPLACED} WHERE shape = {self.shape} AND own = {_ADDED}{same})"

    def telling_columns(self) -> list[int]:
        """Columns by which an INSERT is known again: some that have after it what they had before it."""
        changing = {*self.spec.defaults, *(self.table.key if self.table.rowid_column is not None else ())}
        kept = [i for i, c in enumerate(self.table.columns) if c.name not in changing and not c.generated]
        return [] if self.spec.mixed else kept[:_MOST_TELLING]

    def end(self, note: str) -> str:
        """The statement with this note is over for its row. What it has noted goes, unless it stands in another one
        that is not over."""
        return (
            f"DELETE FROM {REPLACED} WHERE shape = {self.shape} AND rowid >= {note}"
            f" AND (rowid = {note} OR NOT EXISTS ({self.gone} AND g.rowid < {note}));"
        )

    def note_new(self, condition: str) -> str:
        return (
            f"INSERT INTO {REPLACED} (shape, own, at, rid, {values(self.count)}) SELECT {self.shape}, {_IN_THE_WAY},"
            f" {NOW}, {self.rid('x')}, {row_list(self.table, 'x')} {self.new} AND {condition};"
        )

    def without_note(self, row: str) -> str:
        return f"NOT EXISTS (SELECT 1 FROM {REPLACED} WHERE {self.notes} AND at = {NOW} AND {self.of(row)})"

    def forget_ignored(self, pending: str) -> str:
        """Notes of changes that did not happen: of OR IGNORE, or of a trigger that said RAISE(IGNORE) after ours. Their
        rows stand as they were; those of a change under way do not, except while REPLACE deletes others for it."""
        places = enumerate(self.table.columns)
        columns = every([f"x.{quote(c.name)} IS {REPLACED}.v{i} COLLATE BINARY" for i, c in places])
        kinds = ", ".join(map(str, self.ignorable))
        return (
            f"DELETE FROM {REPLACED} WHERE shape = {self.shape} AND own IN ({kinds}) AND NOT EXISTS ({pending})"
            f" AND EXISTS (SELECT 1 FROM {self.name} AS x WHERE {self.at_key()} AND {columns});"
        )

    def record_insert(self) -> str:
        return f"{self.into} SELECT {_INSERTED} {self.shape}, {INSERT}, {NOW}, {row_list(self.table, 'x')} {self.new};"

    def record_update(self) -> str:
        """A delete, where the row is gone again."""
        return (
            f"{self.into_both} SELECT {self.shape}, {UPDATE}, {NOW}, o.*, {row_list(self.table, 'x')}"
            f" FROM {self.old()} AS o, {self.name} AS x WHERE {self.same('x', 'NEW')};"
            f" {self.into} SELECT {self.shape}, {DELETE}, {NOW}, o.* FROM {self.old()} AS o"
            f" WHERE NOT EXISTS (SELECT 1 {self.new});"
        )

    def old(self) -> str:
        """The row that was updated, as it was at last."""
        return (
            f"(SELECT {values(self.count)} FROM {REPLACED} WHERE rowid = {self.last()}"
            f" UNION ALL SELECT {row_list(self.table, 'OLD')} WHERE {self.last()} IS NULL)"
        )

    def last(self) -> str:
        """Its note: of nested statements on one row, the inner one ends first."""
        return (
            f"(SELECT max(rowid) FROM {REPLACED} WHERE shape = {self.shape} AND own = {_UPDATED} AND {self.of('OLD')})"
        )

    def follow(self) -> str:
        return (
            f"UPDATE {REPLACED} SET (rid, {values(self.count)}) ="
            f" (SELECT {self.rid('x')}, {row_list(self.table, 'x')} {self.new})"
            f" WHERE {self.notes} AND {self.of_updated()} AND EXISTS (SELECT 1 {self.new});"
        )


class _MixedKeyTriggers(_NestedTriggers):
    """Of a table without a rowid, where keys in OLD and NEW may be numbers though they are stored as texts. The old key
    is taken from the note that was made of it; rows whose text is the new number are recorded as they stand."""

    notes_old = "/* by keys of either form */"
    ignorable = (_DELETED,)  # without its note an update under way would not know the old key

    def __init__(self, shape: int, spec: TriggerSpec) -> None:
        super().__init__(shape, spec)
        exact, found = self.same("y", "NEW"), " AND ".join(self.equal(f"y.{k}", f"NEW.{k}") for k, _ in self.keys())
        number = " OR ".join(f"typeof(NEW.{k}) IN ('integer', 'real')" for k, _ in self.keys())
        rows = f"SELECT {row_list(self.table, 'y')} FROM {self.name} AS y WHERE"
        # By the key's index, and only where that is a number, by all keys.
        self.new = f"FROM ({rows} {exact} UNION ALL {rows} ({number}) AND NOT ({exact}) AND {found}) AS x WHERE 1"

    def record_update(self) -> str:
        return f"{self.into} SELECT {self.shape}, {DELETE}, {NOW}, o.* FROM {self.old()} AS o; {self.record_insert()}"

    def last(self) -> str:
        found = " AND ".join(self.equal(f"n.{v}", f"OLD.{k}") for k, v in self.keys())
        exact = " AND ".join(f"n.{v} IS OLD.{k} COLLATE BINARY" for k, v in self.keys())
        return (
            f"(SELECT rowid FROM {REPLACED} AS n WHERE shape = {self.shape} AND own = {_UPDATED} AND {found}"
            f" ORDER BY {exact} DESC, rowid DESC LIMIT 1)"
        )

    def of_updated(self) -> str:
        return " AND ".join(
            f"{REPLACED}.{v} IS coalesce((SELECT m.{v} FROM {REPLACED} AS m WHERE m.rowid = {self.last()}), OLD.{k})"
            " COLLATE BINARY"
            for k, v in self.keys()
        )

    def equal(self, kept: str, given: str) -> str:
        number = f"typeof({given}) IN ('integer', 'real') AND {kept} = CAST({given} AS NUMERIC)"
        return f"({kept} IS {given} COLLATE BINARY OR (typeof({kept}) = 'text' AND {number}))"
