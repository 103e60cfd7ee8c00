"""The durable queue with runs that are stand-ins: what is queued once, kept, and recovered after a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.crash.actors import wait_for
from tests.service.schedule.server_process import read_lines
from tidemill.errors import ConfigError, EnvironmentProblem, to_data
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.schedule import run_queue
from tidemill.service.schedule.run_queue import RunQueue
from tidemill.service.schedule.values import RunFailed, RunRequest, RunResult, RunState, ServerEnds

Execute = Callable[[RunRequest], RunResult]
Make = Callable[..., RunQueue]

DRY = ConfigError("the pond is dry", where="pond", fix="Wait for rain.")


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """One queue of this process at a time, over one store, that is looked into often."""
    monkeypatch.setattr(run_queue, "LOOK_SECONDS", 0.05)
    made: list[RunQueue] = []

    def begin(process: str, execute: Execute, only: frozenset[str] | None = None) -> RunQueue:
        for each in made:
            each.close()
        made.append(RunQueue(str(tmp_path / "state.sqlite"), process, execute, only=only))
        made[-1].begin()
        return made[-1]

    yield begin
    for each in made:
        each.close()


def states(queue: RunQueue, pipeline: str = "orders") -> list[str]:
    return [str(each.state) for each in queue.runs(pipeline)]


def test_of_requests_while_a_run_goes_on_none_is_added_and_its_result_is_kept(make: Make, tmp_path: Path) -> None:
    gate, seen = threading.Event(), list[RunRequest]()

    def execute(request: RunRequest) -> RunResult:
        seen.append(request)
        assert gate.wait(60)
        return RunResult(7, 2)

    queue = make("a", execute)
    slot = RunRequest("orders", "2026-01-31T12:00:00+00:00", "schedule")
    first = queue.put(slot)
    assert (first.state, first.id) == (RunState.QUEUED, "orders/2026-01-31T12:00:00+00:00")
    assert queue.put(RunRequest("orders", "", "ann")).id == first.id
    wait_for(lambda: states(queue) == ["running"], 30, "it was not taken from the queue")
    assert queue.put(RunRequest("orders", "2026-01-31T12:15:00+00:00", "schedule")).id == first.id
    gate.set()
    wait_for(lambda: states(queue) == ["done"], 30, "it did not end")
    [run] = queue.runs("orders")
    assert (run.events, run.attempts, run.recoveries, run.actor, run.slot) == (7, 2, 0, "schedule", slot.slot)
    assert run.queued <= run.started <= run.ended
    assert queue.put(slot).state is RunState.DONE  # a slot is run once, also if another server comes late
    asked = queue.put(RunRequest("orders", "", "ann"))
    wait_for(lambda: states(queue) == ["done", "done"], 30, "it did not end")
    assert asked.id != first.id
    assert [each.pipeline for each in seen] == ["orders", "orders"]
    assert queue.runs("order") == []  # a name is no prefix of another
    with pytest.raises(EnvironmentProblem, match="already"):
        RunQueue(str(tmp_path / "other.sqlite"), "b", execute).begin()
    assert states(queue) == ["done", "done"]
    assert (tmp_path / "state.sqlite.runs").stat().st_mode & 0o777 == 0o600


def test_a_failed_run_keeps_its_error_and_one_whose_server_ends_goes_on_with_the_next(make: Make) -> None:
    failing, ending = threading.Event(), threading.Event()

    def fail(request: RunRequest) -> RunResult:
        if ending.is_set():
            raise ServerEnds
        failing.set()
        raise RunFailed(to_data(DRY), 3, 1)

    first = make("a", fail)
    first.put(RunRequest("orders", "", "ann"))
    wait_for(lambda: states(first) == ["failed"], 30, "it did not fail")
    [run] = first.runs("orders")
    assert run.error == to_data(DRY)
    assert (run.events, run.attempts) == (3, 1)
    ending.set()
    left = first.put(RunRequest("other", "", "ann"))
    wait_for(lambda: states(first, "other") == ["running"], 30, "it was not taken")
    second = make("b", lambda request: RunResult(1, 1))
    assert second.recover(lambda process: True) == []  # its server is there
    assert second.recover(lambda process: False) == [left.id]
    wait_for(lambda: states(second, "other") == ["done"], 30, "it was not recovered")
    assert second.runs("other")[0].recoveries == 1
    assert states(second) == ["failed"]


def test_what_is_left_to_workers_is_run_by_the_worker_of_that_pipeline_alone(make: Make) -> None:
    make("control", lambda request: RunResult(0, 0), frozenset()).put(RunRequest("orders", "", "ann"))
    other = make("users", lambda request: RunResult(0, 0), frozenset({"users"}))
    seen = other.put(RunRequest("users", "", "ann"))
    wait_for(lambda: states(other, "users") == ["done"], 30, "the worker does not work")
    assert seen.pipeline == "users"
    assert states(other) == ["queued"]
    worker = make("orders", lambda request: RunResult(1, 1), frozenset({"orders"}))
    wait_for(lambda: states(worker) == ["done"], 30, "its worker does not take it")


def test_two_servers_run_each_slot_once_and_one_goes_on_with_the_run_of_the_other_that_was_killed(
    tmp_path: Path,
) -> None:
    """Each is a process with the cron of every second. It notes what it begins and ends."""
    notes = tmp_path / "notes"
    servers = [
        subprocess.Popen([sys.executable, "-m", "tests.service.schedule.server_process", str(tmp_path)])
        for _ in range(2)
    ]
    try:
        wait_for(lambda: len(read_lines(notes, "ended")) >= 3, 60, "no slots are run")
        (tmp_path / "block").touch()
        wait_for(lambda: bool(read_lines(notes, "blocked")), 60, "no run is blocked")
        (tmp_path / "block").unlink()
        [(slot, pid), *_] = read_lines(notes, "blocked")
        [victim] = [each for each in servers if each.pid == int(pid)]
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        wait_for(lambda: slot in dict(read_lines(notes, "ended")), 60, "its run was not recovered")
    finally:
        for each in servers:
            each.kill()
            each.wait()
    ended = [slot for slot, _ in read_lines(notes, "ended")]
    assert len(ended) == len(set(ended)), ended
    assert dict(read_lines(notes, "ended"))[slot] != pid


def test_in_postgresql_the_queue_is_a_schema_beside_that_of_the_store(postgres18: Postgres) -> None:
    with postgres18.database("run_queue") as dsn:
        joined = f"{dsn}{'&' if '?' in dsn else '?'}schema=shop_state"
        queue = RunQueue(joined, "a", lambda request: RunResult(4, 1))
        queue.begin()
        try:
            run = queue.put(RunRequest("orders", "2026-01-31T12:00:00+00:00", "schedule"))
            wait_for(lambda: states(queue) == ["done"], 60, "it did not end")
            assert queue.put(RunRequest("orders", run.slot, "schedule")).state is RunState.DONE
        finally:
            queue.close()
        with psycopg.connect(dsn) as db:
            found = db.execute("SELECT workflow_uuid FROM shop_state_runs.workflow_status").fetchall()
        assert found == [(run.id,)]
