"""Many pipelines start a few at a time, and none that does not get going holds the others up."""

from __future__ import annotations

import threading

import pytest

from tests.support.waiting import until
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.server import start_pace
from tidemill.service.server.start_pace import StartPace


class Pipelines:
    """Their statuses, as a test sets them."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.going: set[str] = set()
        self.failed: set[str] = set()
        self.stopping = threading.Event()

    def statuses(self) -> list[PipelineStatus]:
        return [
            PipelineStatus(name, State.FAILED if name in self.failed else State.RUNNING, lanes_stand=name in self.going)
            for name in list(self.started)
        ]

    def start_all(self, count: int, *, at_once: int) -> threading.Thread:
        pace = StartPace(self.statuses, at_once=at_once)

        def start() -> None:
            for number in range(count):
                pace.wait(f"p{number}", self.stopping.is_set)
                self.started.append(f"p{number}")

        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        return thread


def test_so_many_get_going_at_a_time_and_the_next_when_one_runs_or_failed() -> None:
    pipelines = Pipelines()
    thread = pipelines.start_all(5, at_once=2)
    until(lambda: pipelines.started == ["p0", "p1"])
    pipelines.going.add("p1")
    until(lambda: pipelines.started == ["p0", "p1", "p2"])
    pipelines.failed.add("p0")
    until(lambda: pipelines.started == ["p0", "p1", "p2", "p3"])
    assert thread.is_alive()
    pipelines.going |= {"p2", "p3"}
    thread.join(10)
    assert not thread.is_alive()


def test_one_that_does_not_get_going_holds_up_the_others_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_pace, "_LONGEST_SECONDS", 0.2)
    pipelines = Pipelines()
    pipelines.start_all(3, at_once=1).join(10)
    assert pipelines.started == ["p0", "p1", "p2"]


def test_a_server_that_stops_waits_for_nobody() -> None:
    pipelines = Pipelines()
    thread = pipelines.start_all(3, at_once=1)
    until(lambda: pipelines.started == ["p0"])
    pipelines.stopping.set()
    thread.join(10)
    assert not thread.is_alive()
