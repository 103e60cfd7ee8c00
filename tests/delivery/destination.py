"""What the proof needs of a destination. One file per sink in `destinations/` implements it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

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


class Server(Protocol):
    """What all servers of `tidemill.lab.servers` can."""

    port: int

    def start(self) -> object: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


ServerT = TypeVar("ServerT", bound=Server)


class _Served(Generic[ServerT]):
    """A destination that is a server of the test's own."""

    server: ServerT

    @property
    def port(self) -> int | None:
        return self.server.port

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.server.close()

    def restart(self) -> None:
        self.server.kill()
        self.server.start()


class HoldsEvents(_Served[ServerT]):
    state: ClassVar[bool] = False

    def rows(self, table: str) -> Iterable[Row]:
        raise NotImplementedError("it holds events")


class HoldsRows(_Served[ServerT]):
    state: ClassVar[bool] = True

    def events(self) -> Iterable[Event]:
        raise NotImplementedError("it holds rows")
