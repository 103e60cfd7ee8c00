from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import redis

from tests.delivery.destination import Event
from tests.delivery.workload import Row
from tidemill.control.servers.valkey import Valkey


class Redis:
    """One stream for both tables, on a server that syncs before it answers."""

    state = False

    def __init__(self, directory: Path) -> None:
        self._server = Valkey({"appendonly": "yes", "appendfsync": "always"})

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.close()

    def restart(self) -> None:
        self._server.stop(kill=True)
        self._server.start()

    def config(self, port: int | None) -> dict[str, Any]:
        return {"uri": f"redis://127.0.0.1:{port}/0", "stream": "proof", "timeout_seconds": 5}

    def events(self) -> Iterable[Event]:
        with redis.Redis(port=self.port) as client:
            entries: Any = client.xrange("proof")
        return [orjson.loads(fields[b"event"]) for _, fields in entries]

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("a stream holds events")


destination = Redis
