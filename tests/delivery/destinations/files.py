from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.crash.delivered import from_files
from tests.delivery.destination import Event
from tests.delivery.workload import Row


class Files:
    state = False
    port = None

    def __init__(self, directory: Path) -> None:
        self._path = directory / "files"

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...

    def config(self, port: int | None) -> dict[str, Any]:
        return {"path": str(self._path)}

    def events(self) -> Iterable[Event]:
        return from_files(self._path)

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("files hold events")


destination = Files
