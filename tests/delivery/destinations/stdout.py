from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from tests.delivery.destination import Event
from tests.delivery.workload import Row


class Lines:
    """A file in the place of the terminal."""

    state = False
    port = None

    def __init__(self, directory: Path) -> None:
        self._path = directory / "out"

    def start(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def config(self, port: int | None) -> dict[str, Any]:
        return {"path": str(self._path)}

    def events(self) -> Iterable[Event]:
        return map(orjson.loads, self._path.read_bytes().splitlines())

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("lines are events")


destination = Lines
