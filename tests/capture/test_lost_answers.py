"""One outage: the log's answer is lost and the source's connection breaks. Nothing shows twice, or otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pyarrow.fs as pafs
import pytest

from tests.capture.standins import StandInLog, StandInSchemas, StandInSource, run
from tests.log.look import events
from tests.support.blocks import make_change, position
from tidemill.capture.loop import Capture, Limits
from tidemill.errors import ConnectionLost, LogError, SpillLost
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.objects import ObjectStore
from tidemill.model.change import Change
from tidemill.model.position import Position
from tidemill.retry import RetryPolicy


class Outage(ObjectStore):
    """A stand-in for a store that takes the second append's record and answers again after `failures` requests."""

    failures = 3
    records = 0
    arrives = True

    def publish(self, name: str, at: int, record: bytes) -> None:
        self.records += 1
        if self.records == 2 and self.arrives:
            super().publish(name, at, record)
        if self.records >= 2 and self.failures:
            self.failures -= 1
            raise LogError("no answer")
        super().publish(name, at, record)


class Recutting(StandInSource):
    """Transactions of three events, the second and third in one append; a new connection sends one at a time. It breaks
    when it is told something while the log does not answer."""

    began = position(0)

    def __init__(self, stop: threading.Event, last: int, store: Outage) -> None:
        super().__init__(stop, last)
        self._store = store

    def open(self, after: Position | None, *_: Any, **__: Any) -> None:
        self.opened.append(after)
        self._next = int((after or position(0))[2:-2], 16) + 1

    def changes(self, wait: float) -> Iterator[Change]:
        sizes = (3, 3) if self._next == 2 and len(self.opened) == 1 else (3,)
        if self._next > self._last:
            self._stop.set()
        else:
            change = make_change(*sizes, number=self._next)
            self._next += len(sizes)
            yield change

    def due(self, delivered: Position | None, *, caught_up: bool) -> None:
        if self._store.records >= 2 and len(self.opened) == 1:
            raise ConnectionLost("the server went away")


@pytest.mark.parametrize("arrives", [True, False], ids=["the record arrived", "the record did not arrive"])
def test_what_the_log_may_show_is_never_sent_again_in_another_shape(
    monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    monkeypatch.setattr("tidemill.capture.loop.RetryPolicy", lambda: RetryPolicy(first=0.01, most=0.01))
    memory, _ = pafs.FileSystem.from_uri("mock://")
    store, stop, progress = Outage(memory, "log"), threading.Event(), list[int]()
    store.arrives = arrives
    log = LogWriter.open(store, LogConfig())
    source = Recutting(stop, 5, store)
    limits = Limits(ahead_bytes=1 << 30)
    Capture(cast(Any, source), log, cast(Any, StandInSchemas()), limits, stop, on_progress=progress.append).run()
    log.close()
    assert source.opened == [None, position(3)], "the source was asked for what the log has"
    found = events(LogReader(ObjectStore(memory, "log")))
    assert [event["offset"] for event in found] == list(range(15))
    assert [event["position"] for event in found] == [position(number) for number in range(1, 6) for _ in range(3)]
    assert sum(progress) == 15


def test_a_piece_of_a_transaction_that_is_gone_is_not_tried_again_but_sent_again() -> None:
    stop = threading.Event()

    def writing(attempt: int) -> None:
        if attempt == 2:
            raise SpillLost("a piece is gone")

    log = StandInLog(writing)
    source = StandInSource(stop, 3)
    run(source, log, stop)
    assert source.opened == ["0", "1"]
    assert log.stored == ["1", "2", "3"]
