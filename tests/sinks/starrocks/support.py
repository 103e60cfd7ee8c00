"""A sink, the stand-in and the rows that are there."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa

from tests.support.changes import column, structure
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.starrocks import StarRocksConfig, StarRocksSink

INSERT, UPDATE, DELETE, TRUNCATE = Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE

ID = column("id", "bigint", pa.int64(), nullable=False)

NAME = column("name", "text", pa.string())

NOTE = column("note", "text", pa.string())

T = structure("t", ID, NAME, NOTE)


class Bench:
    def __init__(self, server: StarRocks) -> None:
        self.server = server
        self.database = f"test_{uuid.uuid4().hex[:8]}"
        self._open: list[StarRocksSink] = []

    def sink(self, **options: Any) -> StarRocksSink:
        settings = {
            "id": "sr", "url": f"http://127.0.0.1:{self.server.http_port}", "mysql_port": self.server.mysql_port,
            "password": "secret", "database": self.database, "request_timeout_seconds": 5, **options,
        }  # fmt: skip
        self._open.append(StarRocksSink(StarRocksConfig(**settings)))
        return self._open[-1]

    def write(self, *deliveries: Delivery, **options: Any) -> None:
        sink = self.sink(**options)
        for each in deliveries:
            sink.write(each)

    def rows(self, what: str = "id, name, note", table: str = "t") -> list[dict[str, Any]]:
        found = self.server.query(f"SELECT {what} FROM `{self.database}`.`{table}` ORDER BY 1")
        return [{k: int(v) if k == "id" else v for k, v in row.items()} for row in found]

    def close(self) -> None:
        for sink in self._open:
            sink.close()


def row(id: int, name: str | None = "a", note: str | None = "n") -> dict[str, Any]:
    return {"id": id, "name": name, "note": note}
