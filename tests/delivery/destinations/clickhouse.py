from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.delivery.destination import HoldsRows
from tests.delivery.workload import Row
from tidemill.lab.servers.clickhouse_standin import ClickHouse as Server


class ClickHouse(HoldsRows[Server]):
    """The engine behind our HTTP front (a stand-in of the server); a query through FINAL is what a reader sees."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(directory / "clickhouse")

    def config(self, port: int | None) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{port}", "database": "proof", "request_timeout_seconds": 10}

    def rows(self, table: str) -> Iterable[Row]:
        return self.server.query(f"SELECT * FROM proof.{table} FINAL")


destination = ClickHouse
