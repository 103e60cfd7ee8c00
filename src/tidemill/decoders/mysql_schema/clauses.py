"""Reads what stands inside a statement of DDL: clauses of ALTER TABLE, keys, charsets, names. `ddl` reads the rest."""

from __future__ import annotations

from tidemill.decoders._shared.mysql.fill import NONE
from tidemill.decoders.mysql_schema import defaults
from tidemill.decoders.mysql_schema.column_definition import charset_name, charset_of_collation, definition
from tidemill.decoders.mysql_schema.statements import (
    AddColumn,
    AddKey,
    Aside,
    ChangeColumn,
    Charset,
    Clause,
    DropColumn,
    DropKey,
    RenameColumn,
    SetDefault,
    ShowColumn,
    Versioning,
    WrittenName,
)
from tidemill.decoders.mysql_schema.tokens import NotUnderstood, TokenReader

_NOT_COLUMNS = {"INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN", "CHECK"}
_INDEXES = ("INDEX", "KEY", "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
_HARMLESS = {
    "ENABLE", "DISABLE", "FORCE", "ENGINE", "TYPE", "COMMENT", "ALGORITHM", "LOCK", "AUTO_INCREMENT", "ROW_FORMAT",
    "KEY_BLOCK_SIZE", "COMPRESSION", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "CHECKSUM", "DELAY_KEY_WRITE",
    "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH", "PACK_KEYS", "PASSWORD", "INSERT_METHOD", "UNION", "CONNECTION",
    "STATS_AUTO_RECALC", "STATS_PERSISTENT", "STATS_SAMPLE_PAGES", "TABLESPACE", "STORAGE", "IMPORT", "DISCARD",
    "WITH", "WITHOUT", "PARTITION", "REMOVE", "REORGANIZE", "COALESCE", "EXCHANGE", "TRUNCATE", "ANALYZE", "CHECK",
    "OPTIMIZE", "REBUILD", "REPAIR", "UPGRADE", "ORDER", "TRANSACTIONAL", "PAGE_CHECKSUM", "PAGE_COMPRESSED",
    "PAGE_COMPRESSION_LEVEL", "SEQUENCE", "IETF_QUOTES", "DATA", "INDEX", "SECONDARY_ENGINE", "SECONDARY_LOAD",
    "SECONDARY_UNLOAD", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "AUTOEXTEND_SIZE", "START", "NOWAIT", "WAIT",
}  # fmt: skip


def alteration(clause: TokenReader, mariadb: bool) -> list[Clause]:
    if clause.take("ADD"):
        return _add(clause, mariadb)
    if clause.take("DROP"):
        return _drop_clause(clause)
    if clause.take("MODIFY") or clause.looks("CHANGE"):
        change = clause.take("CHANGE")
        clause.take("COLUMN")
        if_exists = clause.take("IF", "EXISTS")
        old = clause.name() if change else ""
        column = definition(clause, mariadb=mariadb)
        made: list[Clause] = [ChangeColumn(old or column.name, column, if_exists)]
        return [*made, AddKey((column.name,))] if column.primary else made
    if clause.take("RENAME"):
        if not clause.take("COLUMN"):
            old = index_name(clause)
            return [Aside("index", index_name(clause) if clause.take("TO") else old)]
        if_exists = clause.take("IF", "EXISTS")
        old = clause.name()
        clause.expect("TO")
        return [RenameColumn(old, clause.name(), if_exists)]
    if clause.take("ALTER"):
        return _alter_column(clause, mariadb)
    if clause.take("CONVERT"):
        if not clause.take("TO"):
            return []  # MariaDB: CONVERT PARTITION … TO TABLE
        name = charset_option(clause)
        if name is None:
            raise NotUnderstood("CONVERT TO without a charset")
        return [Charset(name, convert=True)]
    return _options(clause)


def _options(clause: TokenReader) -> list[Clause]:
    """Table options stand in one clause, with or without commas."""
    if clause.peek() not in _HARMLESS | {"DEFAULT", "CHARACTER", "CHARSET", "COLLATE"}:
        raise NotUnderstood("an unknown clause of ALTER TABLE")
    start, comment = clause.at, None
    while clause:
        if clause.take("COMMENT"):
            clause.take("=")
            comment = clause.next().text if clause else ""
        else:
            clause.parenthesis() if clause.peek() == "(" else clause.next()
    clause.at = start
    charset = charset_option(clause)
    made: list[Clause] = [] if comment is None else [Aside("comment", comment)]
    return made if charset is None else [*made, Charset(charset)]


def _add(clause: TokenReader, mariadb: bool) -> list[Clause]:
    if not clause.looks("COLUMN"):
        if clause.take("SYSTEM", "VERSIONING"):
            return [Versioning(True)]
        if clause.peek() == "PARTITION":
            return []
        start, key = clause.at, key_columns(clause)
        if key is not None:
            return _added_key(clause, start, key)
    clause.take("COLUMN")
    if_not_exists = clause.take("IF", "NOT", "EXISTS")
    elements = clause.parenthesis().clauses() if clause.peek() == "(" else [clause]
    made: list[Clause] = []
    for element in elements:
        start, key = element.at, key_columns(element)
        if key is not None:
            made += _added_key(element, start, key)
            continue
        column = definition(element, mariadb=mariadb)
        made.append(AddColumn(column, if_not_exists))
        if column.primary:
            made.append(AddKey((column.name,)))
    return made


def _drop_clause(clause: TokenReader) -> list[Clause]:
    if clause.take("PRIMARY", "KEY"):
        return [DropKey()]
    if kind := clause.take_any("INDEX", "KEY", "CONSTRAINT", "CHECK"):
        clause.take("IF", "EXISTS")
        name = clause.next().text
        aside: list[Clause] = [Aside("index", name)] if kind in ("INDEX", "KEY") else []
        return [DropKey()] if name.upper() == "PRIMARY" else aside
    if clause.take("FOREIGN", "KEY") or clause.take("PARTITION") or clause.take("PERIOD", "FOR"):
        return []
    if clause.take("SYSTEM", "VERSIONING"):
        return [Versioning(False)]
    clause.take("COLUMN")
    if_exists = clause.take("IF", "EXISTS")
    return [DropColumn(clause.name(), if_exists)]


def _alter_column(clause: TokenReader, mariadb: bool) -> list[Clause]:
    if kind := clause.take_any("INDEX", "KEY", "CHECK", "CONSTRAINT"):
        return [Aside("index", index_name(clause))] if kind in ("INDEX", "KEY") else []
    clause.take("COLUMN")
    if_exists = clause.take("IF", "EXISTS")
    name = clause.name()
    if clause.take("SET"):
        if shown := clause.take_any("VISIBLE", "INVISIBLE"):
            return [ShowColumn(name, shown == "INVISIBLE")]
        clause.expect("DEFAULT")
        return [SetDefault(name, defaults.read(clause, mariadb=mariadb), if_exists)]
    clause.expect("DROP", "DEFAULT")
    return [SetDefault(name, NONE, if_exists)]


def _added_key(element: TokenReader, start: int, key: tuple[str, ...]) -> list[Clause]:
    """What `key_columns` found from `start` on: the primary key, an index, or a constraint that is none."""
    if key:
        return [AddKey(key)]
    element.at = start
    if element.take("CONSTRAINT") and element.peek() != "UNIQUE":
        element.next()
    if element.peek() not in _INDEXES:
        return []
    return [Aside("index", index_name(element))]


def index_name(reader: TokenReader) -> str:
    """Empty where it has none: then the server makes it from its first column."""
    while reader.take_any(*_INDEXES) or reader.take("IF", "NOT", "EXISTS") or reader.take("IF", "EXISTS"):
        pass
    return "" if not reader or reader.peek() in ("(", "USING") else reader.next().text


def key_columns(element: TokenReader) -> tuple[str, ...] | None:
    """The primary key's columns if the element defines one, () for any other index or constraint, None for a column."""
    start = element.at
    if element.take("CONSTRAINT") and element.peek() not in ("PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        element.name()
    if element.take("PRIMARY", "KEY"):
        element.take("IF", "NOT", "EXISTS")
        while element and element.peek() != "(":
            element.next()  # a name that counts for nothing, USING BTREE
        return tuple(part.name() for part in element.parenthesis().clauses())
    special = element.peek() in _NOT_COLUMNS or element.looks("PERIOD", "FOR") or element.at > start
    special = special or element.looks("VECTOR", "INDEX") or element.looks("VECTOR", "KEY")
    if special:
        return ()
    element.at = start
    return None


def charset_option(reader: TokenReader) -> str | None:
    """The last charset among table or database options; empty for DEFAULT, None where none is named."""
    found: str | None = None
    by_collation = ""
    while reader:
        if reader.peek() == "(":
            reader.parenthesis()
        elif reader.take("CHARACTER", "SET") or reader.take("CHARSET") or reader.take("CHAR", "SET"):
            reader.take("=")
            found = "" if reader.take("DEFAULT") else charset_name(reader.string())
        elif reader.take("COLLATE"):
            reader.take("=")
            by_collation = charset_of_collation(reader.string())
        elif reader.looks("PARTITION", "BY"):
            break
        else:
            reader.next()
    return by_collation or None if found is None else found or by_collation


def step_over_wait(reader: TokenReader) -> None:
    if not reader.take("NOWAIT") and reader.take("WAIT"):
        reader.next()


def table_name(reader: TokenReader) -> WrittenName:
    first = reader.name()
    return WrittenName(first, reader.name()) if reader.take(".") else WrittenName("", first)
