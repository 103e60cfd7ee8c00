"""The tables at the destination: created from the source's structure, followed as it changes, checked if they exist.

What the source called a column's type, and what it knows the column by, stand in the column's comment, so that every
worker sees what was applied, and columns that someone else added are left alone. So does what rows could not follow.
Statements are idempotent; when two lanes make the same change at once, the one that comes second looks again and finds
nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tidemill.contracts import Notice
from tidemill.errors import Refused
from tidemill.model.table import Column, Table
from tidemill.net.clickhouse import code_of, explain, explain_errors, literal, quote
from tidemill.schema.diff import diff
from tidemill.sinks._shared.unfollowed import (
    Looks,
    added_comment,
    already_there_comment,
    is_known,
    name_taken_comment,
    notices,
    replaced_comment,
    swapped_comment,
)
from tidemill.sinks.clickhouse.comments import (
    elsewhere,
    find_exchanged,
    is_taken,
    native,
    pseudo,
    release,
    rename,
    table_of_notes,
    text,
)
from tidemill.sinks.clickhouse.initial import expression, find_differing
from tidemill.sinks.clickhouse.server_table import (
    CHANGELOG_COLUMNS,
    IS_DELETED,
    SUB,
    UPSERT_COLUMNS,
    VERSION,
    ClickHouseTableName,
    Mode,
    ServerTable,
    check_engine,
    describe,
)
from tidemill.sinks.clickhouse.types import ClickHouseType, JsonType, NullArrays, holds, kind_of, union

DEDUPLICATION_WINDOW = 10_000
BEFORE, AFTER = "before_", "after_"

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class ClickHouseDestination:
    """Where a structure's rows go. `older` says that the table already followed a later structure: one that events
    after these brought. A number does not tell: a structure that comes back has the number it had."""

    name: ClickHouseTableName
    kinds: dict[str, ClickHouseType]
    deduplicates: bool = True
    older: bool = False
    missing: tuple[str, ...] = ()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class TableChangePlan:
    statements: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class ClickHouseTables:
    """Knows the destination of each source table's last structure; asks the server when there is another."""

    client: Any
    where: str
    mode: Mode
    create: bool
    destructive: bool
    json_type: JsonType
    null_arrays: NullArrays
    base: int = 0
    shared: bool = False  # other tables of other structures may be written there too
    sink: str = ""
    looks: Looks = field(default_factory=Looks)
    _known: dict[tuple[ClickHouseTableName, str], tuple[object, ClickHouseDestination]] = field(default_factory=dict)

    def destination(self, name: ClickHouseTableName, table: Table) -> ClickHouseDestination | None:
        """What is known; None if this structure is not the one that `follow` met last."""
        structure, destination = self._known.get((name, table.full_name), (None, None))
        return destination if structure == table.lineage else None

    def plan(self, name: ClickHouseTableName, table: Table, since: int) -> tuple[str, ...]:
        """The statements that `make` and `follow` would run, in order; `Refused` where they would be. Reads only."""
        self._check_structure(table)
        with explain_errors(self.where):
            found = describe(self.client, name, self.base)
        if found is None:
            return self._creation(name, table, since)
        check_engine(name, table, found, self.mode, self.where, shared=self.shared)
        return () if self._older(name, table, found, since) else self._plan_fit(name, table, found, since).statements

    def make(self, name: ClickHouseTableName, table: Table, since: int) -> None:
        """Creates the table if it does not exist; `Refused` if what exists cannot take the rows at all."""
        self._check_structure(table)
        with explain_errors(self.where):
            found = self._make(name, table, since)
        check_engine(name, table, found, self.mode, self.where, shared=self.shared)

    def _check_structure(self, table: Table) -> None:
        if self.mode == "upsert" and not table.key:
            raise Refused(
                f"{table.full_name} has no key, which mode upsert needs", where=self.where,
                fix="Give it a primary key (or REPLICA IDENTITY USING INDEX), or use mode: changelog.",
            )  # fmt: skip
        clash = self._reserve(table)
        if clash:
            raise Refused(
                f"{table.full_name} has columns that the sink uses itself: {', '.join(clash)}", where=self.where,
                fix="Rename them at the source, or use the other mode.",
            )  # fmt: skip

    def follow(self, name: ClickHouseTableName, table: Table, since: int) -> ClickHouseDestination:
        """Changes the table until the rows of this structure, which come from offset `since` on, fit."""
        with explain_errors(self.where):
            found = describe(self.client, name, self.base)
        if found is None:
            raise Refused(f"the table {name.plain} was dropped", where=self.where, fix="Start the pipeline again.")
        destination = self._follow(name, table, found, since)
        if destination.kinds != found.kinds:
            self._known = {key: known for key, known in self._known.items() if key[0] != name}
        if not destination.older:
            self._known[name, table.full_name] = table.lineage, destination
            self.looks.record(table.full_name, destination.notices)
        return destination

    def columns_for(self, table: Table) -> dict[str, tuple[ClickHouseType, Column]]:
        """The destination's columns for a structure, without those that are ours."""
        if self.mode == "upsert":
            return {c.name: (self._kind(c, key=c.name in table.key), c) for c in table.columns}
        nullable = [replace(c, nullable=True) for c in table.columns]
        return {f"{side}{c.name}": (self._kind(c, key=False), c) for side in (BEFORE, AFTER) for c in nullable}

    def _kind(self, column: Column, *, key: bool) -> ClickHouseType:
        return kind_of(column, key=key, json_type=self.json_type, null_arrays=self.null_arrays)

    def _origin(self, column: Column) -> str:
        """A table that keeps one structure keeps what its columns are known by: of several there would be several."""
        return column.origin if self._keeps_one_structure else ""

    def _note(self, column: Column) -> str:
        return text(native(column), self._origin(column))

    def _stamp(self, table: Table, since: int) -> str:
        return f"tidemill: structure {table.sequence} since {since} of the log at {self.base}"

    def _reserve(self, table: Table) -> list[str]:
        ours = UPSERT_COLUMNS if self.mode == "upsert" else CHANGELOG_COLUMNS | {SUB: "UInt16"}
        return [name for name in self.columns_for(table) if name in ours]

    def _make(self, name: ClickHouseTableName, table: Table, since: int) -> ServerTable:
        found = describe(self.client, name, self.base)
        if found is not None:
            return found
        for statement in self._creation(name, table, since):
            self.client.command(statement)
        made = describe(self.client, name, self.base)
        assert made is not None
        return made

    def _creation(self, name: ClickHouseTableName, table: Table, since: int) -> tuple[str, ...]:
        statement = self.creation(name, table, since)
        if not self.create:
            raise Refused(
                f"the table {name.plain} does not exist", where=self.where,
                fix=f"Create it, or set create_tables: true. It would be made so:\n{statement}",
            )  # fmt: skip
        return f"CREATE DATABASE IF NOT EXISTS {quote(name.database)}", statement

    def creation(self, name: ClickHouseTableName, table: Table, since: int) -> str:
        ours = UPSERT_COLUMNS if self.mode == "upsert" else CHANGELOG_COLUMNS | {SUB: "UInt16"}
        columns = [
            f"{quote(n)} {kind} COMMENT {literal(self._note(c))}" for n, (kind, c) in self.columns_for(table).items()
        ]
        columns += [f"{quote(n)} {kind}" for n, kind in ours.items()]
        if self.mode == "upsert":
            engine = f"ReplacingMergeTree({VERSION}, {IS_DELETED})"
            order = ", ".join(quote(k) for k in table.key)
        else:
            # Of two rows of one place one stays: they are the same event, unless several logs share the table.
            engine, order = "MergeTree" if self.shared else "ReplacingMergeTree", f"_offset, {SUB}"
        body = ",\n  ".join(columns)
        return (
            f"CREATE TABLE IF NOT EXISTS {name} (\n  {body}\n) ENGINE = {engine} ORDER BY ({order})\n"
            f"SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}\n"
            f"COMMENT {literal(self._stamp(table, since))}"
        )

    def _older(
        self, name: ClickHouseTableName, table: Table, found: ServerTable, since: int
    ) -> ClickHouseDestination | None:
        """Where rows go whose structure is older than the table's; None if it is not."""
        if not self._keeps_one_structure or since >= found.since:
            return None
        moved = elsewhere(table, found.origins)
        if not moved and table.sequence == found.sequence:
            return None
        missing = tuple(c for c in self.columns_for(table) if c not in found.kinds or c in moved)
        return ClickHouseDestination(name, found.kinds, found.deduplicates, older=True, missing=missing)

    def _plan_fit(self, name: ClickHouseTableName, table: Table, found: ServerTable, since: int) -> TableChangePlan:
        """What makes the table fit; `Refused` if nothing does that is allowed."""
        plan = self._plan(name, table, found, since)
        if plan.problems:
            raise Refused(
                f"{name.plain} does not fit the source: {'; '.join(plan.problems)}", where=self.where,
                fix="Set allow_destructive_ddl: true to change it, or alter the column by hand, "
                "to String if in doubt.",
            )  # fmt: skip
        return plan

    def _follow(self, name: ClickHouseTableName, table: Table, found: ServerTable, since: int) -> ClickHouseDestination:
        if older := self._older(name, table, found, since):
            return older
        for _ in range(_ATTEMPTS):
            plan = self._plan_fit(name, table, found, since)
            if not plan.statements:
                break
            found = self._alter(name, table, plan, since)
        plain = {c: text(found.natives[c], found.origins.get(c, "")) for c in found.said}
        clear = {c: f"ALTER TABLE {name} COMMENT COLUMN {quote(c)} {literal(t)}" for c, t in plain.items()}
        said = notices(self.sink, table, name.plain, found.said, clear)
        return ClickHouseDestination(name, found.kinds, found.deduplicates, notices=said)

    def _alter(self, name: ClickHouseTableName, table: Table, plan: TableChangePlan, since: int) -> ServerTable:
        from clickhouse_connect.driver.exceptions import ClickHouseError

        failure: ClickHouseError | None = None
        try:
            for statement in plan.statements:
                self.client.command(statement, settings={"mutations_sync": 2, "alter_sync": 2})
        except ClickHouseError as error:
            if not code_of(error):
                raise explain(error, self.where) from error
            failure = error
        with explain_errors(self.where):
            now = describe(self.client, name, self.base)
        if now is None or (failure is not None and self._plan(name, table, now, since) == plan):
            # Not another lane's doing: nothing has changed since.
            raise explain(failure or LookupError(), self.where) from failure
        return now

    @property
    def _keeps_one_structure(self) -> bool:
        """A changelog keeps what every structure had, and a shared table what its other sources have."""
        return self.mode == "upsert" and not self.shared

    def _plan(self, name: ClickHouseTableName, table: Table, found: ServerTable, since: int) -> TableChangePlan:
        wanted = self.columns_for(table)
        actions: list[str] = []
        problems: list[str] = []
        kinds = dict(found.kinds)
        change = diff(table_of_notes(found.natives, found.origins), self._as_noted(table, wanted, found))
        said: dict[str, str] = {}
        taken: dict[str, str] = {}
        if self._keeps_one_structure:  # a changelog keeps the column under both names, as the events had it
            pairs = [(was.name, now.name) for was, now in change.renamed]
            taken = {
                now: was
                for was, now in {*pairs, *table.renamed}
                if is_taken(was, now, wanted, found.kinds, found.natives)
            }
            stuck = rename([(was, now) for was, now in pairs if now not in taken], kinds, actions)
            if found.sequence not in (0, table.sequence):
                stuck += find_exchanged(table, found.natives, found.origins)
            said = {now: swapped_comment(was, since) for was, now in stuck}
            said |= {now.name: replaced_comment(since) for _, now in change.replaced}
            if found.sequence:  # else the table is met for the first time, as it was made
                theirs = {
                    c: (found.kinds[c], s) for c, (_, s) in wanted.items() if c in found.kinds.keys() - found.natives
                }
                new = {c: (k, s) for c, (k, s) in theirs.items() if s.initial is not None and c not in taken}
                said |= {
                    c: already_there_comment(since) for c in find_differing(self.client, str(name), new, self.where)
                }
                said |= {now: name_taken_comment(was, since) for now, was in taken.items()}
            said = said if said and self._occupied(name) else {}
        for column, (kind, source) in wanted.items():
            if column not in kinds:
                actions.append(self._add(name, column, kind, source, since))
                continue
            adopted = column in taken or (self._keeps_one_structure and source.initial is not None)
            actions += self._modify(
                column, kind, source, kinds[column], found, said.get(column, ""), problems, adopted=adopted
            )
            if column in taken and not problems:  # in one statement: neither is without the other
                actions[-1] += f", {release(taken[column], kinds[taken[column]])}"
        if self.mode == "upsert":
            actions += self._drop([c.name for c in change.dropped if c.name not in taken.values()], kinds)
        if not self.shared and (actions or found.sequence != table.sequence):
            actions.append(f"MODIFY COMMENT {literal(self._stamp(table, since))}")
        # One at a time: ClickHouse does not mix RENAME with other actions on the same column.
        return TableChangePlan(tuple(f"ALTER TABLE {name} {action}" for action in actions), tuple(problems))

    def _add(self, name: ClickHouseTableName, column: str, kind: ClickHouseType, source: Column, since: int) -> str:
        """With what rows that are there have in it at the source, or with a word that this is not known."""
        default = why = ""
        if self.mode == "upsert" and not (is_known(source) and not source.initial.value.is_valid):  # type: ignore[union-attr]
            if is_known(source) and self.shared:
                why = "the table is shared, so a default would count for the rows of others too"
            elif is_known(source):
                found = expression(source, kind)
                default = f" DEFAULT {found}" if found else ""
                why = "" if found is not None else f"{kind} does not take the value that they have at the source"
            if not default and self._occupied(name):
                # A zero would look like a value.
                kind = kind if kind.element is not None else replace(kind, nullable=True)
                said = added_comment(source, since, "NULL" if kind.nullable else "[]", why)
                return (
                    f"ADD COLUMN IF NOT EXISTS {quote(column)} {kind} "
                    f"COMMENT {literal(text(native(source), self._origin(source), said))}"
                )
        return f"ADD COLUMN IF NOT EXISTS {quote(column)} {kind}{default} COMMENT {literal(self._note(source))}"

    def _occupied(self, name: ClickHouseTableName) -> bool:
        with explain_errors(self.where):
            return bool(self.client.query(f"SELECT 1 FROM {name} LIMIT 1").result_rows)

    def _modify(
        self, column: str, kind: ClickHouseType, source: Column, there: ClickHouseType, found: ServerTable, said: str,
        problems: list[str], *, adopted: bool,
    ) -> Iterator[str]:  # fmt: skip
        """`adopted`: the source has added the column since, so it is ours from now on, whoever made it."""
        there_native, note = found.natives.get(column), native(source)
        origin = self._origin(source)
        comment = literal(text(note, origin, said or found.said.get(column, "")))
        into: ClickHouseType | None = None
        if there.digits >= 0 and not there.in_utc and getattr(source.type.arrow, "tz", "") is None:
            problems.append(
                f"\"{column}\" is {there}, but a time without a zone needs DateTime64({there.digits}, 'UTC')"
            )
            return
        destructive = self.destructive and not self.shared
        if destructive and there_native is not None and there_native != note:
            into = kind
        elif not holds(there, kind):
            into = union(there, kind)
            if into is None and destructive:
                into = kind
            if into is None:
                problems.append(f'"{column}" is {there}, the source has {source.type.native}, which is {kind}')
                return
        if into is not None and there.nullable and into.element is None:
            # Rows of this very transaction may still have to bring the values, and the server refuses it where one has
            # none: a column that may be null holds them all.
            into = replace(into, nullable=True)
        if into is not None and into != there:
            yield f"MODIFY COLUMN {quote(column)} {into} COMMENT {comment}"
        elif there_native is None:
            if adopted:
                yield f"COMMENT COLUMN {quote(column)} {comment}"
        elif there_native != note or found.origins.get(column, "") != origin or said:
            yield f"COMMENT COLUMN {quote(column)} {comment}"

    def _drop(self, columns: list[str], kinds: dict[str, ClickHouseType]) -> Iterator[str]:
        for column in columns:
            if self.destructive and not self.shared:
                yield f"DROP COLUMN IF EXISTS {quote(column)}"
            elif column in kinds and not kinds[column].nullable and kinds[column].element is None:
                # It stays, and later rows have nothing for it: NULL says so, a zero would not.
                kind = replace(kinds[column], nullable=True)
                yield f"MODIFY COLUMN {quote(column)} {kind}"

    def _as_noted(self, table: Table, wanted: dict[str, tuple[ClickHouseType, Column]], found: ServerTable) -> Table:
        columns = tuple(pseudo(name, native(c), self._origin(c)) for name, (_, c) in wanted.items())
        # Without origins nothing tells whether columns that exchanged their names have done so here.
        renamed = tuple((was, now) for was, now in table.renamed if now not in found.kinds)
        return Table("", "", "", columns, renamed=renamed)
