"""The catalog of today, taken back to an earlier place of the binlog: statements undone, the last one first.

Needed where capture begins in the past without a history. What cannot be undone (the type of a dropped column is
written nowhere) makes the table `Unknown`: its rows then need names from the binlog itself, or stop capture
(invariant 6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.decoders.mysql_schema import statements as sql
from tidemill.decoders.mysql_schema.catalog import CatalogTable
from tidemill.decoders.mysql_schema.history import State, TableHistory, Unknown
from tidemill.decoders.mysql_schema.temporary import TableKey

_CHANGED = Unknown("a later statement changed it in a way that cannot be undone")


def rewind(history: TableHistory, statements: Sequence[tuple[str, sql.Statement]]) -> None:
    """`statements` are (database, statement) in the order of the binlog."""
    hidden = {
        history.key(name.database or database, name.name)
        for database, statement in statements
        if isinstance(statement, sql.CreateTable | sql.DropTable) and statement.temporary
        for name in (statement.tables if isinstance(statement, sql.DropTable) else (statement.table,))
    }
    for database, statement in reversed(statements):
        _undo(history, database, statement)
    for key in hidden & {key for database, statement in statements for key in _about(history, database, statement)}:
        if key in history.tables:
            history.tables[key] = Unknown("a later statement was about it, or about a temporary table of that name")


def _about(history: TableHistory, database: str, statement: sql.Statement) -> list[TableKey]:
    match statement:
        case sql.AlterTable():
            names = [statement.table]
        case sql.RenameTable():
            names = [name for pair in statement.pairs for name in pair]
        case _:
            names = []
    return [history.key(name.database or database, name.name) for name in names]


def _undo(history: TableHistory, database: str, statement: sql.Statement) -> None:
    def key(name: sql.WrittenName) -> TableKey:
        return history.key(name.database or database, name.name)

    match statement:
        case sql.CreateTable() if not statement.temporary and not statement.if_not_exists:
            history.tables.pop(key(statement.table), None)
        case sql.CreateTable() if not statement.temporary:
            history.tables[key(statement.table)] = _CHANGED
        case sql.DropTable() if not statement.temporary:
            for name in statement.tables:
                history.tables[key(name)] = Unknown("it was dropped later, and the binlog does not say how it was")
        case sql.RenameTable():
            for old, new in reversed(statement.pairs):
                _move(history, key(new), key(old))
        case sql.AlterTable():
            if statement.rename_to is not None:
                _move(history, key(statement.rename_to), key(statement.table))
            state = history.tables.get(key(statement.table))
            if state is not None:
                history.tables[key(statement.table)] = _before(state, statement.clauses)
        case sql.CreateDatabase() if statement.or_replace:
            history.charsets[history.key(statement.name, "")[0]] = ""
        case sql.CreateDatabase() if not statement.if_not_exists:
            history.charsets.pop(history.key(statement.name, "")[0], None)
        case sql.DropDatabase():
            history.charsets[history.key(statement.name, "")[0]] = ""
        case sql.AlterDatabase() if statement.charset is not None:
            history.charsets[history.key(statement.name or database, "")[0]] = ""  # what it was is written nowhere
        case _:
            pass


def _move(history: TableHistory, now: TableKey, then: TableKey) -> None:
    state = history.tables.pop(now, _CHANGED)
    history.tables[then] = state if isinstance(state, Unknown) else replace(state, database=then[0], name=then[1])


def _before(state: State, clauses: Sequence[sql.Clause]) -> State:
    for clause in reversed(clauses):
        if isinstance(state, Unknown):
            return state
        state = _without(state, clause)
    return state


def _without(table: CatalogTable, clause: sql.Clause) -> State:
    columns = {c.name.lower(): c for c in table.columns}
    match clause:
        case sql.AddColumn() if not clause.if_not_exists and clause.column.name.lower() in columns:
            kept = tuple(c for name, c in columns.items() if name != clause.column.name.lower())
            return replace(table, columns=kept)
        case sql.RenameColumn() if clause.new.lower() in columns and clause.old.lower() not in columns:
            back = columns | {clause.new.lower(): replace(columns[clause.new.lower()], name=clause.old)}
            key = tuple(clause.old if name.lower() == clause.new.lower() else name for name in table.key)
            return replace(table, columns=tuple(back.values()), key=key)
        case sql.ShowColumn() | sql.Aside():
            return table  # what is seen without being named does not matter for rows
        case sql.SetDefault():
            low = clause.name.lower()
            kept = tuple(replace(c, default=None) if name == low else c for name, c in columns.items())
            return replace(table, columns=kept)
        case sql.Versioning() if clause.on and any(c.implicit for c in table.columns):
            gone = {c.name for c in table.columns if c.implicit}
            kept = tuple(c for c in table.columns if not c.implicit)
            return replace(table, columns=kept, key=tuple(name for name in table.key if name not in gone))
        case sql.Charset() if not clause.convert:
            return table
        case _:
            return _CHANGED
