from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.delivery.destination import Event, HoldsEvents
from tidemill.lab.servers.postgres import Postgres as Server
from tidemill.sinks.pgstream import Client


class Pgstream(HoldsEvents[Server]):
    """One stream for both tables, read by a new group each time."""

    def __init__(self, directory: Path) -> None:
        self.server = Server()
        self._readings = 0

    def config(self, port: int | None) -> dict[str, Any]:
        return {"dsn": self.server.dsn().replace(f":{self.port}/", f":{port}/"), "stream": "proof"}

    def events(self) -> Iterable[Event]:
        self._readings += 1
        with Client(self.server.dsn()) as client:
            group = client.group("proof", f"reading {self._readings}")
            while messages := group.pull(1000):
                yield from (message.json() for message in messages)
                group.ack(*messages)


destination = Pgstream
