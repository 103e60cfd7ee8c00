"""Tables at the target: created from the source's, and changed as it changes. Called inside the delivery's transaction.

What a table was made of is kept in `tidemill_tables`, beside the positions: a column is renamed or dropped only if the
source had it, never because the target has one more. All of it happens under one advisory lock and looks at the catalog
again once it has the lock, so any number of lanes may meet a new table at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidemill.errors import Refused
from tidemill.model.position import Offset
from tidemill.model.table import Column, Table
from tidemill.schema.diff import Diff, diff
from tidemill.sinks._shared import unfollowed
from tidemill.sinks.postgres.copy_text import plain
from tidemill.sinks.postgres.exact import doubt
from tidemill.sinks.postgres.older import StructureMemories, is_replaced, places, renames
from tidemill.sinks.postgres.target import Target, TargetColumn, check_names, columns, has_unique, rewrite_rule
from tidemill.sinks.postgres.types import target_type, widens
from tidemill.telemetry.events import emit

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._shared.pg_client import Connection


@dataclass(frozen=True, slots=True)
class Rules:
    """What the configuration allows."""

    create: bool
    destructive: bool
    types: Mapping[str, str]
    append: bool  # tables without a key
    sink: str = ""


class PostgresTables:
    def __init__(self, db: Connection, state_schema: str, rules: Rules, where: str) -> None:
        self._db = db
        self._memories = StructureMemories(db, state_schema)
        self._rules = rules
        self._where = where

    def follow(
        self, table: Table, schema: str, name: str, since: Offset, *, source: str, redelivered: bool = False
    ) -> Target:
        """The target of this version of the table, whose rows come from `since` on; created or changed where it must
        be. Events of an older structure change nothing: their values go where their columns are now. That this table
        of `source` fills the target is noted."""
        writer = source, table.full_name
        self._check_structure(schema, name, table)
        found, memory = columns(self._db, schema, name), self._memories.recall(table, schema, name)
        if found and memory.is_newer(table, since, found, redelivered):
            return self._target(table, schema, name, found, memory.table)
        if not self._needs_change(table, found, memory.table) and writer in memory.writers:
            return self._target(table, schema, name, found)
        self._db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemill', 0))")
        found, memory = columns(self._db, schema, name), self._memories.recall(table, schema, name)
        unsaid: dict[str, str] = {}
        if not found:
            self._create(table, schema, name)
        elif memory.is_newer(table, since, found, redelivered):
            return self._target(table, schema, name, found, memory.table)
        elif self._needs_change(table, found, memory.table):
            unsaid = self._change(table, schema, name, found, memory.table, since)
        else:
            self._memories.remember(schema, name, memory.written_by(writer))
            return self._target(table, schema, name, found)
        self._memories.remember(schema, name, memory.then(table, since).written_by(writer))
        return self._target(table, schema, name, columns(self._db, schema, name), unsaid=unsaid)

    def plan(self, table: Table, schema: str, name: str, since: Offset) -> tuple[str, ...]:
        """The statements that `follow` would run at the target, in order. Runs none of them, and may come before the
        first delivery has made the sink's own tables."""
        self._check_structure(schema, name, table)
        found = columns(self._db, schema, name)
        memory = self._memories.recall(table, schema, name)
        if not found:
            statements = self._creation(table, schema, name)
        elif memory.is_newer(table, since, found, False) or not self._needs_change(table, found, memory.table):
            return ()
        else:
            steps, comments = self._changes(table, schema, name, found, memory.table, since)
            statements = [step for _, step in steps]
            statements += [self._comment(schema, name, column, text) for column, (_, text) in comments.items()]
        return tuple(statement.as_string(self._db) for statement in statements)

    def adopt(self, table: Table, schema: str, name: str, since: Offset) -> None:
        """Somebody made the target so: `follow` would rename and drop once more what has other names by now. Where the
        target lacks something, or has what should have gone, it was not made, and `follow` does it."""
        self._db.execute("SELECT pg_advisory_xact_lock(hashtextextended('tidemill', 0))")
        found, memory = columns(self._db, schema, name), self._memories.recall(table, schema, name)
        if memory.table is None or memory.is_newer(table, since, found, False):
            return
        known, wanted = memory.table, {c.name for c in table.columns}
        changes = diff(known, table)
        if wanted == found.keys() & (wanted | {c.name for c in known.columns}) and not any(
            self._alter(c, found[c.name], known, changes, table, schema, name) for c in table.columns
        ):
            self._memories.remember(schema, name, memory.then(table, since))

    def _check_structure(self, schema: str, name: str, table: Table) -> None:
        check_names(schema, name, table, self._where)
        if not table.key and not self._rules.append:
            raise Refused(
                f"the table {table.full_name} has no key, so its rows cannot be found again", where=self._where,
                fix="Give it a primary key, or set keyless: append for tables that only grow.",
            )  # fmt: skip

    def _needs_change(self, table: Table, found: Mapping[str, TargetColumn], known: Table | None) -> bool:
        if not found or known is None or not known.fingerprint or known.fingerprint != table.fingerprint:
            return True
        return any(c.name not in found for c in table.columns) or is_replaced(known, table)

    def _create(self, table: Table, schema: str, name: str) -> None:
        for statement in self._creation(table, schema, name):
            self._db.execute(statement)
        emit("sink.table_created", table=f"{schema}.{name}", columns=len(table.columns))

    def _creation(self, table: Table, schema: str, name: str) -> list[sql.Composed]:
        from psycopg import sql

        if not self._rules.create:
            raise Refused(
                f"the table {schema}.{name} does not exist", where=self._where,
                fix="Create it, or set create_tables: true.",
            )  # fmt: skip
        if self._db.execute("SELECT to_regclass(format('%%I.%%I', %s::text, %s::text))", [schema, name]).fetchone() != (
            None,
        ):
            raise Refused(
                f"{schema}.{name} is no table", where=self._where,
                fix="Views and foreign tables are not written; choose another name with `table`.",
            )  # fmt: skip
        parts = [self._definition(c, table) for c in table.columns]
        if table.key:
            parts.append(sql.SQL("PRIMARY KEY ({})").format(_names(table.key)))
        # Looked for first: IF NOT EXISTS asks for the privilege to create even where nothing is missing.
        known = self._db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone()
        made = [] if known else [sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema))]
        return [
            *made, sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(schema, name), sql.SQL(", ").join(parts))
        ]  # fmt: skip

    def _change(
        self,
        table: Table,
        schema: str,
        name: str,
        found: Mapping[str, TargetColumn],
        known: Table | None,
        since: Offset,
    ) -> dict[str, str]:
        """Answers what is to be said of columns whose comments are not ours to write."""
        steps, comments = self._changes(table, schema, name, found, known, since)
        for what, step in steps:
            self._db.execute(step)
            emit("sink.table_changed", table=f"{schema}.{name}", change=what)
        return self._say(schema, name, comments)

    def _changes(
        self,
        table: Table,
        schema: str,
        name: str,
        found: Mapping[str, TargetColumn],
        known: Table | None,
        since: Offset,
    ) -> tuple[list[tuple[str, sql.Composed]], dict[str, tuple[str, str]]]:
        """Statements, and then comments of columns: what is said, and with what stands there already."""
        from psycopg import sql

        target = sql.Identifier(schema, name)
        changes = diff(known, table) if known is not None else Diff()
        there = dict(found)
        # Before the others: one of them may take the name.
        gone = [c.name for c in changes.dropped if self._rules.destructive and there.pop(c.name, None) is not None]
        steps = [("dropped", sql.SQL("DROP COLUMN {}").format(sql.Identifier(column))) for column in gone]
        renaming, stuck = renames([(old.name, new.name) for old, new in changes.renamed], there)
        steps += renaming
        comments = {new.name: unfollowed.replaced_comment(since) for _, new in changes.replaced if new.name in there}
        comments |= {new: unfollowed.name_taken_comment(old, since) for old, new in stuck}
        comments |= {
            column.name: unfollowed.already_there_comment(since)
            for column in changes.added
            if column.name in there and self._differs(target, column, there[column.name])
        }
        occupied = self._db.execute(sql.SQL("SELECT 1 FROM {} LIMIT 1").format(target)).fetchone() is not None
        for column in table.columns:
            if column.name in there:
                steps += self._alter(column, there[column.name], known, changes, table, schema, name)
                continue
            # Rows that are there already may have no value for it, so it cannot be NOT NULL.
            kind = sql.SQL(target_type(column.type, self._rules.types))
            value, reason = self._initial(column)
            add = sql.SQL("ADD COLUMN {} {}").format(sql.Identifier(column.name), kind)
            if value is not None:
                add = sql.SQL("{} DEFAULT {}::{}").format(add, sql.Literal(value), kind)
            steps.append(("added", add))
            if value is not None:  # of the rows that are there; all others bring theirs
                steps.append(("filled", sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(sql.Identifier(column.name))))
            elif not unfollowed.is_known(column) or reason:
                comments[column.name] = unfollowed.added_comment(column, since, why=reason)
        names = {c.name for c in table.columns}
        for left in [c.name for c in changes.dropped] + [old for old, _ in stuck if old not in names]:
            if left not in gone and left in there and there[left].not_null:  # it stays, and new rows lack it
                steps.append(("kept", sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(left))))
        if steps and not self._rules.create:
            raise Refused(
                f"the table {schema}.{name} lacks changes of the source ({', '.join(sorted({w for w, _ in steps}))})",
                where=self._where, fix="Make them, or set create_tables: true.",
            )  # fmt: skip
        spoken = {
            column: (comment, "\n".join(filter(None, [there[column].comment if column in there else "", comment])))
            for column, comment in comments.items()
        }
        alters = [(what, sql.SQL("ALTER TABLE {} {}").format(target, step)) for what, step in steps]
        return alters, spoken if occupied else {}

    def _say(self, schema: str, name: str, comments: Mapping[str, tuple[str, str]]) -> dict[str, str]:
        """Writes comments; answers those of a table that belongs to somebody else."""
        import psycopg

        unsaid = {}
        for column, (comment, text) in comments.items():
            try:
                with self._db.transaction():  # a savepoint
                    self._db.execute(self._comment(schema, name, column, text))
            except psycopg.errors.InsufficientPrivilege:
                unsaid[column] = comment
        return unsaid

    def _differs(self, target: sql.Identifier, column: Column, found: TargetColumn) -> bool:
        """Whether some row has another value there than rows of the source got in this column."""
        import psycopg
        from psycopg import sql

        value, reason = self._initial(column)
        if found.generated:
            return False  # never ours to write
        if reason or not unfollowed.is_known(column):
            return True
        at, kind = sql.Identifier(column.name), sql.SQL(found.kind)
        statement = sql.SQL("SELECT 1 FROM {} WHERE {} IS DISTINCT FROM {}::{} LIMIT 1")
        try:
            with self._db.transaction():  # a savepoint: not every type can be compared
                answer = self._db.execute(statement.format(target, at, sql.Literal(value), kind)).fetchone()
        except psycopg.Error:
            return True
        return answer is not None

    def _initial(self, column: Column) -> tuple[str | None, str]:
        """The text of what rows that are there have in a new column; None for NULL and where that is not known. Second,
        why it cannot be had here."""
        import psycopg
        from psycopg import sql

        if column.initial is None or column.initial.value is None or not column.initial.value.is_valid:
            return None, ""
        value = plain(pa.repeat(column.initial.value, 1)).cast(pa.large_binary())[0].as_py().decode()
        kind = sql.SQL(target_type(column.type, self._rules.types))
        try:
            with self._db.transaction():  # a savepoint
                self._db.execute(sql.SQL("SELECT {}::{}").format(sql.Literal(value), kind))
        except psycopg.Error:
            return None, "the column's type at the destination does not take the value that they have at the source"
        return value, ""

    def _comment(self, schema: str, name: str, column: str, text: str | None) -> sql.Composed:
        from psycopg import sql

        return sql.SQL("COMMENT ON COLUMN {} IS {}").format(sql.Identifier(schema, name, column), sql.Literal(text))

    def _alter(
        self,
        column: Column,
        found: TargetColumn,
        known: Table | None,
        changes: Diff,
        table: Table,
        schema: str,
        name: str,
    ) -> list[tuple[str, sql.Composed]]:
        """Only what the source changed is changed: a type that the user chose for the target stays."""
        from psycopg import sql

        at = sql.Identifier(column.name)
        steps: list[tuple[str, sql.Composed]] = []
        renames = {new.name: old for old, new in changes.renamed}
        was = {c.name: c for c in known.columns} if known else {}
        before = renames.get(column.name) or was.get(column.name)
        if found.not_null and column.nullable and column.name not in table.key and before and not before.nullable:
            steps.append(("nullable", sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(at)))
        if before is None or before.type == column.type:
            return steps
        wanted = target_type(column.type, self._rules.types)
        if wanted == found.kind or widens(wanted, found.kind):
            return steps  # what is there holds every value
        if widens(found.kind, wanted) or self._rules.destructive:
            kind = sql.SQL(wanted)
            steps.append(("retyped", sql.SQL("ALTER COLUMN {} TYPE {} USING {}::{}").format(at, kind, at, kind)))
            return steps
        raise Refused(
            f"column {column.name} of {schema}.{name} is {found.kind} and became {wanted} at the source",
            where=self._where,
            fix="That may lose values. Change the column by hand, or set allow_destructive_ddl: true.",
        )

    def _target(
        self, table: Table, schema: str, name: str, found: Mapping[str, TargetColumn], newer: Table | None = None,
        *, unsaid: Mapping[str, str] | None = None,
    ) -> Target:  # fmt: skip
        """`newer`: the structure that the target has, where this one is older."""
        names = tuple(c.name for c in table.columns) if newer is None else places(table, newer, found)
        numbers = tuple(n for n, c in enumerate(names) if c in found and not found[c].generated)
        missing = [c.name for c in table.columns if newer is None and c.name not in found]
        if missing:
            raise Refused(
                f"the table {schema}.{name} has no column {', '.join(missing)}", where=self._where,
                fix="Add it, or set create_tables: true.",
            )  # fmt: skip
        by_name = {c.name: n for n, c in enumerate(table.columns)}
        key = tuple(by_name[k] for k in table.key)
        if key and not has_unique(self._db, schema, name, tuple(names[n] for n in key)):
            raise Refused(
                f"the table {schema}.{name} has no unique index on its key ({', '.join(table.key)})", where=self._where,
                fix="Create one on exactly these columns; updates and deletes find their rows by it.",
            )  # fmt: skip
        counted = tuple(n for n in numbers if found[names[n]].counted)
        if key and (stuck := [names[n] for n in counted if n not in key]):
            from psycopg import sql

            alter = sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET GENERATED BY DEFAULT").format(
                sql.Identifier(schema, name), sql.Identifier(stuck[0])
            )
            raise Refused(
                f"column {stuck[0]} of {schema}.{name} is GENERATED ALWAYS AS IDENTITY, so no UPDATE can set it",
                where=self._where, fix=f"{alter.as_string(self._db)}; it then has the source's values.",
            )  # fmt: skip
        if rule := rewrite_rule(self._db, schema, name):
            raise Refused(
                f"the table {schema}.{name} has the rule {rule}, which may write something else", where=self._where,
                fix="Drop or disable it; a trigger can do the same.",
            )  # fmt: skip
        kinds = {n: found[c] for n, c in enumerate(names) if c in found}
        doubts = (doubt(n, target_type(table.columns[n].type), kinds[n].base) for n in numbers)
        domains = {n: kind.base for n, kind in kinds.items() if kind.base != kind.kind}
        said = {column: kind.comment for column, kind in found.items() if unfollowed.MARK in kind.comment}
        said |= dict(unsaid or {})
        clear = {column: self._comment(schema, name, column, None).as_string(self._db) for column in said}
        return Target(
            schema, name, table, numbers, key, counted, tuple(d for d in doubts if d), domains,
            unfollowed.notices(self._rules.sink, table, f"{schema}.{name}", said, clear), names if newer else (),
            self._initials(newer, found, names) if newer else {},
        )  # fmt: skip

    def _initials(
        self, newer: Table, found: Mapping[str, TargetColumn], names: tuple[str, ...]
    ) -> dict[str, sql.Composed]:
        """Of columns that came since: what rows of before have there."""
        from psycopg import sql

        values = {
            c.name: self._initial(c)[0]
            for c in newer.columns
            if c.name in found and c.name not in names and not found[c.name].generated
        }
        return {
            column: sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(found[column].kind))
            for column, value in values.items()
            if value is not None
        }

    def _definition(self, column: Column, table: Table) -> sql.Composed:
        from psycopg import sql

        required = sql.SQL(" NOT NULL" if not column.nullable or column.name in table.key else "")
        kind = sql.SQL(target_type(column.type, self._rules.types))
        return sql.SQL("{} {}{}").format(sql.Identifier(column.name), kind, required)


def _names(names: tuple[str, ...]) -> sql.Composed:
    from psycopg import sql

    return sql.SQL(", ").join(map(sql.Identifier, names))
