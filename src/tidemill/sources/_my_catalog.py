"""The catalog as it is now, for the schema history: what `decoders/mysqltables` begins with."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.decoders.mysqltables import CatalogColumn, CatalogDatabase, CatalogTable
from tidemill.sources._my_connect import Session
from tidemill.sources._my_tables import SYSTEM


def read_databases(db: Session) -> list[CatalogDatabase]:
    rows = db.rows(
        "SELECT SCHEMA_NAME AS n, DEFAULT_CHARACTER_SET_NAME AS c FROM information_schema.SCHEMATA"
        " WHERE SCHEMA_NAME NOT IN %s ORDER BY 1",
        [SYSTEM],
    )
    return [CatalogDatabase(row["n"], row["c"] or "") for row in rows]


def read_tables(db: Session, wanted: Callable[[str, str], bool]) -> list[CatalogTable]:
    """Three questions for all tables together: a question per table takes minutes on servers with many."""
    charsets = {
        row["c"]: row["s"]
        for row in db.rows("SELECT COLLATION_NAME AS c, CHARACTER_SET_NAME AS s FROM information_schema.COLLATIONS")
    }
    columns: dict[tuple[str, str], list[CatalogColumn]] = {}
    for row in db.rows(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, COLUMN_NAME AS c, COLUMN_TYPE AS type, CHARACTER_SET_NAME AS s,"
        " IS_NULLABLE AS n, GENERATION_EXPRESSION AS g, EXTRA AS e FROM information_schema.COLUMNS"
        " WHERE TABLE_SCHEMA NOT IN %s ORDER BY TABLE_SCHEMA, TABLE_NAME, ORDINAL_POSITION",
        [SYSTEM],
    ):
        extra = (row["e"] or "").upper()
        made = CatalogColumn(
            row["c"], _text(row["type"]), row["s"] or "", nullable=row["n"] == "YES", generated=bool(row["g"]),
            invisible="INVISIBLE" in extra,
        )  # fmt: skip
        columns.setdefault((row["d"], row["t"]), []).append(made)
    keys: dict[tuple[str, str], list[str]] = {}
    for row in db.rows(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, COLUMN_NAME AS c FROM information_schema.STATISTICS"
        " WHERE INDEX_NAME = 'PRIMARY' AND TABLE_SCHEMA NOT IN %s ORDER BY TABLE_SCHEMA, TABLE_NAME, SEQ_IN_INDEX",
        [SYSTEM],
    ):
        keys.setdefault((row["d"], row["t"]), []).append(row["c"])
    tables = db.rows(
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, TABLE_COLLATION AS c FROM information_schema.TABLES"
        " WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN %s ORDER BY 1, 2",
        [SYSTEM],
    )
    return [
        CatalogTable(name[0], name[1], tuple(columns.get(name, ())), tuple(keys.get(name, ())),
                     charsets.get(row["c"], ""))
        for row in tables if wanted(*(name := (row["d"], row["t"])))
    ]  # fmt: skip


def _text(value: str | bytes) -> str:
    # MySQL's COLUMN_TYPE is a mediumtext, which some versions send as bytes.
    return value.decode() if isinstance(value, bytes) else value
