from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.delivery.destination import Event
from tests.delivery.workload import Row
from tidemill.control.servers.clickhouse import ClickHouse as Server


class ClickHouse:
    """The engine behind our HTTP front (a stand-in of the server); a query through FINAL is what a reader sees."""

    state = True

    def __init__(self, directory: Path) -> None:
        self._server = Server(directory / "clickhouse")

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.close()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def config(self, port: int | None) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{port}", "database": "proof", "request_timeout_seconds": 10}

    def events(self) -> Iterable[Event]:
        raise NotImplementedError("tables hold rows")

    def rows(self, table: str) -> Iterable[Row]:
        return self._server.query(f"SELECT * FROM proof.{table} FINAL")


destination = ClickHouse
