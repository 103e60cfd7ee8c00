"""What the proof needs of a destination. One file per sink in `destinations/` implements it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from tests.delivery.workload import Row

Event = dict[str, Any]


class Destination(Protocol):
    """A server (or a directory) that belongs to one test. `port` is where it listens, None if it has no connection.

    A log-like destination answers `events`, native events as JSON shows them, in the order a consumer meets them per
    key; a destination that holds state answers `rows`, Python values by column, only those that are current.
    """

    state: bool
    port: int | None

    def __init__(self, directory: Path) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None:
        """As after `kill -9`: nothing acknowledged may be gone."""

    def config(self, port: int | None) -> dict[str, Any]:
        """The sink's settings, reached through `port`."""

    def events(self) -> Iterable[Event]: ...

    def rows(self, table: str) -> Iterable[Row]: ...
