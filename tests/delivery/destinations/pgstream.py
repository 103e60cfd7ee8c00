from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.delivery.destination import Event
from tests.delivery.workload import Row
from tidemill.control.servers.postgres import Postgres as Server
from tidemill.sinks.pgstream import Client


class Pgstream:
    """One stream for both tables, read by a new group each time."""

    state = False

    def __init__(self, directory: Path) -> None:
        self._server = Server()
        self._readings = 0

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
        return {"dsn": self._server.dsn().replace(f":{self.port}/", f":{port}/"), "stream": "proof"}

    def events(self) -> Iterable[Event]:
        self._readings += 1
        with Client(self._server.dsn()) as client:
            group = client.group("proof", f"reading {self._readings}")
            while messages := group.pull(1000):
                yield from (message.json() for message in messages)
                group.ack(*messages)

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("a stream holds events")


destination = Pgstream
