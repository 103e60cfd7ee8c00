"""Removes what no event since a recovery began has written (contracts/recovery.py): a row's version is its offset."""

from __future__ import annotations

from typing import Any

from tidemill.net.clickhouse import explain_errors, literal
from tidemill.sinks.clickhouse.server_table import VERSION, ClickHouseTableName


def remove_older(client: Any, name: ClickHouseTableName, version: int, where: str) -> int:
    """Rows of a lower version; how many there were of keys that are not deleted anyway. With them go older versions of
    rows that were written since, which nobody misses."""
    with explain_errors(where):
        exists = client.command(
            f"SELECT count() FROM system.tables WHERE database = {literal(name.database)}"
            f" AND name = {literal(name.table)}"
        )
        if not int(exists):
            return 0
        found = client.query(f"SELECT count() FROM {name} FINAL WHERE {VERSION} < {version}").result_rows[0][0]
        client.command(f"ALTER TABLE {name} DELETE WHERE {VERSION} < {version}", settings={"mutations_sync": 2})
    return int(found)
