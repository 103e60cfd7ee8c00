"""DDL of the binlog, read into `statements`.

Only what changes names, columns, types or keys of tables is read; indexes, partitions and options are stepped over.
`NotUnderstood` means that a clause was met which may matter and is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from tidemill.decoders._shared.mysql.session import PLAIN, SqlMode
from tidemill.decoders.mysql_schema.clauses import (
    alteration,
    charset_option,
    index_name,
    key_columns,
    step_over_wait,
    table_name,
)
from tidemill.decoders.mysql_schema.column_definition import PERIOD, Definition, definition
from tidemill.decoders.mysql_schema.statements import (
    AlterDatabase,
    AlterTable,
    Aside,
    Clause,
    CreateDatabase,
    CreateTable,
    DropDatabase,
    DropKey,
    DropTable,
    RenameTable,
    RowStatement,
    Statement,
    TruncateTable,
)
from tidemill.decoders.mysql_schema.tokens import QUOTINGS, NotUnderstood, TokenReader, tokenize, without_quotes

_FIRST = re.compile(
    r"\s*(?:SET\s+STATEMENT\b.*?\bFOR\s+)?(CREATE|ALTER|DROP|RENAME|TRUNCATE|INSERT|REPLACE|UPDATE|DELETE|LOAD)\b",
    re.IGNORECASE | re.DOTALL,
)
_KIND = re.compile(
    r"\b(TABLES?|INDEX|DATABASE|SCHEMA|PROCEDURE|FUNCTION|TRIGGER|EVENT|VIEW|PACKAGE|SEQUENCE|USER|ROLE|SERVER|TABLESPACE|"
    r"UNDO|LOGFILE|INSTANCE|RESOURCE|REFERENCE)\b",
    re.IGNORECASE,
)
_QUERIES = {"SELECT", "VALUES", "TABLE"}


def parse(text: str, *, mariadb: bool, mode: SqlMode = PLAIN) -> list[Statement]:
    """Statements that concern tables or databases; of anything else, nothing. `mode` is the session's sql_mode."""
    if not _concerns_tables(text, mode):
        return []
    found = []
    for reader in TokenReader(tokenize(text, mode), mode).clauses(";"):
        statement = _statement(reader, mariadb)
        if statement is not None:
            found.append(statement)
    return found


def parse_anyhow(text: str, *, mariadb: bool) -> list[Statement]:
    """Where the session's sql_mode is not known: a statement that can mean two things is `NotUnderstood`."""
    if "\\" not in text:
        return parse(text, mariadb=mariadb)
    readings: list[list[Statement]] = []
    problem = NotUnderstood("backslashes that mean one thing or the other")
    for mode in QUOTINGS:
        try:
            found = parse(text, mariadb=mariadb, mode=mode)
        except NotUnderstood as error:  # the session had another one, since the server took the statement
            problem = error
            continue
        readings += [found] if found not in readings else []
    if len(readings) != 1:
        raise problem
    return readings[0]


def _concerns_tables(text: str, mode: SqlMode) -> bool:
    """Before anything is taken apart: the body of a stored program has statements that nobody ran."""
    bare = without_quotes(text, mode)
    first = _FIRST.match(bare)
    if not first or first[1].upper() not in ("CREATE", "ALTER", "DROP", "RENAME"):
        return first is not None
    kind = _KIND.search(bare)
    return kind is not None and kind[0].upper() in ("TABLE", "TABLES", "INDEX", "DATABASE", "SCHEMA")


def _statement(reader: TokenReader, mariadb: bool) -> Statement | None:
    _step_over_prefix(reader)
    match reader.next().upper:
        case "CREATE":
            return _create(reader, mariadb)
        case "ALTER":
            return _alter(reader, mariadb)
        case "DROP":
            return _drop(reader)
        case "RENAME":
            return _rename(reader) if reader.take_any("TABLE", "TABLES") else None
        case "TRUNCATE":
            reader.take("TABLE")
            return TruncateTable(table_name(reader))
        case "INSERT" | "REPLACE" | "UPDATE" | "DELETE" | "LOAD" as word:
            return _row_statement(reader, word)
        case _:
            return None


def _step_over_prefix(reader: TokenReader) -> None:
    # MariaDB: SET STATEMENT max_statement_time=0 FOR ALTER TABLE …
    if reader.take("SET", "STATEMENT"):
        while reader and not reader.take("FOR"):
            reader.next()


def _create(reader: TokenReader, mariadb: bool) -> Statement | None:
    or_replace = reader.take("OR", "REPLACE")
    temporary = reader.take("TEMPORARY")
    if reader.take_any("DATABASE", "SCHEMA"):
        if_not_exists = reader.take("IF", "NOT", "EXISTS")
        return CreateDatabase(reader.name(), charset_option(reader) or "", if_not_exists, or_replace)
    if reader.take_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR", "ONLINE", "OFFLINE", "INDEX"):
        return _on_index(reader)
    if not reader.take("TABLE"):
        return None
    if_not_exists = reader.take("IF", "NOT", "EXISTS")
    table = table_name(reader)
    if temporary:
        return CreateTable(table, temporary=True)
    inner = reader
    parenthesised = reader.peek() == "("
    if parenthesised:
        inner = reader.parenthesis()
    if inner.take("LIKE"):
        return CreateTable(table, source=table_name(inner), if_not_exists=if_not_exists)
    columns: list[Definition] = []
    key: tuple[str, ...] = ()
    queried = parenthesised and inner.peek() in _QUERIES
    # With binlog_format=ROW the servers write the columns out, and the rows as rows.
    selects = queried or _has(reader, lambda: reader.peek() in _QUERIES or reader.looks("AS", "("))
    for element in inner.clauses() if parenthesised and not queried else ():
        found = key_columns(element)
        if found is not None:
            key = found or key
        else:
            columns.append(definition(element, mariadb=mariadb))
    versioned = _has(reader, lambda: reader.looks("WITH", "SYSTEM", "VERSIONING")) or any(c.versioned for c in columns)
    if versioned and not any(c.row_end for c in columns):
        columns += PERIOD
    key = key or tuple(c.name for c in columns if c.primary)
    if key:  # MariaDB: old versions of a row stay in the table, so that its key has the end of their time
        key += tuple(c.name for c in columns if c.row_end)
    if "TRANSACTION" in (word.upper for word in reader.rest()):
        # MySQL wrote the columns of CREATE TABLE … SELECT itself, where a FLOAT has six digits.
        columns = [replace(c, default=None) if c.type.startswith("float") and c.default else c for c in columns]
    charset = charset_option(reader) or ""
    return CreateTable(table, tuple(columns), key, charset, None, if_not_exists, selects=selects)


def _has(options: TokenReader, here: Callable[[], bool]) -> bool:
    """Whether it is true somewhere outside of parentheses. The options can be read again."""
    start, found = options.at, False
    while options and not found:
        found = here()
        options.parenthesis() if options.peek() == "(" else options.next()
    options.at = start
    return found


def _on_index(reader: TokenReader) -> AlterTable | None:
    """CREATE INDEX … ON table, DROP INDEX … ON table: an ALTER that changes no column."""
    name = index_name(reader)
    clause: Clause = DropKey() if name.upper() == "PRIMARY" else Aside("index", name)
    while reader and not reader.take("ON"):
        reader.next()
    return AlterTable(table_name(reader), (clause,)) if reader else None


def _drop(reader: TokenReader) -> Statement | None:
    temporary = reader.take("TEMPORARY")
    if reader.take_any("DATABASE", "SCHEMA"):
        reader.take("IF", "EXISTS")
        return DropDatabase(reader.name())
    if reader.take("INDEX"):
        return _on_index(reader)
    if not reader.take_any("TABLE", "TABLES"):
        return None
    reader.take("IF", "EXISTS")
    return DropTable(tuple(table_name(each) for each in reader.clauses()), temporary)


def _rename(reader: TokenReader) -> RenameTable:
    if_exists = reader.take("IF", "EXISTS")
    pairs = []
    for each in reader.clauses():
        old = table_name(each)
        step_over_wait(each)
        each.expect("TO")
        pairs.append((old, table_name(each)))
    return RenameTable(tuple(pairs), if_exists)


def _row_statement(reader: TokenReader, word: str) -> RowStatement | None:
    for noise in ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "CONCURRENT"):
        reader.take(noise)
    if word == "LOAD":
        while reader and not reader.take("INTO", "TABLE"):
            reader.next()
    else:
        reader.take_any("INTO", "FROM")
    return RowStatement(table_name(reader)) if reader else None


def _alter(reader: TokenReader, mariadb: bool) -> Statement | None:
    reader.take_any("ONLINE", "OFFLINE")
    reader.take("IGNORE")
    if reader.take_any("DATABASE", "SCHEMA"):
        name = "" if reader.peek() in ("CHARACTER", "CHARSET", "COLLATE", "DEFAULT", "READ") else reader.name()
        return AlterDatabase(name, charset_option(reader))
    if not reader.take("TABLE"):
        return None
    if_exists = reader.take("IF", "EXISTS")
    table = table_name(reader)
    step_over_wait(reader)
    clauses: list[Clause] = []
    rename_to = None
    for clause in reader.clauses():
        if clause.looks("ORDER", "BY") or clause.looks("PARTITION", "BY"):
            break  # commas from here on separate columns or partitions
        if _is_rename(clause):
            rename_to = table_name(clause)
        else:
            clauses += alteration(clause, mariadb)
    return AlterTable(table, tuple(clauses), rename_to, if_exists)


def _is_rename(clause: TokenReader) -> bool:
    if not clause.looks("RENAME") or clause.peek(1) in ("COLUMN", "INDEX", "KEY"):
        return False
    clause.next()
    clause.take_any("TO", "AS", "=")
    return True
