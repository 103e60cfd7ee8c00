from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from tests.delivery.destination import HoldsRows
from tests.delivery.workload import Row
from tidemill.lab.servers.postgres import Postgres as Server


class Postgres(HoldsRows[Server]):
    def __init__(self, directory: Path) -> None:
        self.server = Server()

    def config(self, port: int | None) -> dict[str, Any]:
        return {"dsn": self.server.dsn().replace(f":{self.port}/", f":{port}/")}

    def rows(self, table: str) -> Iterable[Row]:
        with psycopg.connect(self.server.dsn(), row_factory=dict_row) as connection:
            return connection.execute(f'SELECT * FROM public."{table}"').fetchall()


destination = Postgres
