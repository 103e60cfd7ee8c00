"""Which tables can be copied and how: their structure, the key that chunks are cut by, and whether their engine has
consistent reads. `snapshot` asks before it plans.

The key is the primary key, else the unique key with the fewest columns and, of those, the smallest. Columns that may be
NULL, prefixes and expressions do not serve: a table that has nothing else is read as one chunk.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from tidemill.decoders.binlog import BinlogPlace, Flavor
from tidemill.decoders.mysql_schema import CatalogTable, structure
from tidemill.errors import SourceError
from tidemill.model.position import Position
from tidemill.model.snapshot import SnapshotTable
from tidemill.model.table import Table
from tidemill.sources.mysql import catalog
from tidemill.sources.mysql import resume as position
from tidemill.sources.mysql.chunks import KeyColumn
from tidemill.sources.mysql.client import MysqlSession
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.tables import Selection, name_of, quote

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig

_LONGEST_HEAD = 4096  # no transaction ends within a file's first events; beyond this, they are not looked at
_HEAD = ("Format_desc", "Previous_gtids", "Gtid_list", "Binlog_checkpoint", "Start_encryption")
_AUTO_INCREMENT = re.compile(rb" AUTO_INCREMENT=\d+")


@dataclass(frozen=True, slots=True)
class CopyToken:
    """What the reader must know of a table beyond its structure (`SnapshotTable.token`). `definition` is a hash of SHOW
    CREATE TABLE. `index` is the key's; `strings` are (charset, collation) of its columns. `transactional`: the engine
    has consistent reads. `versioned`: rows of the past are rows too (MariaDB's system versioning)."""

    definition: str
    index: str
    strings: tuple[tuple[str, str], ...]
    transactional: bool
    versioned: bool

    def to_json(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str) -> CopyToken:
        doc: dict[str, Any] = orjson.loads(text)
        strings = tuple((charset, collation) for charset, collation in doc.pop("strings"))
        return cls(strings=strings, **doc)


def key_columns(table: SnapshotTable) -> list[KeyColumn]:
    by_name = {column.name: column for column in table.table.columns}
    strings = CopyToken.from_json(table.token).strings
    return [KeyColumn(by_name[name], *text) for name, text in zip(table.key, strings, strict=True)]


def point_columns(table: SnapshotTable) -> list[KeyColumn]:
    """The columns by which single rows are named: those of the table's own key, to which system versioning adds one."""
    known = {part.column.name: part for part in key_columns(table)}
    return [known.get(column.name) or KeyColumn(column) for column in table.table.key_columns()]


def full_name(table: Table) -> str:
    return f"{quote(table.schema)}.{quote(table.name)}"


def definition(db: MysqlSession, table: str) -> str:
    """Differs when the structure does. How far AUTO_INCREMENT has come stands in the server's text, too."""
    rows = db.rows(f"SHOW CREATE TABLE {table}")
    text = rows[0]["Create Table"] if rows else ""
    data = text if isinstance(text, bytes) else str(text).encode(errors="surrogateescape")
    return hashlib.sha256(_AUTO_INCREMENT.sub(b"", data)).hexdigest()


def find(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig, names: Sequence[str]) -> list[SnapshotTable]:
    """In order of their names. Definitions are read before structures: a statement in between is noticed by them."""
    captured = config.selection(server)
    wanted = Selection.of(names, config.parsed_dsn.database, ignore_case=server.ignores_case)
    left_out = ("", *captured.left_out)
    facts = {key: row for key, row in _facts(db, left_out).items() if captured(*key) and wanted(*key)}
    definitions = {}
    for database, table in facts:
        try:
            definitions[database, table] = definition(db, f"{quote(database)}.{quote(table)}")
        except SourceError:  # dropped since it was listed
            continue
    known = {(made.database, made.name): made for made in catalog.read_tables(db, server, left_out)}
    indexes, strings = _indexes(db, server, left_out), _strings(db, left_out)
    identity = "key" if server.setting("binlog_row_image").upper() == "MINIMAL" else "full"
    nulls = config.zero_dates == "null"
    high = end(db, server, config).text()
    found = []
    for key in sorted(definitions.keys() & known.keys()):
        state, (transactional, estimate) = known[key], facts[key]
        made = structure(state, server.flavor, identity, null_zero_dates=nulls).with_fingerprint()
        index, columns = _choose(indexes.get(key, {}), state)
        token = CopyToken(
            definitions[key], index, tuple(strings.get((*key, name), ("", "")) for name in columns), transactional,
            any(column.row_end for column in state.columns),
        )  # fmt: skip
        found.append(SnapshotTable(made, columns, estimate, Position(high), token=token.to_json()))
    return found


def end(db: MysqlSession, server: MysqlServerInfo, config: MysqlConfig) -> BinlogPlace:
    """A place that the stream comes to, after every transaction that is visible now. The end of a file is none where
    the last events are no transaction."""
    now = position.now(db, server, config)
    if now.gtids is not None:
        return now
    if server.flavor is Flavor.MARIADB:
        now = snapshot_place(db, server)
    if now.offset < _LONGEST_HEAD:
        rows = db.rows(f"SHOW BINLOG EVENTS IN '{now.file}' LIMIT 6")
        if all(row["Event_type"] in _HEAD for row in rows if int(row["Pos"]) < now.offset):
            return replace(now, offset=4)
    return now


def snapshot_place(db: MysqlSession, server: MysqlServerInfo) -> BinlogPlace:
    """Where the consistent snapshot of this session stands in the binlog of MariaDB; without one, the last commit."""
    rows = db.rows("SHOW SESSION STATUS LIKE 'binlog_snapshot_%'")
    said = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    file, offset = said.get("binlog_snapshot_file", ""), said.get("binlog_snapshot_position", "")
    if not file or not offset:
        raise SourceError("the server does not say where its snapshot stands in the binlog", where=db.where)
    return BinlogPlace(server.flavor, None, file, int(offset), server.identity)


def _facts(db: MysqlSession, left_out: Sequence[str]) -> dict[tuple[str, str], tuple[bool, int]]:
    """Of every base table: whether its engine has transactions, and about how many rows it has."""
    rows = db.rows(
        "SELECT CAST(t.TABLE_SCHEMA AS BINARY) AS d, CAST(t.TABLE_NAME AS BINARY) AS t, t.TABLE_ROWS AS n,"
        " e.TRANSACTIONS AS x FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e"
        " ON e.ENGINE = t.ENGINE WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED')"
        " AND t.TABLE_SCHEMA NOT IN %s",
        [left_out],
    )
    return {
        (name_of(row["d"]), name_of(row["t"])): (row["x"] == "YES", -1 if row["n"] is None else int(row["n"]))
        for row in rows
    }


_Parts = list[tuple[str | None, bool]]


def _indexes(
    db: MysqlSession, server: MysqlServerInfo, left_out: Sequence[str]
) -> dict[tuple[str, str], dict[str, _Parts]]:
    """Unique indexes by table and name: (column, whether all of it counts and it cannot be NULL), in order. A part that
    is an expression has no column."""
    found: dict[tuple[str, str], dict[str, _Parts]] = {}
    in_use = "IGNORED = 'NO'" if server.flavor is Flavor.MARIADB else "IS_VISIBLE = 'YES'"
    for row in db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, CAST(INDEX_NAME AS BINARY) AS i,"
        " CAST(COLUMN_NAME AS BINARY) AS c, SUB_PART AS p, NULLABLE AS n FROM information_schema.STATISTICS"
        f" WHERE NON_UNIQUE = 0 AND INDEX_TYPE = 'BTREE' AND {in_use} AND TABLE_SCHEMA NOT IN %s"
        " ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
        [left_out],
    ):
        parts = found.setdefault((name_of(row["d"]), name_of(row["t"])), {}).setdefault(name_of(row["i"]), [])
        whole = row["p"] is None and row["n"] != "YES" and row["c"] is not None
        parts.append((None if row["c"] is None else name_of(row["c"]), whole))
    return found


def _strings(db: MysqlSession, left_out: Sequence[str]) -> dict[tuple[str, str, str], tuple[str, str]]:
    """(charset, collation) of text columns that are in a unique index. ENUM and SET are compared as numbers."""
    rows = db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, CAST(COLUMN_NAME AS BINARY) AS c,"
        " CHARACTER_SET_NAME AS s, COLLATION_NAME AS k FROM information_schema.COLUMNS"
        " WHERE COLUMN_KEY <> '' AND CHARACTER_SET_NAME IS NOT NULL AND DATA_TYPE NOT IN ('enum', 'set')"
        " AND TABLE_SCHEMA NOT IN %s",
        [left_out],
    )
    return {(name_of(row["d"]), name_of(row["t"]), name_of(row["c"])): (row["s"], row["k"]) for row in rows}


def _choose(indexes: dict[str, _Parts], table: CatalogTable) -> tuple[str, tuple[str, ...]]:
    """(index, columns) to cut by; empty if there is none."""
    usable = {
        name: tuple(column for column, _ in parts if column is not None)
        for name, parts in indexes.items()
        if all(whole for _, whole in parts)
    }
    if not usable:
        return "", ()
    kinds = {column.name: column.type for column in table.columns}
    best = min(
        usable,
        key=lambda name: (
            name != "PRIMARY",
            len(usable[name]),
            sum(_size(kinds.get(c, "")) for c in usable[name]),
            name,
        ),
    )
    return best, usable[best]


def _size(kind: str) -> int:
    """About how many bytes a value has, to tell a number from a long text."""
    base = re.split(r"[ (]", kind, maxsplit=1)[0].lower()
    number = re.search(r"\((\d+)", kind)
    fixed = {"tinyint": 1, "year": 1, "smallint": 2, "mediumint": 3, "date": 3, "int": 4, "float": 4, "enum": 2}
    return fixed.get(base) or (int(number[1]) if number and base.endswith(("char", "binary")) else 8)
