from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from tests.delivery.destination import Event
from tests.delivery.workload import Row
from tidemill.lab.servers.http_receiver import Received, Receiver, ScriptedResponse


class Http:
    """A receiver that remembers every request it answered, and is out of order for a while when it is restarted."""

    state = False

    def __init__(self, directory: Path) -> None:
        self._down = threading.Event()
        self._receiver = Receiver(self._answer)

    @property
    def port(self) -> int:
        return int(self._receiver.url.rpartition(":")[2])

    def start(self) -> None:
        self._receiver.__enter__()

    def stop(self) -> None:
        self._receiver.__exit__(None, None, None)

    def restart(self) -> None:
        """Its memory is this process: what dies is every request for half a second."""
        self._down.set()
        threading.Timer(0.5, self._down.clear).start()

    def config(self, port: int | None) -> dict[str, Any]:
        return {"url": f"http://127.0.0.1:{port}/events", "mode": "batch", "max_events": 10, "timeout_seconds": 5}

    def events(self) -> Iterable[Event]:
        """In the order of arrival. Requests of different keys run side by side; a key's follow one another."""
        return [orjson.loads(line) for request in self._receiver.taken for line in request.body.splitlines()]

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("a webhook gets events")

    def _answer(self, request: Received) -> ScriptedResponse:
        return ScriptedResponse(status=503) if self._down.is_set() else ScriptedResponse()


destination = Http
