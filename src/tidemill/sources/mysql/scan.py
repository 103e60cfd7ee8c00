"""The catalog of captured tables as a whole, for comparison with the schema registry. `snapshot` calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidemill.contracts.catalog_scan import CatalogScan, ScannedTable
from tidemill.decoders.binlog import Flavor
from tidemill.decoders.mysql_schema import structure
from tidemill.sources.mysql import catalog
from tidemill.sources.mysql.client import MysqlSession, connect
from tidemill.sources.mysql.server import MysqlServerInfo
from tidemill.sources.mysql.tables import name_of

if TYPE_CHECKING:
    from tidemill.sources.mysql import MysqlConfig


def scan_catalog(config: MysqlConfig, seconds: float) -> CatalogScan:
    with connect(config, answer_seconds=seconds) as db:
        server = MysqlServerInfo.read(db)
        captured = config.selection(server)
        left_out = ("", *captured.left_out)  # SQL has no empty list
        identity = "key" if server.setting("binlog_row_image").upper() == "MINIMAL" else "full"
        nulls = config.zero_dates == "null"
        unique, expressions = _read_unique(db, server, left_out), _read_expressions(db, left_out)
        tables = []
        for state in catalog.read_tables(db, server, left_out):
            key = (state.database, state.name)
            if captured(*key):
                table = structure(state, server.flavor, identity, null_zero_dates=nulls)
                defaults = {column.name: column.default or "" for column in state.columns if not column.generated}
                tables.append(
                    ScannedTable(
                        table.full_name, table, defaults, expressions.get(key, {}), tuple(unique.get(key, {}).values())
                    )
                )
    return CatalogScan({each.name: each for each in tables})


def _read_unique(
    db: MysqlSession, server: MysqlServerInfo, left_out: Sequence[str]
) -> dict[tuple[str, str], dict[str, tuple[str, ...]]]:
    """Columns by table and index. Of MariaDB's system versioning the column that says since when a row is old is part
    of a key."""
    in_use = "IGNORED = 'NO'" if server.flavor is Flavor.MARIADB else "IS_VISIBLE = 'YES'"
    found: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {}
    for row in db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, CAST(INDEX_NAME AS BINARY) AS i,"
        " CAST(COLUMN_NAME AS BINARY) AS c FROM information_schema.STATISTICS"
        f" WHERE NON_UNIQUE = 0 AND COLUMN_NAME IS NOT NULL AND {in_use} AND TABLE_SCHEMA NOT IN %s"
        " ORDER BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX",
        [left_out],
    ):
        indexes = found.setdefault((name_of(row["d"]), name_of(row["t"])), {})
        index = name_of(row["i"])
        indexes[index] = (*indexes.get(index, ()), name_of(row["c"]))
    return found


def _read_expressions(db: MysqlSession, left_out: Sequence[str]) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in db.rows(
        "SELECT CAST(TABLE_SCHEMA AS BINARY) AS d, CAST(TABLE_NAME AS BINARY) AS t, CAST(COLUMN_NAME AS BINARY) AS c,"
        " CAST(GENERATION_EXPRESSION AS BINARY) AS g FROM information_schema.COLUMNS"
        " WHERE GENERATION_EXPRESSION <> '' AND TABLE_SCHEMA NOT IN %s",
        [left_out],
    ):
        text = bytes(row["g"]).decode(errors="replace")
        found.setdefault((name_of(row["d"]), name_of(row["t"])), {})[name_of(row["c"])] = text
    return found
