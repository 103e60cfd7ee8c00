"""One run over a runtime that follows a script: when it ends, what it repeats, and what it leaves to others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tidemill.errors import ConfigError, SourceError, TidemillError, is_retryable
from tidemill.retry import RetryPolicy
from tidemill.service.cause import Cause
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.schedule import one_run
from tidemill.service.schedule.one_run import OneRun
from tidemill.service.schedule.values import RunFailed, RunResult, ServerEnds

RUNNING = PipelineStatus("orders", State.RUNNING)
CAUGHT_UP = replace(RUNNING, caught_up=True, events=3)
FAILED = PipelineStatus("orders", State.FAILED, events=2)
STOPPED = replace(RUNNING, state=State.STOPPED)


class ScriptedRuntime:
    """Each start begins the next script, which shows one status after the other, and the last one for ever. A drain
    ends what runs."""

    def __init__(self, *scripts: Sequence[PipelineStatus], error: TidemillError | None = None) -> None:
        self._scripts, self._error, self.drains = list(scripts), error, 0
        self._left: list[PipelineStatus] = []

    def start(self) -> bool:
        self._left = list(self._scripts.pop(0))
        return True

    def status(self, name: str) -> PipelineStatus:
        self._shown = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return self._shown

    def error(self, name: str) -> TidemillError | None:
        return self._error

    def drain(self, name: str, **given: Any) -> None:
        self.drains += 1
        self._left = [replace(self._shown, state=State.STOPPED) if self._shown.state is State.RUNNING else self._shown]


@pytest.fixture(autouse=True)
def _looks_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_run, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(one_run, "_WATCH_SECONDS", 0.001)


def run_over(
    runtime: ScriptedRuntime,
    *,
    start: Callable[[], bool] | None = None,
    max_empty_reads: int = 0,
    stopping: threading.Event | None = None,
    seconds: float = 60.0,
) -> RunResult:
    return OneRun(
        runtime,  # type: ignore[arg-type]
        "orders",
        start=start or runtime.start,
        may_mend=is_retryable,
        policy=RetryPolicy(first=0.001, most=0.001, seconds=seconds),
        stopping=stopping or threading.Event(),
        cause=Cause("test"),
        max_empty_reads=max_empty_reads,
    ).execute()


def grow(*captured: int) -> Sequence[PipelineStatus]:
    return [replace(CAUGHT_UP, events=each) for each in captured]


def test_a_run_ends_when_what_was_there_is_delivered() -> None:
    runtime = ScriptedRuntime([RUNNING, RUNNING, CAUGHT_UP])
    assert run_over(runtime) == RunResult(3, 1)
    assert runtime.drains == 1


def test_a_run_with_empty_reads_stays_until_nothing_came_in_so_many_looks() -> None:
    runtime = ScriptedRuntime([RUNNING, *grow(1, 1, 2, 2, 2, 9)])
    assert run_over(runtime, max_empty_reads=2) == RunResult(2, 1)
    runtime = ScriptedRuntime([RUNNING, *grow(1, 1, 2, 2, 2, 9)])
    assert run_over(runtime, max_empty_reads=3) == RunResult(9, 1)


def test_a_failure_that_another_try_may_mend_is_repeated_and_its_events_count() -> None:
    runtime = ScriptedRuntime([RUNNING, FAILED], [RUNNING, CAUGHT_UP], error=SourceError("the pond is flooded"))
    assert run_over(runtime) == RunResult(5, 2)
    with pytest.raises(RunFailed, match="the pond is dry") as failure:
        run_over(ScriptedRuntime([FAILED], error=ConfigError("the pond is dry")))
    assert (failure.value.data["events"], failure.value.data["attempts"]) == (2, 1)
    with pytest.raises(RunFailed, match="the pond is flooded"):
        run_over(ScriptedRuntime([FAILED], error=SourceError("the pond is flooded")), seconds=0.0)


def test_a_pipeline_that_is_not_wanted_any_more_ends_its_run_as_stopped() -> None:
    assert run_over(ScriptedRuntime([RUNNING]), start=lambda: False) == RunResult(0, 0, stopped=True)
    runtime = ScriptedRuntime([RUNNING, replace(STOPPED, events=4)])
    wanted = iter([True, False])
    assert run_over(runtime, start=lambda: next(wanted) and runtime.start()) == RunResult(4, 1, stopped=True)


def test_a_run_is_left_to_the_next_server_when_its_own_ends() -> None:
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(ServerEnds):
        run_over(ScriptedRuntime([RUNNING]), stopping=stopping)
    with pytest.raises(ServerEnds):
        run_over(ScriptedRuntime([FAILED], error=SourceError("the pond is flooded")), stopping=stopping)
