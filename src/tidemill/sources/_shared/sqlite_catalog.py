"""Tables of a SQLite file as its own pragmas describe them, and what a statement of a schema would make."""

from __future__ import annotations

import os
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from tidemill.decoders.sqlite import SqliteColumn, SqliteTable, cells_of, data_type, to_arrow
from tidemill.model.table import Initial
from tidemill.sources._shared.sqlite_statements import SqliteToken, expression_text, index_condition, index_terms

OWN = "_tidemill_"  # how the names of our tables and triggers begin


@dataclass(frozen=True, slots=True)
class IndexTerm:
    """A column, or an expression as its tokens are; `column` is empty then."""

    column: str
    expression: tuple[SqliteToken, ...]
    collation: str


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """`condition` says which rows a partial one has; empty where only the application can compute it."""

    name: str
    terms: tuple[IndexTerm, ...]
    partial: bool
    condition: tuple[SqliteToken, ...] = ()

    @property
    def columns(self) -> set[str]:
        """Those that are terms of their own."""
        return {term.column for term in self.terms if term.column}


def file_number(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one that was put in its place; None where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def path_of_file(value: object) -> object:
    """As it is. An address is refused, and not shown: it may have a token in it."""
    if isinstance(value, str) and "://" in value:
        raise ValueError(
            f"{value.partition('://')[0]}://… is the address of a server. Changes of a libSQL or Turso server cannot be"
            " read: give the path of a database file"
        )
    return value


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def table_names(db: sqlite3.Connection) -> dict[str, str]:
    """Name and statement of every ordinary table: no view, no virtual table or its shadows, nothing of SQLite's own.
    Shadows of a module that is not loaded here are known by their names only (`likely_shadows`)."""
    unknown = tuple(f"{name}_" for name in _unknown_virtual_tables(db))
    return {name: sql for name, sql in _ordinary_tables(db) if not name.startswith(unknown)}


def likely_shadows(db: sqlite3.Connection) -> dict[str, list[str]]:
    """By virtual tables whose module is not loaded here: tables that are taken for a part of them."""
    names = [name for name, _ in _ordinary_tables(db)]
    found = {virtual: [n for n in names if n.startswith(f"{virtual}_")] for virtual in _unknown_virtual_tables(db)}
    return {virtual: shadows for virtual, shadows in found.items() if shadows}


def _ordinary_tables(db: sqlite3.Connection) -> list[tuple[str, str]]:
    rows = db.execute(
        "SELECT s.name, s.sql FROM sqlite_schema AS s JOIN pragma_table_list AS l ON l.name = s.name"
        " WHERE l.schema = 'main' AND l.type = 'table' AND s.type = 'table' ORDER BY s.name"
    ).fetchall()
    return [(name, sql) for name, sql in rows if not name.lower().startswith(("sqlite_", OWN))]


def _unknown_virtual_tables(db: sqlite3.Connection) -> list[str]:
    modules = {str(name).lower() for (name,) in db.execute("SELECT name FROM pragma_module_list")}
    virtual = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql LIKE 'CREATE VIRTUAL TABLE%'").fetchall()
    return [name for name, sql in virtual if not _module(sql) & modules]


def _module(sql: str) -> set[str]:
    """What a CREATE VIRTUAL TABLE statement uses. It may have USING in its table's name, too."""
    return {word.lower() for word in re.findall(r"\bUSING\s+[\"'`\[]?(\w+)", sql, re.IGNORECASE)}


def read_table(db: sqlite3.Connection, name: str, *, virtual: bool = True) -> SqliteTable:
    """`virtual`: with generated columns that are not stored, unless they cannot be computed here."""
    strict = without_rowid = False
    for row in db.execute("SELECT wr, strict FROM pragma_table_list(?) WHERE schema = 'main'", [name]):
        without_rowid, strict = bool(row[0]), bool(row[1])
    rows = db.execute('SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?)', [name])
    found = [row for row in rows.fetchall() if row[5] != 2 or (virtual and not why_unreadable(db, name, quote(row[0])))]
    keys = [row[1].upper() for row in found if row[4]]
    rowid = keys == ["INTEGER"] and not without_rowid
    indexed = db.execute("SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", [name]).fetchone() is not None
    descending = rowid and indexed  # the rowid itself has no index
    columns = tuple(
        SqliteColumn(
            column, kind, nullable=not (notnull or (pk and (without_rowid or strict or (rowid and not indexed)))),
            generated=hidden in (2, 3), key=pk, default=default,
        )
        for column, kind, notnull, default, pk, hidden in found
    )  # fmt: skip
    return SqliteTable(name, columns, without_rowid, strict, descending)


def trigger_names_table(sql: str, table: str) -> bool:
    """Whether the statements of a trigger have this name in them; it need not be the table's there."""
    body = sql.lower().partition("begin")[2]
    return re.search(rf"(?<!\w){re.escape(table.lower())}(?!\w)", body) is not None


def unreadable_columns(db: sqlite3.Connection, name: str) -> dict[str, str]:
    """Generated columns that are not stored and cannot be computed here, and why: they call a function of the
    application's."""
    rows = db.execute("SELECT name FROM pragma_table_xinfo(?) WHERE hidden = 2", [name]).fetchall()
    return {column: why for (column,) in rows if (why := why_unreadable(db, name, quote(column)))}


def why_unreadable(db: sqlite3.Connection, table: str, expression: str) -> str:
    """Empty where it can be read. Functions and collations of the application's are not known here."""
    try:
        db.execute(f"SELECT {expression} FROM {quote(table)} LIMIT 0")
    except sqlite3.OperationalError as error:
        if not is_unknown(error):
            raise
        return str(error)
    return ""


def is_unknown(error: sqlite3.Error) -> bool:
    """Whether SQLite lacks what only the application has. A table without a rowid is an index: where the collation of
    its key is not known, it says that it knows no way."""
    known = ("no such collation", "no such function", "unknown function", "no query solution")
    return any(part in str(error).lower() for part in known)


def unique_indexes(db: sqlite3.Connection, name: str) -> list[UniqueIndex]:
    """Also that of the primary key, except where that is the rowid. The statement of an index is asked for only where
    it has expressions or is partial: sqlite_schema has no index, and is read under the write lock, for each of many
    tables."""
    found = []
    indexes = db.execute(
        'SELECT name, partial FROM pragma_index_list(?) WHERE "unique" ORDER BY name', [name]
    ).fetchall()
    for index, partial in indexes:
        rows = db.execute("SELECT cid, name, coll FROM pragma_index_xinfo(?) WHERE key ORDER BY seqno", [index])
        columns = rows.fetchall()
        expressions: list[list[SqliteToken]] = [[]] * len(columns)
        condition: list[SqliteToken] = []
        if partial or any(cid < 0 for cid, _, _ in columns):
            made = "SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?"
            (sql,) = db.execute(made, [index]).fetchone()
            expressions = index_terms(sql)
            condition = _computable(db, name, index_condition(sql)) if partial else []
        terms = tuple(
            IndexTerm(column, (), collation) if cid >= 0 else IndexTerm("", tuple(expression), collation)
            for (cid, column, collation), expression in zip(columns, expressions, strict=True)
        )
        found.append(UniqueIndex(index, terms, bool(partial), tuple(condition)))
    return found


def _computable(db: sqlite3.Connection, name: str, condition: list[SqliteToken]) -> list[SqliteToken]:
    """Empty where a function of the application's is in it: a program without it may update other columns."""
    names = {column.lower() for (column,) in db.execute("SELECT name FROM pragma_table_xinfo(?)", [name])}
    return [] if why_unreadable(db, name, expression_text(condition, names)) else condition


def table_of_statement(sql: str) -> SqliteTable | None:
    """What a CREATE TABLE statement makes, without what it does not store; None if SQLite cannot read it. It is run in
    memory, on an empty database."""
    db = sqlite3.connect(":memory:")
    try:
        db.execute(sql)
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return read_table(db, names[0], virtual=False) if names else None
    except sqlite3.Error:
        return None
    finally:
        db.close()


def default_value(column: SqliteColumn) -> object:
    """What rows that were there read in an added column: the constant, as the column's affinity makes it."""
    if column.default is None:
        return None
    db = sqlite3.connect(":memory:")
    try:
        db.execute("CREATE TABLE t (a)")
        db.execute("INSERT INTO t VALUES (1)")
        db.execute(f"ALTER TABLE t ADD COLUMN {quote(column.name)} {column.declared} DEFAULT {column.default}")
        return db.execute(f"SELECT {quote(column.name)} FROM t").fetchone()[0]
    finally:
        db.close()


def default_literal(column: SqliteColumn) -> str | None:
    """As `quote` writes it; None where there is none, or it is no constant."""
    try:
        value = default_value(column)
    except sqlite3.Error:
        return None
    if value is None:
        return None
    db = sqlite3.connect(":memory:")
    try:
        return str(db.execute("SELECT quote(?)", [value]).fetchone()[0])
    finally:
        db.close()


def initial_values(old: SqliteTable, new: SqliteTable, renamed: tuple[tuple[str, str], ...]) -> dict[str, Initial]:
    """Of columns that were added: what the rows that were there have in them."""
    there = {c.name for c in old.columns} | {now for _, now in renamed}
    found = {}
    for c in new.columns:
        if c.name in there:
            continue
        if c.generated:
            found[c.name] = Initial(unknown="it is generated from other columns")
            continue
        try:
            cells = cells_of([(default_value(c),)], 1)
        except sqlite3.Error:
            found[c.name] = Initial(unknown="its default is not a constant")
            continue
        array, bad = to_arrow(cells, 0, data_type(c.declared).arrow)
        found[c.name] = Initial(array[0]) if bad is None else Initial(unknown="its default is of another kind")
    return found
