"""Pipelines through all their states, from any thread. Streams are scripted: no Spark is needed."""

from __future__ import annotations

import logging
import random
import threading
from pathlib import Path

import pytest

from tests.service.scripted_runtime import CAPTURES, ScriptedCapture, ScriptedRuntime, is_free
from tests.support.scripted import DOWN, REFUSES, FailedCapture, ScriptedStream
from tests.support.waiting import until
from tidemill.errors import (
    AlreadyRunning,
    ConfigError,
    LifecycleError,
    PositionLost,
    TidemillError,
    UnknownPipeline,
)
from tidemill.service.run import supervisor
from tidemill.service.run.ownership import lock_pipeline
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.runtime import Runtime
from tidemill.stream.report import BatchReport


def test_a_pipeline_goes_through_its_states_and_every_call_may_come_twice(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders")
    pipeline = runtime._find(name).pipeline
    seen: list[tuple[State, bool]] = []
    for call in (
        runtime.start, runtime.start, runtime.pause, runtime.pause, runtime.resume, runtime.resume, runtime.drain,
        runtime.drain, runtime.start, runtime.stop, runtime.stop, runtime.restart, runtime.pause, runtime.stop,
        runtime.start, runtime.pause, runtime.start,
    ):  # fmt: skip
        call(name)
        seen.append((scripted.state(name), is_free(pipeline)))
    running, paused, stopped = (State.RUNNING, False), (State.PAUSED, False), (State.STOPPED, True)
    assert seen == [
        running, running, paused, paused, running, running, stopped, stopped, running, stopped, stopped, running,
        paused, stopped, running, paused, running,
    ]  # fmt: skip
    runtime.remove(name)
    assert (runtime.names, is_free(pipeline)) == ([], True)


def test_a_look_that_hangs_is_told_and_what_it_said_last_is_not_taken_for_now(
    scripted: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Java process is stopped: every call into it waits."""
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 0.2)
    runtime, name = scripted.runtime, scripted.add("orders")
    runtime.start(name)
    hangs, awake = threading.Event(), threading.Event()

    def hang(self: ScriptedStream) -> bool:
        hangs.set()
        return awake.wait(30)

    monkeypatch.setattr(ScriptedStream, "running", property(hang))
    assert hangs.wait(30)
    until(lambda: "has not answered for" in runtime.status(name).error.get("what", ""))
    told = runtime.status(name)
    assert (told.state, told.error["code"], told.lag_bytes) == (State.RUNNING, "spark-lost", None)
    assert runtime.statuses()[0].error["code"] == "spark-lost"
    awake.set()
    until(lambda: not runtime.status(name).error)


def test_what_a_state_does_not_allow_is_refused_with_what_to_do(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders")
    with pytest.raises(LifecycleError, match='"orders" is created: only a running') as refusal:
        runtime.pause(name)
    assert refusal.value.fix == "Nothing was changed. Start it first."
    with pytest.raises(LifecycleError, match="only a paused pipeline can be resumed"):
        runtime.resume(name)
    with pytest.raises(LifecycleError, match='there is a pipeline "orders" already'):
        runtime.add(runtime._find(name).pipeline)
    with pytest.raises(UnknownPipeline, match='"others"') as unknown:
        runtime.start(name, "others")
    assert "There are: orders." in unknown.value.fix
    assert scripted.state(name) is State.CREATED
    runtime.start(name)
    runtime.pause(name)
    with pytest.raises(LifecycleError, match="a paused pipeline delivers nothing"):
        runtime.drain(name)
    runtime.close()
    runtime.close()
    for call in (lambda: runtime.start(name), lambda: runtime.stop(name), lambda: runtime.subscribe()):
        with pytest.raises(LifecycleError, match="closed"):
            call()
    assert scripted.state(name) is State.STOPPED


def test_of_several_pipelines_all_start_or_none(scripted: ScriptedRuntime) -> None:
    runtime, names = scripted.runtime, [scripted.add("first"), scripted.add("second")]
    second = runtime._find("second").pipeline
    with lock_pipeline(second), pytest.raises(AlreadyRunning):
        runtime.start(*names)
    assert [scripted.state(name) for name in names] == [State.CREATED, State.CREATED]
    assert is_free(runtime._find("first").pipeline)
    runtime.start(*names)
    assert [scripted.state(name) for name in names] == [State.RUNNING, State.RUNNING]


def test_pipelines_that_ask_for_different_spark_settings_are_refused_when_they_are_added(
    tmp_path: Path, scripted: ScriptedRuntime
) -> None:
    documents = [scripted.pipeline("first"), scripted.pipeline("second")]
    documents[1].spec.spark.conf["spark.driver.memory"] = "1g"
    documents[0].spec.spark.conf["spark.driver.memory"] = "2g"
    with Runtime() as runtime:
        runtime.add(documents[0])
        with pytest.raises(ConfigError, match=r"set spark\.driver\.memory to 2g and to 1g"):
            runtime.add(documents[1])
        assert runtime.names == ["first"]


def test_a_failed_pipeline_starts_again_and_its_neighbour_never_notices(scripted: ScriptedRuntime) -> None:
    runtime, good, bad = scripted.runtime, scripted.add("good"), scripted.add("bad", "refuses")
    errors: list[tuple[str, TidemillError]] = []
    runtime.subscribe(on_error=lambda name, error: errors.append((name, error)))
    runtime.start(good, bad)
    run = runtime._find(good)._run
    until(lambda: scripted.state(bad) is State.FAILED and scripted.delivered(good))
    error = runtime.error(bad)
    assert error is not None
    until(lambda: errors == [(bad, error)])
    until(lambda: is_free(runtime._find(bad).pipeline))  # `recover` and its like can work on it
    ScriptedStream.outlook[bad] = "up"
    runtime.start(bad)
    until(lambda: scripted.delivered(bad))
    assert (scripted.state(bad), runtime.error(bad)) == (State.RUNNING, None)
    assert (scripted.state(good), runtime._find(good)._run) == (State.RUNNING, run)


def test_a_pipeline_that_is_failing_is_not_started_but_can_be_restarted(
    scripted: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScriptedCapture, "watch", FailedCapture.watch)
    runtime, name = scripted.runtime, scripted.add("orders", "down")
    runtime.start(name)
    until(lambda: scripted.state(name) is State.FAILING)
    with pytest.raises(LifecycleError, match="is failing"):
        runtime.start(name)
    with pytest.raises(LifecycleError, match="is failing"):
        runtime.pause(name)
    runtime.stop(name)
    assert (scripted.state(name), type(runtime.error(name))) == (State.FAILED, PositionLost)
    monkeypatch.undo()


def test_every_subscriber_hears_everything_in_order_and_one_that_raises_disturbs_nobody(
    scripted: ScriptedRuntime,
) -> None:
    runtime, name = scripted.runtime, scripted.add("orders")
    first: list[PipelineStatus] = []
    second: list[PipelineStatus] = []
    batches: list[BatchReport] = []

    def stumble(status: PipelineStatus) -> None:
        raise KeyError("a subscriber's own fault")

    leave = runtime.subscribe(on_status=first.append)
    runtime.subscribe(on_status=stumble)
    runtime.subscribe(on_status=second.append, on_batch=lambda name, report: batches.append(report))
    runtime.start(name)
    until(lambda: scripted.delivered(name))
    runtime.pause(name)
    until(lambda: first and first[-1].state is State.PAUSED)
    leave()
    leave()
    heard = len(first)
    runtime.resume(name)
    runtime.close()
    assert len(first) == heard
    states = [status.state for status in second]
    assert [state for at, state in enumerate(states) if states[at - 1 : at] != [state]] == [
        State.RUNNING, State.STOPPING, State.PAUSED, State.RUNNING, State.STOPPING, State.STOPPED
    ]  # fmt: skip
    assert second[:heard] == first
    assert [(batch.start, batch.end) for batch in batches] == [(0, 10)]


def test_a_subscriber_may_call_the_runtime(scripted: ScriptedRuntime) -> None:
    """For instance to start again what failed."""
    runtime, name = scripted.runtime, scripted.add("orders", "refuses")

    def mend(failed: str, error: TidemillError) -> None:
        ScriptedStream.outlook[failed] = "up"
        runtime.restart(failed)

    runtime.subscribe(on_error=mend)
    runtime.start(name)
    until(lambda: scripted.delivered(name))
    assert scripted.state(name) is State.RUNNING


def test_a_stop_from_another_thread_cuts_a_drain_short(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders", "down")
    runtime.start(name)
    until(lambda: runtime.status(name).sinks[0].state == "failing")
    draining = threading.Thread(target=runtime.drain, args=(name,), kwargs={"seconds": 3600})
    draining.start()
    until(lambda: scripted.state(name) is State.STOPPING)
    with pytest.raises(LifecycleError, match="is stopping"):
        runtime.pause(name)
    assert draining.is_alive()
    runtime.stop(name)
    draining.join(60)
    assert not draining.is_alive()
    assert (scripted.state(name), runtime.status(name).lag_events) == (State.STOPPED, 10)


def test_a_drain_delivers_what_is_there_however_soon_it_comes(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders")
    runtime.start(name)
    runtime.drain(name)
    assert (scripted.state(name), scripted.delivered(name)) == (State.STOPPED, True)


def test_calls_from_many_threads_leave_every_pipeline_in_a_state_that_somebody_asked_for(
    scripted: ScriptedRuntime,
) -> None:
    seed = random.randrange(1 << 30)
    runtime, names = scripted.runtime, [scripted.add("first"), scripted.add("second", pause=CAPTURES)]
    unexpected: list[BaseException] = []

    def meddle(number: int) -> None:
        chance = random.Random(seed + number)
        calls = (runtime.start, runtime.pause, runtime.resume, runtime.drain, runtime.stop, runtime.restart)
        for _ in range(15):
            try:
                chance.choice(calls)(*chance.sample(names, chance.randint(1, 2)))
            except LifecycleError:
                pass
            except BaseException as error:  # noqa: BLE001  the test's verdict
                unexpected.append(error)

    threads = [threading.Thread(target=meddle, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (unexpected, [thread for thread in threads if thread.is_alive()]) == ([], []), f"seed {seed}"
    settled = {State.RUNNING, State.PAUSED, State.STOPPED}
    assert {scripted.state(name) for name in names} <= settled, f"seed {seed}"
    for name in names:
        assert is_free(runtime._find(name).pipeline) == (scripted.state(name) is State.STOPPED), f"seed {seed}"
    runtime.restart(*names)
    until(lambda: all(runtime.status(name).lag_events == 0 for name in names))


def test_a_running_pipeline_can_be_removed_and_added_again(scripted: ScriptedRuntime) -> None:
    runtime, name = scripted.runtime, scripted.add("orders")
    pipeline = runtime._find(name).pipeline
    runtime.start(name)
    until(lambda: scripted.delivered(name))
    runtime.remove(name)
    with pytest.raises(UnknownPipeline):
        runtime.start(name)
    runtime.start(runtime.add(pipeline))
    until(lambda: runtime.status(name).sinks[0].offset == 10)
    assert runtime.status(name).events == 0  # in this run: its position was kept


def test_metrics_of_all_pipelines_and_runs_add_up_in_one_registry_until_a_pipeline_is_removed(
    scripted: ScriptedRuntime,
) -> None:
    runtime, names = scripted.runtime, (scripted.add("orders"), scripted.add("users", DOWN))

    def value(metric: str, name: str, **labels: str) -> float | None:
        return runtime.metrics.registry.get_sample_value(f"tidemill_{metric}", {"pipeline": name, **labels})

    runtime.start(*names)
    until(lambda: scripted.delivered("orders") and value("retries_total", "users", sink="users"))
    assert [value("events_total", name, sink=name) for name in names] == [10, None]
    until(lambda: value("lag_events", "users", sink="users") == 10)
    runtime.restart("orders")
    assert value("events_total", "orders", sink="orders") == 10
    runtime.remove("orders")
    assert [b'pipeline="%s"' % name.encode() in runtime.metrics.text() for name in names] == [False, True]


def test_events_of_a_run_name_its_pipeline(scripted: ScriptedRuntime, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidemill"):
        names = scripted.add("orders"), scripted.add("users", REFUSES)
        scripted.runtime.start(*names)
        until(lambda: scripted.state("users") is State.FAILED)
        scripted.runtime.stop(*names)
    said = {(record.getMessage(), record.__dict__["fields"].get("pipeline")) for record in caplog.records}
    assert {("pipeline.started", name) for name in names} <= said
    assert {("pipeline.failed", "users"), ("pipeline.stopped", "orders")} <= said
    assert {pipeline for _, pipeline in said} == set(names)
