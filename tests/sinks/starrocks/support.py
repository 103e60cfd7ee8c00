"""A sink, the stand-in and the rows that are there."""

from __future__ import annotations

import uuid
from typing import Any

from tests.sinks.benches import SinkBench
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.sinks.starrocks import StarRocksConfig, StarRocksSink


class Bench(SinkBench[StarRocksSink]):
    def __init__(self, server: StarRocks) -> None:
        super().__init__()
        self.server = server
        self.database = f"test_{uuid.uuid4().hex[:8]}"

    def _make(self, **options: Any) -> StarRocksSink:
        settings = {
            "id": "sr", "url": f"http://127.0.0.1:{self.server.http_port}", "mysql_port": self.server.mysql_port,
            "password": "secret", "database": self.database, "request_timeout_seconds": 5, **options,
        }  # fmt: skip
        return StarRocksSink(StarRocksConfig(**settings))

    def rows(self, what: str = "id, name, note", table: str = "t") -> list[dict[str, Any]]:
        found = self.server.query(f"SELECT {what} FROM `{self.database}`.`{table}` ORDER BY 1")
        return [{k: int(v) if k == "id" else v for k, v in row.items()} for row in found]
