from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.delivery.destination import Event
from tests.delivery.workload import Row
from tidemill.control.servers.postgres import Postgres as Server


class Postgres:
    state = True

    def __init__(self, directory: Path) -> None:
        self._server = Server()

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
        return {"dsn": self._server.dsn().replace(f":{self.port}/", f":{port}/")}

    def events(self) -> Iterable[Event]:
        raise NotImplementedError("tables hold rows")

    def rows(self, table: str) -> Iterable[Row]:
        with psycopg.connect(self._server.dsn(), row_factory=dict_row) as connection:
            return connection.execute(f'SELECT * FROM public."{table}"').fetchall()


destination = Postgres
