"""Removes what no event since a recovery began has written (contracts/recovery.py): a row's version is its offset."""

from __future__ import annotations

from tidemill.sinks.starrocks.rows import VERSION
from tidemill.sinks.starrocks.tables import StarRocksTableName, StarRocksTables, quote


def remove_older(tables: StarRocksTables, name: StarRocksTableName, version: int) -> int:
    """Rows of a lower version, or of none; how many there were."""
    if not tables.describe(name):
        return 0
    older = f"{quote(VERSION)} < {version} OR {quote(VERSION)} IS NULL"
    found = int(tables.run(f"SELECT COUNT(*) FROM {name} WHERE {older}")[0][0])
    if found:
        tables.run(f"DELETE FROM {name} WHERE {older}")
    return found
