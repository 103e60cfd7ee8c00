"""What capture tells the source when a change could not be stored. Source and log are stand-ins: the moment matters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tidemill.capture.loop import Capture, Limits
from tidemill.capture.status import read_told, write_told
from tidemill.errors import LogError
from tidemill.log.entry import Tail
from tidemill.model.change import Change, Committed
from tidemill.model.position import Position


class StandInLog:
    """Refuses the first append; everything it has is delivered."""

    def __init__(self, refusals: int) -> None:
        self.tail = Tail(0, Position("0/1"))
        self.refusals = refusals

    def append(self, change: Committed) -> Any:
        if self.refusals:
            self.refusals -= 1
            raise LogError("no space left", fix="Make room.")
        self.tail = Tail(self.tail.offset + change.events, change.through)
        return type("Entry", (), {"rows": change.events})

    def acknowledged(self) -> Tail:
        return self.tail

    def undelivered_bytes(self) -> int:
        return 0

    def drop_spills(self) -> None:
        pass


class StandInSource:
    """One read brings one transaction; then the loop is stopped, or was while it waited."""

    began = Position("0/1")

    def __init__(self, stop: threading.Event, log: StandInLog, *, stopped_while_reading: bool) -> None:
        self.stop, self.log, self.early = stop, log, stopped_while_reading
        self.consumed_bytes = 0
        self.claims: list[tuple[bool, int]] = []
        self.reads = 0

    @property
    def consumed(self) -> Any:
        return lambda count: None

    def open(self, *_: Any, **__: Any) -> Any:
        return self

    def read(self) -> memoryview:
        self.reads += 1
        if self.early or self.reads > 1:
            self.stop.set()
        return memoryview(b"")

    def feed(self, data: memoryview) -> Iterator[Change]:
        if self.reads == 1:
            yield Committed((), 1, ((1, Position("0/2")),))

    def due(self, delivered: Position | None, *, caught_up: bool) -> None:
        self.claims.append((caught_up, self.log.tail.offset))

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("stopped_while_reading", "refusals"), [(True, 0), (False, 1)], ids=["stop", "full disk"])
def test_a_source_is_never_called_caught_up_before_its_change_is_stored(
    stopped_while_reading: bool, refusals: int
) -> None:
    stop, log = threading.Event(), StandInLog(refusals)
    source = StandInSource(stop, log, stopped_while_reading=stopped_while_reading)
    Capture(cast(Any, source), cast(Any, log), cast(Any, None), Limits(ahead_bytes=1), stop).run()
    assert source.claims, "the source was never asked"
    assert not [claim for claim in source.claims if claim == (True, 0)], "caught up, with the change nowhere"


def test_what_was_told_counts_only_while_the_log_reaches_as_far(tmp_path: Any) -> None:
    write_told(tmp_path, Position("0/500"), 500)
    assert read_told(tmp_path, 500) == "0/500"
    assert read_told(tmp_path, 300) is None
