"""The tables of a server as they were at one place of the binlog, moved along by each DDL statement. Pure.

What a statement does follows the server: clauses of one ALTER all refer to the table as it was before it, and AFTER to
the columns as they will be (`mysql_prepare_alter_table` in MySQL's sql_table.cc; MariaDB's is the same here).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tidemill.decoders._shared.mysql.session import NO_SESSION, StatementSession
from tidemill.decoders.mysql_schema import statements as sql
from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogTable
from tidemill.decoders.mysql_schema.column_definition import Definition, canonical, implicit_period, widen
from tidemill.decoders.mysql_schema.defaults import kept_default
from tidemill.decoders.mysql_schema.temporary import TableKey, Temporary
from tidemill.decoders.mysql_schema.tokens import NotUnderstood
from tidemill.model.position import Position


@dataclass(frozen=True, slots=True)
class Unknown:
    """A table whose structure cannot be told; `reason` finishes the sentence "it is not known because …"."""

    reason: str


NEVER_LISTED = Unknown("the catalog did not show it, and its first statement in the binlog does not make it")
State = CatalogTable | Unknown


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement did to one name. `source` is where a renamed table came from, `target` where it went; `asides`
    are what it did beside the structure. `copied`: an online tool made the table, with the rows of the one that had the
    name."""

    key: TableKey
    kind: str
    before: State | None
    after: State | None
    source: TableKey | None = None
    target: TableKey | None = None
    asides: tuple[sql.Aside, ...] = ()
    copied: bool = False


class _Conflict(Exception):
    """The statement does not fit the table that is known."""


class TableHistory:
    """`fold` is for servers that compare names of tables in lower case (lower_case_table_names 1 and 2)."""

    def __init__(self, *, mariadb: bool = False, fold: bool = False) -> None:
        self.tables: dict[TableKey, State] = {}
        self.charsets: dict[str, str] = {}  # defaults of databases; empty where it cannot be told
        self.high_water_mark = Position("")  # up to here the catalog may have been ahead of the binlog
        self.fold = fold
        self.temporary = Temporary(self.key, renamed=mariadb)

    def key(self, database: str, name: str) -> TableKey:
        return (database.lower(), name.lower()) if self.fold else (database, name)

    def put(self, table: CatalogTable) -> None:
        columns = tuple(map(canonical, table.columns))
        self.tables[self.key(table.database, table.name)] = replace(table, columns=columns)

    def apply(
        self,
        logged: sql.Statement,
        database: str,
        session: StatementSession = NO_SESSION,
        *,
        tolerant: bool = False,
    ) -> list[Effect]:
        """`tolerant` while the catalog may already have what the statement does: then a table that the statement does
        not fit stays as it is, instead of becoming `Unknown`."""
        statement = self.temporary.rest(logged, database, session)
        match statement:
            case sql.CreateTable():
                return self._create(statement, database)
            case sql.AlterTable():
                return self._alter(statement, database, tolerant)
            case sql.DropTable():
                keys = [self._key(name, database) for name in statement.tables]
                return [Effect(key, "drop", self.tables.pop(key), None) for key in keys if key in self.tables]
            case sql.RenameTable():
                pairs = [(self._key(old, database), self._key(new, database)) for old, new in statement.pairs]
                return self._rename(pairs, lenient=tolerant or statement.if_exists)
            case sql.TruncateTable():
                key = self._key(statement.table, database)
                state = self.tables.get(key)
                return [Effect(key, "truncate", state, state)]
            case sql.CreateDatabase():
                name = self.key(statement.name, "")[0]
                if statement.if_not_exists and name in self.charsets:
                    return []
                effects = self._drop_database(name) if statement.or_replace else []
                self.charsets[name] = statement.charset or session.server_charset
                return effects
            case sql.AlterDatabase():
                if statement.charset is not None:
                    name = self.key(statement.name or database, "")[0]
                    self.charsets[name] = statement.charset or session.server_charset
                return []
            case sql.DropDatabase():
                return self._drop_database(self.key(statement.name, "")[0])
            case _:
                return []

    def _drop_database(self, name: str) -> list[Effect]:
        self.charsets.pop(name, None)
        gone = [key for key in self.tables if key[0] == name]
        return [Effect(key, "drop", self.tables.pop(key), None) for key in gone]

    def _key(self, name: sql.WrittenName, database: str) -> TableKey:
        return self.key(name.database or database, name.name)

    def _create(self, statement: sql.CreateTable, database: str) -> list[Effect]:
        key = self._key(statement.table, database)
        before = self.tables.get(key)
        if statement.if_not_exists and before is not None:
            return []
        made: State
        if statement.source is not None:
            source = self.tables.get(self._key(statement.source, database))
            if isinstance(source, CatalogTable):
                made = replace(source, database=key[0], name=key[1], like=source.full_name, renamed=())
            else:
                made = Unknown("the table it was made LIKE is not known")
        elif statement.columns:
            try:
                made = self._make(key, statement)
            except NotUnderstood as error:
                made = Unknown(f"its CREATE TABLE was not understood: {error}")
        else:
            made = Unknown("CREATE TABLE … SELECT was written without columns")
        self.tables[key] = made
        return [Effect(key, "create", before, made)]

    def _make(self, key: TableKey, statement: sql.CreateTable) -> CatalogTable:
        charset = statement.charset or self.charsets.get(key[0], "")
        columns = tuple(c.settle(charset) for c in statement.columns)
        made = _with_key(CatalogTable(*key, columns, charset=charset), statement.key)
        # pt-online-schema-change writes out the original's definition instead of LIKE.
        if found := re.fullmatch(r"_+(.+)_new", key[1]):
            original = self.tables.get((key[0], found[1]))
            if isinstance(original, CatalogTable) and original.columns == made.columns:
                made = replace(made, like=original.full_name)
        return made

    def _alter(self, statement: sql.AlterTable, database: str, tolerant: bool) -> list[Effect]:
        key = self._key(statement.table, database)
        before = self.tables.get(key)
        after: State = before or NEVER_LISTED
        if isinstance(before, CatalogTable):
            try:
                after = self._alter_table(before, statement.clauses)
            except _Conflict as conflict:
                after = before if tolerant else Unknown(f"an ALTER TABLE does not fit it ({conflict})")
            except NotUnderstood as error:
                after = Unknown(f"an ALTER TABLE was not understood: {error}")
        if before is None and (statement.if_exists or (tolerant and statement.rename_to is not None)):
            return []
        self.tables[key] = after
        target = self._key(statement.rename_to, database) if statement.rename_to is not None else key
        if target == key:
            asides = tuple(clause for clause in statement.clauses if isinstance(clause, sql.Aside))
            return [Effect(key, "alter", before, after, asides=asides)]
        effects = self._rename([(key, target)], lenient=tolerant)
        return [replace(e, before=before) if e.key == key else e for e in effects]

    def _alter_table(self, table: CatalogTable, clauses: Iterable[sql.Clause]) -> CatalogTable:
        made = _Alteration(table, self.charsets.get(table.database, ""))
        for clause in clauses:
            made.take(clause)
        return made.result()

    def _rename(self, pairs: list[tuple[TableKey, TableKey]], *, lenient: bool) -> list[Effect]:
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        before = {name: self.tables.get(name) for name in names}
        origin: dict[TableKey, TableKey] = {name: name for name in names if name in self.tables}
        for old, new in pairs:
            if old not in self.tables:
                if lenient:
                    continue
                self.tables[old] = Unknown("a table that was never read in the catalog was renamed to it")
                origin[old] = old
            self.tables[new] = _move(self.tables.pop(old), new)
            origin[new] = origin.pop(old)
        target = {was: now for now, was in origin.items()}
        effects = []
        for name in names:
            after = self.tables.get(name)
            source, gone = origin.get(name), target.get(name)
            if source == name or (before[name] is None and after is None):
                continue
            copied = source is not None and _is_copy(source, name)
            effects.append(Effect(name, "rename", before[name], after, source, gone, copied=copied))
        return effects


def _is_copy(name: TableKey, original: TableKey) -> bool:
    """Whether an online tool made the table to take the place of the original: gh-ost calls it _…_gho,
    pt-online-schema-change _…_new. One that was made LIKE it under another name may be empty: so tables are rotated."""
    return name[0] == original[0] and re.fullmatch(rf"_+{re.escape(original[1])}_(gho|new)", name[1]) is not None


def _move(state: State, key: TableKey) -> State:
    if isinstance(state, Unknown):
        return state
    # An online tool's copy takes the place of what it was copied from: its renamed columns are the original's.
    back = state.like == f"{key[0]}.{key[1]}"
    return replace(state, database=key[0], name=key[1], like="" if back else state.like,
                   renamed=state.renamed if back else ())  # fmt: skip


class _Alteration:
    """One ALTER TABLE. Clauses are collected first, since all of them refer to the table as it was."""

    def __init__(self, table: CatalogTable, database_charset: str) -> None:
        self._table = table
        self._names = {c.name.lower(): c.name for c in table.columns}
        self._changed: dict[str, CatalogColumn | Definition] = {}  # old name, lower -> the new column
        self._dropped: set[str] = set()
        self._placed: list[tuple[str, Definition]] = []  # (old name or empty, definition) in order of the clauses
        self._key: tuple[str, ...] | None = None
        self._drop_key = False
        self._versioning: bool | None = None
        self._charset = table.charset
        self._convert = False
        self._database_charset = database_charset

    def take(self, clause: sql.Clause) -> None:
        match clause:
            case sql.AddColumn():
                if not clause.if_not_exists or clause.column.name.lower() not in self._names:
                    self._placed.append(("", clause.column))
            case sql.ChangeColumn():
                if self._has(clause.old, clause.if_exists):
                    self._changed[clause.old.lower()] = clause.column
                    if clause.column.first or clause.column.after:
                        self._placed.append((clause.old.lower(), clause.column))
            case sql.RenameColumn():
                if self._has(clause.old, clause.if_exists):
                    old = self._changed.get(clause.old.lower()) or self._column(clause.old)
                    self._changed[clause.old.lower()] = replace(old, name=clause.new)
            case sql.ShowColumn():
                if self._has(clause.name, False):
                    old = self._column(clause.name)
                    self._changed.setdefault(clause.name.lower(), replace(old, invisible=clause.invisible))
            case sql.SetDefault():
                if self._has(clause.name, clause.if_exists):
                    low = clause.name.lower()
                    changed = self._changed.get(low) or self._column(clause.name)
                    self._changed[low] = replace(changed, default=clause.default)
            case sql.DropColumn():
                if self._has(clause.name, clause.if_exists):
                    self._dropped.add(clause.name.lower())
            case sql.AddKey():
                self._key = clause.columns
            case sql.DropKey():
                self._drop_key = True
            case sql.Versioning():
                self._versioning = clause.on
            case sql.Charset():
                self._charset = clause.name or self._database_charset
                self._convert = clause.convert or self._convert

    def _has(self, name: str, if_exists: bool) -> bool:
        """Whether the clause counts; without IF EXISTS it must."""
        if name.lower() not in self._names and not if_exists:
            raise _Conflict(f'it has no column "{name}"')
        return name.lower() in self._names

    def _column(self, name: str) -> CatalogColumn:
        return next(c for c in self._table.columns if c.name.lower() == name.lower())

    def result(self) -> CatalogTable:
        table = self._table
        columns: list[CatalogColumn] = []
        moving: dict[str, CatalogColumn] = {}
        renames: dict[str, str] = {}
        for column in table.columns:
            low = column.name.lower()
            if low in self._dropped or column.implicit:
                continue
            change = self._changed.get(low)
            made = widen(column, self._charset) if self._convert else column
            if isinstance(change, CatalogColumn):
                made = replace(made, name=change.name, invisible=change.invisible, default=change.default)
            elif change is not None:
                made = change.settle(self._charset)
                made = replace(made, initial=column.initial) if made == replace(column, name=made.name) else made
            if made.name != column.name:
                renames[column.name] = made.name
            if isinstance(change, Definition) and (change.first or change.after):
                moving[low] = made
            else:
                columns.append(made)
        for old, wish in self._placed:
            _insert(columns, wish, moving[old] if old else _add(wish.settle(self._charset)))
        columns += self._period(columns)
        if len({c.name.lower() for c in columns}) < len(columns):
            raise _Conflict("it would have two columns of one name")
        key = () if self._drop_key else tuple(
            renames.get(name, name) for name in table.key if name.lower() not in self._dropped
        )  # fmt: skip
        renamed = _join(table.renamed if table.like else (), renames)
        # Old versions of a row stay in the table, so that its key has the end of their time.
        key = tuple(name for name in self._key or key if name not in {c.name for c in table.columns if c.row_end})
        key += tuple(c.name for c in columns if c.row_end and key)
        return _with_key(replace(table, columns=tuple(columns), charset=self._charset, renamed=renamed), key)

    def _period(self, columns: list[CatalogColumn]) -> list[CatalogColumn]:
        """What stands after all other columns if the table has versions without naming columns for them."""
        if self._versioning and not any(c.row_end for c in columns):
            return implicit_period()
        return [c for c in self._table.columns if c.implicit and self._versioning is None]


def _add(column: CatalogColumn) -> CatalogColumn:
    """The default of the statement that adds a column is the value of all rows that are there; a later one is not."""
    return replace(column, initial=kept_default(column))


def _insert(columns: list[CatalogColumn], wish: Definition, column: CatalogColumn) -> None:
    if wish.first:
        columns.insert(0, column)
    elif wish.after:
        at = next((i for i, c in enumerate(columns) if c.name.lower() == wish.after.lower()), None)
        if at is None:
            raise _Conflict(f'it has no column "{wish.after}" to stand after')
        columns.insert(at + 1, column)
    else:
        columns.append(column)


def _with_key(table: CatalogTable, key: tuple[str, ...]) -> CatalogTable:
    """A primary key makes its columns NOT NULL and is listed with their names as the table spells them."""
    wanted = {name.lower() for name in key}
    spelled = {c.name.lower(): c.name for c in table.columns}
    columns = tuple(replace(c, nullable=False) if c.name.lower() in wanted else c for c in table.columns)
    return replace(table, columns=columns, key=tuple(spelled.get(name.lower(), name) for name in key))


def _join(earlier: Iterable[tuple[str, str]], now: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Renames one after the other, as one: a to b and b to c is a to c."""
    chained = [(old, now.get(new, new)) for old, new in earlier]
    known = {new for _, new in earlier}
    return (*chained, *((old, new) for old, new in now.items() if old not in known))
