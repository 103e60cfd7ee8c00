"""Pipelines through all their states, from any thread: scripted streams where no Spark is needed, and real ones where
events must be neither lost nor repeated."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import orjson
import psycopg
import pytest

from tests.config.conftest import PIPELINE
from tests.support.blocks import make_change
from tests.support.components import register
from tests.support.scripted import DOWN, REFUSES, FailedCapture, NoCapture, ScriptedStream
from tidemill import config
from tidemill.errors import (
    AlreadyRunning,
    ConfigError,
    EnvironmentProblem,
    LifecycleError,
    PositionLost,
    TidemillError,
    UnknownPipeline,
)
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogConfig, LogWriter
from tidemill.service.run import pipeline_run
from tidemill.service.run.ownership import lock_pipeline
from tidemill.service.run.record import transitions_of
from tidemill.service.run.spark_session import check_slots, standing_lanes
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.runtime import Runtime
from tidemill.stream.report import BatchReport


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class ScriptedRuntime:
    """A runtime whose capture processes and streams are scripted; its pipelines have ten events each in their logs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime = Runtime(spark=object())

    def pipeline(self, name: str, pause: str = "{}") -> config.Pipeline:
        path = self.directory / f"{name}.yaml"
        document = PIPELINE.replace("name: orders", f"name: {name}").replace("{id: b}", f"{{id: {name}}}")
        path.write_text(f"{document}  state_dir: {self.directory}/state\n  pause: {pause}\n")
        (pipeline,) = config.load(path)
        self.capture(pipeline, 1)
        return pipeline

    def capture(self, pipeline: config.Pipeline, number: int) -> None:
        """Ten events more."""
        log = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
        log.append(make_change(10, number=number))
        log.close()

    def add(self, name: str, does: str = "up", *, pause: str = "{}") -> str:
        ScriptedStream.outlook[name] = does
        return self.runtime.add(self.pipeline(name, pause))

    def state(self, name: str) -> State:
        return self.runtime.status(name).state

    def delivered(self, name: str) -> bool:
        return self.runtime.status(name).events == 10


class ScriptedCapture(NoCapture):
    calls: ClassVar[list[str]] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedRuntime]:
    register(monkeypatch)
    monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
    monkeypatch.setattr(pipeline_run, "CaptureProcess", ScriptedCapture)
    monkeypatch.setattr(ScriptedStream, "outlook", {})
    monkeypatch.setattr(ScriptedCapture, "calls", [])
    scripted = ScriptedRuntime(tmp_path)
    yield scripted
    scripted.runtime.close()


def is_free(pipeline: config.Pipeline) -> bool:
    try:
        with lock_pipeline(pipeline):
            return True
    except AlreadyRunning:
        return False


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


CAPTURES = "{capture: true}"


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
    until(lambda: runtime.status(name).events == 20)
    assert runtime.status(name).lag_events == 0
    transitions = [each.state for each in transitions_of(pipeline, 10)]
    assert transitions == ["running", "paused", "stopping", "running"]


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
        monkeypatch.setattr(runtime, "_session", lambda pipeline: object())
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


class TwoSlots:
    """All of a session that a check of its slots looks at."""

    class sparkContext:
        master = "local[2]"


def test_lanes_that_stand_leave_a_slot_of_the_session_to_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    pipelines = []
    for name in ("a", "b"):
        document = PIPELINE.replace("name: orders", f"name: {name}") + "  trigger: {mode: real_time}\n"
        (tmp_path / f"{name}.yaml").write_text(document)
        pipelines += config.load(tmp_path / f"{name}.yaml")
    spark: Any = TwoSlots()
    check_slots(spark, pipelines[:1])
    with pytest.raises(EnvironmentProblem, match="would hold 2 of Spark's 2 slots") as raised:
        check_slots(spark, pipelines)
    assert "local[3]" in raised.value.fix
    assert standing_lanes(pipelines[0]) == 1


# ---------------------------------------------------------------- with Spark and a database


DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source:
    type: postgres
    config: {{id: {name}, dsn: "{dsn}", tables: [public.{name}]}}
  sinks: [{sink}]
  trigger: {{mode: {mode}}}
  pause: {{capture: {captures}}}
  state_dir: {directory}/state
"""


class RealRuntime:
    """Real pipelines, one per table, over the one Spark session of the run."""

    def __init__(self, directory: Path, dsn: str, runtime: Runtime) -> None:
        self.directory, self.dsn, self.runtime = directory, dsn, runtime
        self.database = psycopg.connect(dsn, autocommit=True)

    def add(self, name: str, sink: str, mode: str = "micro_batch", captures: str = "false") -> str:
        self.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        path = self.directory / f"{name}.yaml"
        given = {"name": name, "dsn": self.dsn, "sink": sink, "mode": mode, "captures": captures}
        path.write_text(DOCUMENT.format(**given, directory=self.directory))
        (pipeline,) = config.load(path)
        return self.runtime.add(pipeline)

    def insert(self, name: str, first: int, last: int) -> None:
        self.database.execute(f"INSERT INTO {name} SELECT generate_series({first}, {last})")

    def captures(self, name: str) -> None:
        until(lambda: self.runtime.status(name).stage == "cdc")

    def printed(self, name: str = "out") -> list[int]:
        """By a sink that repeats what is delivered twice."""
        file = self.directory / f"{name}.jsonl"
        whole = file.read_bytes().rpartition(b"\n")[0] if file.exists() else b""
        return [orjson.loads(line)["after"]["id"] for line in whole.splitlines()]


@pytest.fixture
def real(tmp_path: Path, spark: Any, postgres18: Postgres) -> Iterator[RealRuntime]:
    with postgres18.database("runtime") as dsn, Runtime(spark=spark) as runtime:
        real = RealRuntime(tmp_path, dsn, runtime)
        yield real
        real.database.close()
        runtime.close()  # before its slots go with the database


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_pauses_lose_nothing_and_repeat_nothing_while_a_neighbour_fails_and_starts_again(
    real: RealRuntime, mode: str
) -> None:
    runtime, directory = real.runtime, real.directory
    whole = real.add("whole", f"{{type: stdout, config: {{id: out, path: {directory}/out.jsonl}}}}", mode)
    held = real.add("held", f"{{type: stdout, config: {{id: held, path: {directory}/held.jsonl}}}}", captures="true")
    broken = real.add("broken", f"{{type: files, config: {{id: files, path: {directory}/files}}}}")
    owner = directory / "files" / "_tidemill" / "owner.json"
    owner.parent.mkdir(parents=True)
    owner.write_bytes(orjson.dumps({"pipeline": "somebody else's", "sink": "files"}))
    runtime.start(whole, held, broken)
    for name in (whole, held, broken):
        real.captures(name)
    real.insert(whole, 1, 500)
    real.insert(held, 1, 500)
    real.insert(broken, 1, 5)
    until(lambda: runtime.status(broken).state is State.FAILED)
    assert 'sink "files" refused' in str(runtime.error(broken))
    owner.unlink()
    until(lambda: runtime.status(whole).events == 500)

    until(lambda: runtime.status(held).events == 500)

    runtime.pause(whole, held)
    real.insert(whole, 501, 600)  # while nothing runs
    real.insert(held, 501, 600)  # while it captures all the same
    until(lambda: runtime.status(held).lag_events == 100 and runtime.status(held).log_bytes > 0)
    assert (runtime.status(held).state, len(real.printed("held"))) == (State.PAUSED, 500)
    runtime.start(broken)
    runtime.resume(whole, held)
    real.captures(whole)
    real.insert(whole, 601, 900)
    runtime.pause(whole)  # wherever it is
    runtime.resume(whole)
    real.captures(whole)
    real.insert(whole, 901, 1000)
    until(lambda: len(real.printed()) >= 1000)
    until(lambda: len(real.printed("held")) >= 600)
    until(lambda: runtime.status(broken).events == 5)
    runtime.drain(whole, held, broken)
    assert sorted(real.printed()) == list(range(1, 1001))
    assert sorted(real.printed("held")) == list(range(1, 601))
    assert {status.state for status in runtime.statuses()} == {State.STOPPED}
