"""The catalog as it is now, for the schema history: what `decoders/mysql_schema/` begins with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemill.decoders.binlog import BinlogPlace, Flavor, GtidSet, MysqlGtids
from tidemill.decoders.mysql_schema import (
    SYSTEM,
    CatalogColumn,
    CatalogDatabase,
    CatalogTable,
    ServerCatalog,
    implicit_period,
    is_rounded,
    of_catalog,
)
from tidemill.errors import ConnectionLost, SourceError
from tidemill.sources.mysql import resume as position
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.client import MysqlSession
from tidemill.sources.mysql.errors import GrantMissing
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.tables import name_of, quote

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig


def read(db: MysqlSession, server: MysqlServerInfo, place: BinlogPlace, config: MysqlConfig) -> ServerCatalog:
    """All tables, and for a stream that begins in the past every statement since. Where events describe their tables
    and have whole rows, nobody may ever need those: they are read only if they are few."""
    left_out = ("", *config.selection(server).left_out)  # SQL has no empty list
    databases, tables = read_databases(db, left_out), read_tables(db, server, left_out)
    at = position.now(db, server, config)
    named, whole = server.full_metadata, server.setting("binlog_row_image").upper() == "FULL"
    since: list[tuple[str, str]] | None = []
    if not place.is_at(at):
        much = named and whole and place.file != at.file
        nowhere = place.file == at.file and place.offset > at.offset  # the stream will be refused
        since = None if much or nowhere else list(statements(db, server, place))
    return ServerCatalog(databases, tables, at, since, named)


def read_databases(db: MysqlSession, left_out: Sequence[str] = SYSTEM) -> list[CatalogDatabase]:
    rows = db.rows(
        "SELECT CAST(SCHEMA_NAME AS BINARY) AS n, DEFAULT_CHARACTER_SET_NAME AS c FROM information_schema.SCHEMATA"
        " WHERE SCHEMA_NAME NOT IN %s ORDER BY SCHEMA_NAME",
        [left_out],
    )
    return [CatalogDatabase(name_of(row["n"]), row["c"] or "") for row in rows]


def read_tables(db: MysqlSession, server: MysqlServerInfo, left_out: Sequence[str] = SYSTEM) -> list[CatalogTable]:
    """Three questions for all tables together: a question per table takes minutes on servers with many. Only of
    defaults that the catalog does not print exactly, which are few, tables are asked themselves. What people wrote is
    asked for as bytes: it need not be UTF-8 (`_show`)."""
    mariadb = server.flavor is Flavor.MARIADB
    charsets = {
        row["c"]: row["s"]
        for row in db.rows("SELECT COLLATION_NAME AS c, CHARACTER_SET_NAME AS s FROM information_schema.COLLATIONS")
    }
    columns: dict[tuple[str, str], list[CatalogColumn]] = {}
    for row in db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, CAST(COLUMN_NAME AS BINARY) AS c,"
        " CAST(COLUMN_TYPE AS BINARY) AS type, CHARACTER_SET_NAME AS s, IS_NULLABLE AS n, EXTRA AS e,"
        " CAST(GENERATION_EXPRESSION AS BINARY) AS g, CAST(COLUMN_DEFAULT AS BINARY) AS v"
        " FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA NOT IN %s ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
        [left_out],
    ):
        extra = (row["e"] or "").upper()
        made = CatalogColumn(
            name_of(row["c"]), _show(row["type"]), row["s"] or "", nullable=row["n"] == "YES",
            generated=bool(row["g"]), invisible="INVISIBLE" in extra, row_end=row["g"] == b"ROW END",
            default=of_catalog(None if row["v"] is None else _show(row["v"]), extra, mariadb=mariadb),
        )  # fmt: skip
        columns.setdefault((name_of(row["d"]), name_of(row["t"])), []).append(made)
    keys: dict[tuple[str, str], list[str]] = {}
    for row in db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, CAST(COLUMN_NAME AS BINARY) AS c"
        " FROM information_schema.STATISTICS WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA NOT IN %s"
        " ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX",
        [left_out],
    ):
        keys.setdefault((name_of(row["d"]), name_of(row["t"])), []).append(name_of(row["c"]))
    tables = db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, TABLE_COLLATION AS c,"
        " TABLE_TYPE AS k"
        " FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
        " AND TABLE_SCHEMA NOT IN %s ORDER BY TABLE_SCHEMA, TABLE_NAME",
        [left_out],
    )
    found = []
    for row in tables:
        key = (name_of(row["d"]), name_of(row["t"]))
        listed = columns.get(key, [])
        if row["k"] == "SYSTEM VERSIONED" and not any(column.row_end for column in listed):
            listed += implicit_period()
            if primary := keys.get(key):
                primary.append(listed[-1].name)
        exact = _exact(db, *key, columns.get(key, []), mariadb=mariadb)
        found.append(CatalogTable(*key, tuple(exact), tuple(keys.get(key, ())), charsets.get(row["c"], "")))
    return found


def _exact(
    db: MysqlSession, database: str, table: str, columns: list[CatalogColumn], *, mariadb: bool
) -> list[CatalogColumn]:
    """With defaults asked by DEFAULT(), where the catalog rounds them. It needs a row. For an empty table MySQL makes
    one up to count, and MariaDB for an outer join, where what is NOT NULL has no answer."""
    asked = [j for j, column in enumerate(columns) if is_rounded(column, mariadb=mariadb)]
    if not asked:
        return columns
    said = {f"v{j}": _say(columns[j]) for j in asked}
    shown = ", ".join(f"{expression} AS {alias}" for alias, expression in said.items())
    name = f"{quote(database)}.{quote(table)}"
    if mariadb:
        empty = f"SELECT {shown} FROM (SELECT 1 AS one) AS one LEFT JOIN {name} ON FALSE"
    else:
        counted = ", ".join(f"ANY_VALUE({expression}) AS {alias}" for alias, expression in said.items())
        empty = f"SELECT {counted}, COUNT(*) AS n FROM {name}"
    try:
        row = db.row(f"SELECT {shown} FROM {name} LIMIT 1") or db.row(empty)
    except ConnectionLost:
        raise
    except (GrantMissing, SourceError):  # not ours to read, or changed by now: what it has is not known
        row = {}
    made = list(columns)
    for j in asked:
        value = row.get(f"v{j}")
        made[j] = replace(columns[j], default=None if value is None else _default_text(columns[j], value))
    return made


def _say(column: CatalogColumn) -> str:
    name = quote(column.name)
    if column.charset:
        return f"HEX(CONVERT(DEFAULT({name}) USING utf8mb4))"
    if "binary" in column.type:
        return f"HEX(DEFAULT({name}))"
    return f"UNIX_TIMESTAMP(DEFAULT({name}))" if "timestamp" in column.type else f"DEFAULT({name}) + 0e0"


def _default_text(column: CatalogColumn, value: Any) -> str | None:
    if column.charset:
        try:
            return f"'{bytes.fromhex(value).decode()}'"
        except UnicodeDecodeError:  # half of a surrogate pair: MariaDB takes it for a letter in UCS-2 and UTF-32
            return None
    return f"0x{value}" if "binary" in column.type else f"@{value}"


def statements(db: MysqlSession, server: MysqlServerInfo, place: BinlogPlace) -> Iterator[tuple[str, str]]:
    """(database, text) of every statement in the binlog after `place`, in order; of DML only its BEGIN is among them.

    The server lists every event of its files for this, so it is asked only where nothing else can tell.
    """
    files = facts.binlog_files(db)
    names = [file.name for file in files]
    # A place of GTIDs that was just asked of the server also has its file; one that was saved has none.
    found = place.file in names
    for number, file in enumerate(files[names.index(place.file) if found else 0 :]):
        begin = place.offset if found and number == 0 else 4
        if begin > file.size:  # the stream will say that there is no such place; MariaDB refuses to list it
            continue
        known = False
        for row in db.each(f"SHOW BINLOG EVENTS IN '{file.name}' FROM {begin}"):
            kind, info = row["Event_type"], row["Info"]
            if kind.lower() in ("gtid", "gtid_tagged"):
                # MariaDB's binlog_alter_two_phase: of START, COMMIT and ROLLBACK only COMMIT has changed anything.
                known = "START ALTER" in info or "ROLLBACK ALTER" in info
                known = known or (place.gtids is not None and _has(place.gtids, info))
            elif kind.startswith("Query") and not known and (text := _statement(info)):
                yield text


def _has(gtids: GtidSet, info: str) -> bool:
    """The text of a GTID event: `SET @@SESSION.GTID_NEXT= 'uuid:5'`, or MariaDB's `BEGIN GTID 0-1-5 cid=7`."""
    if isinstance(gtids, MysqlGtids):
        found = re.search(r"'([^']+)'", info)
        return found is not None and MysqlGtids.parse(found[1]).is_subset(gtids)
    number = re.search(r"GTID (\d+)-\d+-(\d+)", info)
    return number is not None and gtids.contains(int(number[1]), int(number[2]))


def _statement(info: str) -> tuple[str, str] | None:
    if info in ("BEGIN", "COMMIT", "ROLLBACK"):
        return None
    used = re.match(r"use `((?:[^`]|``)*)`; ", info)
    text = info[used.end() :] if used else info
    # MySQL 8 adds its own number of the transaction as a comment; the binlog's statement has none.
    text = re.sub(r" /\* xid=\d+ \*/$", "", text)
    return (used[1].replace("``", "`") if used else ""), text


def _show(value: bytes) -> str:
    """MariaDB lists the bytes of a default as they are where it can take them for letters, and it takes halves of
    surrogate pairs (ED A0 80) for such. Other bytes that are none it lists as question marks (`is_rounded`)."""
    return value.decode(errors="replace").replace("\ufffd", "?")
