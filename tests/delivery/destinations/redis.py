from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson
import redis

from tests.delivery.destination import Event, HoldsEvents
from tidemill.lab.servers.valkey import Valkey


class Redis(HoldsEvents[Valkey]):
    """One stream for both tables, on a server that syncs before it answers."""

    def __init__(self, directory: Path) -> None:
        self.server = Valkey({"appendonly": "yes", "appendfsync": "always"})

    def config(self, port: int | None) -> dict[str, Any]:
        return {"uri": f"redis://127.0.0.1:{port}/0", "stream": "proof", "timeout_seconds": 5}

    def events(self) -> Iterable[Event]:
        with redis.Redis(port=self.port) as client:
            entries: Any = client.xrange("proof")
        return [orjson.loads(fields[b"event"]) for _, fields in entries]


destination = Redis
