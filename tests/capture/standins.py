"""A source and a log of which only the moments matter: when they are called, and what has happened by then."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

from tidemill.capture.loop import Capture, Limits
from tidemill.log.entry import Tail
from tidemill.model.change import Change, Committed
from tidemill.model.position import Position


class StandInLog:
    """`writing` is called in each append, with its number among the attempts. All that it has is delivered, but it may
    say that objects are `waiting`."""

    def __init__(self, writing: Callable[[int], object], *, waiting: int = 0) -> None:
        self._waiting = waiting
        self.tail = Tail(0, Position("0"))
        self.stored: list[Position] = []
        self._writing = writing
        self._attempts = 0

    def append(self, change: Committed) -> Any:
        self._attempts += 1
        self._writing(self._attempts)
        self.stored.append(change.through)
        self.tail = Tail(self.tail.offset + change.events, change.through)
        return type("Entry", (), {"rows": change.events, "bytes": 0, "blocks": ()})

    def settle(self) -> int:
        return 0

    def acknowledged(self) -> Tail:
        return self.tail

    def undelivered_bytes(self) -> int:
        return 0

    def kept_bytes(self) -> int:
        return 0

    def waiting_appends(self) -> int:
        return self._waiting

    def drop_spills(self) -> None:
        pass


class StandInSource:
    """Transactions 1 to `last`, one a read, from the one after the log's end on. `reading` is called in each read."""

    began = Position("0")

    def __init__(
        self, stop: threading.Event, last: int, reading: Callable[[int], object] = lambda number: None
    ) -> None:
        self._stop, self._last, self._reading = stop, last, reading
        self._next = 1
        self.opened: list[Position | None] = []
        self.claims: list[tuple[bool, Position | None]] = []

    def open(self, after: Position | None, *_: Any, **__: Any) -> None:
        self.opened.append(after)
        self._next = int(after or 0) + 1

    def changes(self, wait: float) -> Iterator[Change]:
        self._reading(self._next)
        if self._next > self._last:
            self._stop.set()
        else:
            self._next += 1
            yield Committed((), 1, ((1, Position(str(self._next - 1))),))

    def due(self, delivered: Position | None, *, caught_up: bool) -> None:
        self.claims.append((caught_up, delivered))

    def notices(self) -> tuple[()]:
        return ()

    def close(self) -> None:
        pass


class StandInSchemas:
    """Remembers nothing."""

    def recall(self, name: str) -> None:
        return None


def run(source: StandInSource, log: StandInLog, stop: threading.Event) -> list[int]:
    progress: list[int] = []
    Capture(
        cast(Any, source),
        cast(Any, log),
        cast(Any, StandInSchemas()),
        Limits(ahead_bytes=1),
        stop,
        on_progress=progress.append,
    ).run()
    return progress
