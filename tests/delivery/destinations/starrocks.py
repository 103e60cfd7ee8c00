from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.delivery.destination import HoldsRows
from tests.delivery.workload import Row
from tidemill.lab.servers.starrocks_standin import StarRocks as Server


class StarRocks(HoldsRows[Server]):
    """The strict stand-in. The proxy stands before the backend, which is where loads are answered."""

    def __init__(self, directory: Path) -> None:
        self.server = Server(directory / "starrocks")

    @property
    def port(self) -> int:
        return self.server.backend_port

    def config(self, port: int | None) -> dict[str, Any]:
        return {
            "url": f"http://127.0.0.1:{self.server.http_port}", "mysql_port": self.server.mysql_port,
            "backend": f"127.0.0.1:{port}", "database": "proof", "request_timeout_seconds": 10,
        }  # fmt: skip

    def rows(self, table: str) -> Iterable[Row]:
        found = self.server.query(f"SELECT * FROM `proof`.`{table}` WHERE `tidemill_is_deleted` = 0")
        return [{name: _value(name, text) for name, text in row.items()} for row in found]


def _value(name: str, text: str | None) -> Any:
    """The MySQL protocol brings text."""
    if text is None:
        return None
    if name in ("id", "quantity", "paid"):
        return int(text)
    return float(text) if name == "weight" else text


destination = StarRocks
