"""Which structure a table of MySQL or MariaDB had at a place of the binlog (invariant 6). Pure; `binlog` asks it.

Rows of the binlog have physical types and, with binlog_row_metadata=FULL, names. Without, names come from a history:
the catalog when capture began, then every DDL statement of the binlog, checked against each TABLE_MAP event. With FULL
the event wins, and the history adds what it does not have: generated columns, and what a statement changed.

The history is kept in the schema registry with the position of every statement. A restart goes on with what was true at
its own position: statements after that are forgotten and come again.

catalog    tables in the server's own words; table makes of one what the rest of the project knows
history    all of them at one place of the binlog; rewind goes back, notes is how it is kept, temporary what hides it
ddl        reads a statement into statements: tokens, clauses, column_definition, defaults; target for changes of rows
changes    what a DDL event says of its table
shape      whether a table can be that of a TABLE_MAP
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tidemill.contracts import StructureHistory
from tidemill.decoders._shared.mysql import charsets
from tidemill.decoders._shared.mysql import table_map as m
from tidemill.decoders._shared.mysql import types as mysqltypes
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders._shared.mysql.session import NO_SESSION, StatementSession
from tidemill.decoders._shared.mysql.table_lookup import DdlChange
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.decoders._shared.mysql.types import labels
from tidemill.decoders.mysql_schema import notes
from tidemill.decoders.mysql_schema import statements as sql
from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogDatabase, CatalogTable, ServerCatalog
from tidemill.decoders.mysql_schema.changes import changes, describe_table, safe_text
from tidemill.decoders.mysql_schema.column_definition import implicit_period, lacks_charset
from tidemill.decoders.mysql_schema.ddl import parse, parse_anyhow
from tidemill.decoders.mysql_schema.defaults import is_rounded, kept_default, of_catalog
from tidemill.decoders.mysql_schema.history import NEVER_LISTED, Effect, State, TableHistory, Unknown
from tidemill.decoders.mysql_schema.rewind import rewind
from tidemill.decoders.mysql_schema.shape import difference
from tidemill.decoders.mysql_schema.table import structure
from tidemill.decoders.mysql_schema.target import calls_nothing, target
from tidemill.decoders.mysql_schema.temporary import TableKey
from tidemill.decoders.mysql_schema.tokens import NotUnderstood, TokenKind, tokenize
from tidemill.errors import SKIP, DecodeError
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.schema.ddl_document import write_document

__all__ = [
    "SYSTEM",
    "CatalogColumn",
    "CatalogDatabase",
    "CatalogTable",
    "MysqlTables",
    "ServerCatalog",
    "implicit_period",
    "is_rounded",
    "labels",
    "of_catalog",
    "structure",
]  # fmt: skip

_RECOVER = (
    "Set binlog_row_metadata=FULL at the server, so that the binlog has the names itself from then on. To go on from"
    ' here, run "tidemill recover FILE --snapshot", which begins anew with the catalog of today and copies the tables,'
    ' or "tidemill recover FILE --accept-gap", which leaves out what was changed until then.'
)
SYSTEM = ("mysql", "information_schema", "performance_schema", "sys")
# What a sequence of MariaDB looks like: a table of one row that nobody writes to.
_SEQUENCE = ((m.LONGLONG,) * 6 + (m.TINY, m.LONGLONG), "next_not_cached_value")


class MysqlTables:
    """One connection's view. `begin` must come first.

    `selected` says whether a table is captured. `fold`: the server compares names of tables in lower case. `identity`
    is what an UPDATE or DELETE brings of the old row (`model.table.Table`). `account` read the catalog, and is spelled
    as a GRANT wants it; empty for one that sees every table. `on_renamed` is called with the name that a captured table
    has now, the one that it had, and where: rows that were there did not come under this name.
    """

    def __init__(
        self,
        schemas: StructureHistory,
        selected: Callable[[str, str], bool],
        *,
        flavor: Flavor,
        fold: bool = False,
        identity: str = "full",
        where: str = "",
        account: str = "the account",
        on_renamed: Callable[[str, str, Position], None] = lambda table, was, position: None,
        null_zero_dates: bool = False,
    ) -> None:
        self._schemas, self._selected, self._flavor = schemas, selected, flavor
        self._identity, self._where, self._account, self._on_renamed = identity, where, account, on_renamed
        self._null_zero_dates = null_zero_dates
        self._history = TableHistory(mariadb=flavor is Flavor.MARIADB, fold=fold)
        self._resolved: dict[TableMap, Table] = {}
        self._answered: tuple[Position, str, list[DdlChange]] = (Position(""), "", [])
        self.statements = 0  # that changed the history

    def begin(self, place: BinlogPlace, read: Callable[[], ServerCatalog], *, fresh: bool) -> None:
        """The history as it was at `place`. The catalog is read only when there is none: at the first start (`fresh`),
        or when the registry has nothing that old."""
        found = [] if fresh else self._schemas.structures()
        kept = list(itertools.takewhile(lambda note: notes.covers(place, note.position, self._flavor), found))
        self._schemas.forget_structures(kept[-1].sequence if kept else 0)
        self._resolved.clear()
        if kept:
            for note in kept:
                notes.recall(self._history, note)
            return
        catalog = read()
        self._history.high_water_mark = catalog.at.text()
        for database in catalog.databases:
            self._history.charsets[self._history.key(database.name, "")[0]] = database.charset
        for table in catalog.tables:
            self._history.put(table)
        if catalog.since is None or catalog.named:
            self._forget_defaults(catalog.since)
        elif catalog.since:
            self._rewind(catalog.since)
        self._schemas.keep_structures(place.text(), notes.everything(self._history))

    def known(self) -> Iterable[TableKey]:
        """Every table that there is by now, also those that are not captured."""
        return self._history.tables.keys()

    def resolve(self, shape: TableMap, position: Position) -> Table | None:
        """The table that rows after this TABLE_MAP belong to; None if it is not captured."""
        if (known := self._resolved.get(shape)) is not None:
            return known
        if not self._selected(shape.database, shape.name):
            return None
        key = self._history.key(shape.database, shape.name)
        state = self._history.tables.get(key)
        if state is None and _is_sequence(shape):
            return None
        if shape.names:
            state = self._combine(shape, state)
            self._history.tables[key] = state
        known_state = self._check(shape, state, position)
        table = self._register(known_state, position, shape)
        if len(self._resolved) > 10_000:
            self._resolved.clear()
        self._resolved[shape] = table
        return table

    def defaults(self, shape: TableMap) -> tuple[str | None, ...]:
        """Of a table that was resolved just now."""
        state = self._history.tables.get(self._history.key(shape.database, shape.name))
        assert isinstance(state, CatalogTable)
        return tuple(map(kept_default, state.columns))

    def ddl(
        self, text: str, database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> list[DdlChange]:
        """Changes of captured tables by a statement, in order; `position` is the one after it. The same statement at
        the same position may come twice, when bytes are decoded again."""
        if self._answered[:2] != (position, text):
            self._answered = (position, text, self._follow(text, database, position, session))
        return self._answered[2]

    def _follow(self, text: str, database: str, position: Position, session: StatementSession) -> list[DdlChange]:
        try:
            statements = parse(text, mariadb=self._flavor is Flavor.MARIADB, mode=session.mode)
        except NotUnderstood as error:
            return self._not_understood(text, database, position, session, str(error))
        before = set(self._history.temporary.names.get(session.thread, ()))
        high_water_mark = self._history.high_water_mark
        tolerant = bool(high_water_mark) and notes.covers(
            BinlogPlace.parse(high_water_mark, self._flavor), position, self._flavor
        )
        # MariaDB's binlog_alter_two_phase logs a statement when it starts and again when it is done.
        tolerant = tolerant or (self._flavor is Flavor.MARIADB and self._answered[1] == text)
        effects: list[Effect] = []
        changed: dict[str, bytes | None] = {}
        for statement in statements:
            if isinstance(statement, sql.RowStatement) and self.writes(text, database, session):
                self._refuse_rows(position)
            made = self._history.apply(statement, database, session, tolerant=tolerant)
            selects = isinstance(statement, sql.CreateTable) and statement.selects
            if selects and any(self._selected(*effect.key) for effect in made):
                self._refuse_rows(position)
            effects += made
            if isinstance(statement, sql.CreateDatabase | sql.AlterDatabase | sql.DropDatabase):
                name = self._history.key(statement.name or database, "")[0]
                changed[notes.name_of(name)] = notes.of_charset(self._history.charsets.get(name))
        if (now := self._history.temporary.names.get(session.thread, set())) != before:
            changed[notes.of_thread(session.thread)] = notes.of_temporary(now or None, self._history.temporary.started)
        return self._effects(effects, changed, safe_text(text, session.mode), position)

    def _effects(
        self, effects: list[Effect], changed: dict[str, bytes | None], text: str, position: Position
    ) -> list[DdlChange]:
        for effect in effects:
            if effect.kind != "truncate":
                changed[notes.name_of(*effect.key)] = notes.of_state(self._history.tables.get(effect.key))
        if changed:
            self._schemas.keep_structures(position, changed)
            self._resolved.clear()
            self.statements += 1
        captured = [effect for effect in effects if self._selected(*effect.key)]
        for effect in captured:
            if effect.source is not None and effect.after is not None and not effect.copied:
                self._on_renamed(".".join(effect.key), ".".join(effect.source), position)
        return [self._change(effect, text, position) for effect in captured]

    def _not_understood(
        self, text: str, database: str, position: Position, session: StatementSession, why: str
    ) -> list[DdlChange]:
        """Tables that the statement names are not known any more, until a TABLE_MAP with names describes them."""
        try:
            named = {word.text for word in tokenize(text, session.mode) if word.kind is not TokenKind.SIGN}
        except NotUnderstood:
            named = set(re.findall(r"[\w$]+", text))
        if self._history.fold:
            named = {name.lower() for name in named}
        concerned = [
            key for key in self._history.tables
            if key[1] in named and (key[0] in named or key[0] == self._history.key(database, "")[0])
            and not self._history.temporary.hides(key, session)
        ]  # fmt: skip
        effects = []
        for key in concerned:
            before = self._history.tables[key]
            after = Unknown(f"a statement was not understood: {why}")
            self._history.tables[key] = after
            effects.append(Effect(key, "unknown", before, after))
        return self._effects(effects, {}, safe_text(text, session.mode), position)

    def server_started(self, seconds: int, position: Position) -> None:
        ended = self._history.temporary.server_started(seconds)
        if ended:
            self._schemas.keep_structures(position, {notes.of_thread(thread): None for thread in ended})

    def writes(self, text: str, database: str, session: StatementSession = NO_SESSION) -> bool:
        """Whether the statement may have changed rows of a captured table. Not, if all that it writes to is a temporary
        table or one of the server itself, which have no triggers, or a base table that is not captured."""
        named = target(text, session.mode)
        if named is None:
            return True
        key = self._history.key(named.database or database, named.name)
        if self._history.temporary.hides(key, session):
            return not calls_nothing(text, session.mode)
        if self._selected(named.database or database, named.name):
            return True
        if key[0].lower() in SYSTEM:
            return False
        # One that the history does not have may be a view of a captured table.
        return not isinstance(self._history.tables.get(key), CatalogTable) or not calls_nothing(text, session.mode)

    def _refuse_rows(self, position: Position) -> None:
        raise DecodeError(
            "rows that may be of a captured table were changed by a statement that the binlog has as text, not as rows",
            where=self._at(position),
            fix=f"Some session used binlog_format STATEMENT or MIXED: set it to ROW everywhere. {SKIP}",
        )

    def _change(self, effect: Effect, text: str, position: Position) -> DdlChange:
        state = effect.after if isinstance(effect.after, CatalogTable) else effect.before
        if isinstance(effect.after, Unknown) or not isinstance(state, CatalogTable):
            table = self._schemas.newest(".".join(effect.key)) or self._schemas.register(
                Table(effect.key[0], effect.key[0], effect.key[1], (), identity=self._identity), position
            )
        else:
            table = self._register(state, position)
        said = changes(effect)
        document = write_document(text, effect.kind, said, describe_table(effect.before), describe_table(effect.after))
        same = effect.kind == "alter" and _shape_of(effect.before) == _shape_of(effect.after) and not said
        return DdlChange(table, document, not same, effect.kind == "truncate")

    def _combine(self, shape: TableMap, state: State | None) -> CatalogTable:
        """A table that the binlog names, with what the history knows beyond that, where the two agree."""
        key = tuple(shape.names[j] for j, _ in shape.key)
        if isinstance(state, CatalogTable) and tuple(c.name for c in state.columns) == shape.names:
            if not difference(state, shape):
                # What is written here in the server's own words was no more than read in a statement.
                labelled = [
                    replace(c, type=self._read_type(shape, j)[0]) if shape.types[j] in (m.ENUM, m.SET) else c
                    for j, c in enumerate(state.columns)
                ]
                return replace(state, columns=tuple(labelled), key=key)
        else:
            state = None
        generated = {c.name: c.generated for c in state.columns} if state else {}
        columns = []
        for j, name in enumerate(shape.names):
            native, charset = self._read_type(shape, j)
            columns.append(CatalogColumn(name, native, charset, shape.nullable[j], generated.get(name, False)))
        made = CatalogTable(shape.database, shape.name, tuple(columns), key)
        return replace(made, charset=state.charset, renamed=state.renamed) if state else made

    def _read_type(self, shape: TableMap, j: int) -> tuple[str, str]:
        """Type and charset of a column as the event alone has them."""
        kind = mysqltypes.of_map(shape, j)
        if kind is None:
            raise DecodeError(
                f'the type of column "{shape.names[j]}" of {shape.full_name} is not known',
                where=self._where, fix=_RECOVER,
            )  # fmt: skip
        charset = _charset(shape, j)
        return kind.native.partition(" character set ")[0], charset if charset and charset != "binary" else ""

    def _check(self, shape: TableMap, state: State | None, position: Position) -> CatalogTable:
        if isinstance(state, CatalogTable):
            if shape.names or not (found := difference(state, shape)):
                return self._with_charsets(shape, state, position)
            what = f"{shape.full_name} is not as its history says: {found}"
        elif state is None or state == NEVER_LISTED:
            name = ".".join(f"`{part.replace('`', '``')}`" for part in (shape.database, shape.name))
            grant = (
                f"If it was there by then, the account may not see it. Run: GRANT SELECT ON {name} TO {self._account};"
            )
            raise DecodeError(
                f"the structure of {shape.full_name} is not known: the catalog did not show it when capture began",
                where=self._at(position),
                fix=f"{grant} and then: {_RECOVER}" if self._account else _RECOVER,
            )
        else:
            what = f"the structure of {shape.full_name} is not known: {state.reason}"
        raise DecodeError(what, where=self._at(position), fix=_RECOVER)

    def _with_charsets(self, shape: TableMap, state: CatalogTable, position: Position) -> CatalogTable:
        """A column without a charset took the default of a database that is not known: the event may say it."""
        missing = [j for j, column in enumerate(state.columns) if lacks_charset(column)]
        if not missing:
            return state
        columns = list(state.columns)
        for j in missing:
            charset = _charset(shape, j)
            if charset is None:
                raise DecodeError(
                    f'the character set of column "{columns[j].name}" of {shape.full_name} is not known: its statement'
                    " names none, and that of the database at the time is written nowhere",
                    where=self._at(position), fix=_RECOVER,
                )  # fmt: skip
            columns[j] = replace(columns[j], charset=charset)
        known = replace(state, columns=tuple(columns))
        self._history.tables[self._history.key(shape.database, shape.name)] = known
        return known

    def _register(self, state: CatalogTable, position: Position, shape: TableMap | None = None) -> Table:
        made = structure(
            state, self._flavor, self._identity, shape.nullable if shape is not None else None,
            null_zero_dates=self._null_zero_dates,
        )  # fmt: skip
        # A structure that was there before keeps its number, but what was renamed on the way to it is today's.
        return replace(self._schemas.register(made, position), renamed=made.renamed)

    def _forget_defaults(self, since: Sequence[tuple[str, str]] | None) -> None:
        """Of tables that a statement named between the place and the catalog; if those are not known, of all."""
        since_then = "\n".join(text for _, text in since or ()).lower()
        for key, state in self._history.tables.items():
            if isinstance(state, CatalogTable) and (since is None or key[1].lower().replace("`", "``") in since_then):
                forgotten = tuple(replace(c, default=None) for c in state.columns)
                self._history.tables[key] = replace(state, columns=forgotten)

    def _rewind(self, since: Sequence[tuple[str, str]]) -> None:
        statements: list[tuple[str, sql.Statement]] = []
        for database, text in since:
            try:
                found = parse_anyhow(text, mariadb=self._flavor is Flavor.MARIADB)
            except NotUnderstood:
                # Undone it cannot be, so all that is known is that nothing is known of the tables before it.
                named = {name.lower() for name in re.findall(r"[\w$]+", text)}
                for key in [key for key in self._history.tables if key[1].lower() in named]:
                    self._history.tables[key] = Unknown("a later statement was not understood")
                continue
            statements += [(database, statement) for statement in found]
        rewind(self._history, statements)

    def _at(self, position: Position) -> str:
        return f"{self._where}, position {position}" if self._where else f"position {position}"


def _shape_of(state: State | None) -> object:
    return (state.columns, state.key) if isinstance(state, CatalogTable) else state


def _charset(shape: TableMap, j: int) -> str | None:
    """Of a column's collation, where the event tells that."""
    number = shape.collations[j] if shape.collations else None
    return None if number is None else charsets.of_collation(number)


def _is_sequence(shape: TableMap) -> bool:
    """The catalog lists sequences apart from tables, so that only these are asked about."""
    types, first = _SEQUENCE
    return shape.types == types and (not shape.names or shape.names[0] == first)
