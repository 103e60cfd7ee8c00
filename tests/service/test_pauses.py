"""A pause that goes on capturing: what comes meanwhile waits in the log, and fails by itself."""

from __future__ import annotations

import pytest

from tests.service.scripted_runtime import CAPTURES, ScriptedCapture, ScriptedRuntime, is_free
from tests.support.scripted import FailedCapture, ScriptedStream
from tests.support.session_standin import NO_SPARK
from tests.support.waiting import until
from tidemill.errors import (
    LifecycleError,
    PositionLost,
)
from tidemill.service.run.record import transitions_of
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime


def test_a_pause_may_go_on_capturing_and_every_call_may_come_twice(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders", pause=CAPTURES)
    pipeline = runtime._find(name).pipeline
    seen: list[tuple[State, bool]] = []
    for call in (
        runtime.start, runtime.pause, runtime.pause, runtime.resume, runtime.resume, runtime.pause, runtime.start,
        runtime.pause, runtime.stop, runtime.start, runtime.pause, runtime.restart,
    ):  # fmt: skip
        call(name)
        seen.append((scripted.state(name), is_free(pipeline)))
    running, paused, stopped = (State.RUNNING, False), (State.PAUSED, False), (State.STOPPED, True)
    assert seen == [
        running, paused, paused, running, running, paused, running, paused, stopped, running, paused, running,
    ]  # fmt: skip
    starts = ScriptedCapture.calls.count("start")
    assert starts == 3, "at each start of a stopped one, and not after a pause"
    runtime.pause(name)
    with pytest.raises(LifecycleError, match="a paused pipeline delivers nothing"):
        runtime.drain(name)
    runtime.remove(name)
    assert is_free(pipeline)


def test_what_is_captured_in_a_pause_waits_in_the_log_and_is_delivered_after_it(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders", pause=CAPTURES)
    pipeline = runtime._find(name).pipeline
    runtime.start(name)
    until(lambda: scripted.delivered(name))
    runtime.pause(name)
    scripted.capture(pipeline, 2)
    until(lambda: runtime.status(name).lag_events == 10)
    assert (scripted.state(name), runtime.status(name).sinks[0].lag_events) == (State.PAUSED, 10)
    runtime.resume(name)
    until(lambda: (runtime.status(name).events, runtime.status(name).lag_events) == (20, 0))
    expected = ["running", "paused", "stopping", "running"]
    until(lambda: [each.state for each in transitions_of(pipeline, 10)] == expected)


def test_a_pipeline_that_starts_paused_captures_and_needs_no_spark(
    scripted: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that was restarted in the pause."""
    with Runtime() as runtime:
        monkeypatch.setattr(runtime, "_session", lambda pipeline: pytest.fail("Spark is not needed"))
        ScriptedStream.outlook["orders"] = "up"
        name = runtime.add(scripted.pipeline("orders", CAPTURES))
        for _ in range(2):
            runtime.start(name, paused=True)
            assert (runtime.status(name).state, ScriptedCapture.calls) == (State.PAUSED, ["start"])
        until(lambda: runtime.status(name).lag_events == 10)
        monkeypatch.setattr(runtime, "_session", lambda pipeline: NO_SPARK)
        runtime.resume(name)
        until(lambda: runtime.status(name).events == 10)
        assert ScriptedCapture.calls == ["start"]


def test_capture_that_fails_in_a_pause_is_a_failure_that_delivers_nothing(
    scripted: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, name = scripted.runtime, scripted.add("orders", "down", pause=CAPTURES)
    runtime.start(name)
    runtime.pause(name)
    ScriptedStream.outlook[name] = "up"
    monkeypatch.setattr(ScriptedCapture, "watch", FailedCapture.watch)
    until(lambda: scripted.state(name) is State.FAILED)
    until(lambda: is_free(runtime._find(name).pipeline))
    assert (runtime.status(name).events, runtime.status(name).lag_events) == (0, 10)
    assert isinstance(runtime.error(name), PositionLost)
    with pytest.raises(LifecycleError, match="only a paused pipeline can be resumed"):
        runtime.resume(name)
    monkeypatch.undo()
