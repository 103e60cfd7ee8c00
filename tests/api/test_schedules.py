"""Pipelines with a schedule over HTTP: real queue, real state store, pipelines that are stand-ins."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import orjson
import pytest

from tests.api.conftest import Harness, Serve, document
from tests.api.test_grpc import Rpc, reach
from tests.crash.actors import wait_for
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.api.proto import flows_pb2 as flows
from tidemill.api.proto import operations_pb2 as operations
from tidemill.errors import ConfigError, LifecycleError, PipelineBusy
from tidemill.service.cause import Cause
from tidemill.service.run.ownership import lock_pipeline
from tidemill.service.runtime import Runtime
from tidemill.service.schedule.values import RunResult, ScheduledRun, ServerEnds
from tidemill.service.server import document_set, fleet, scheduled
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.document_set import ControlSettings
from tidemill.state import open_installation
from tidemill.telemetry.metrics import Metrics

YEARLY = {"cron": "0 0 1 1 *"}


class GatedRun:
    """Starts the pipeline and holds it until the gate opens, or somebody stops it: a pond has no end."""

    gate = threading.Event()

    def __init__(
        self, runtime: Runtime, name: str, *, start: Callable[[], bool], stopping: threading.Event, cause: Cause,
        **given: object,
    ) -> None:  # fmt: skip
        self._runtime, self._name, self._start, self._stopping, self._cause = runtime, name, start, stopping, cause

    def execute(self) -> RunResult:
        if not self._start():
            return RunResult(0, 0, stopped=True)
        while not self.gate.wait(0.02) and self._runtime.status(self._name).state == "running":
            pass
        stopped = not self.gate.is_set()
        if stopped and self._stopping.is_set():
            raise ServerEnds
        self._runtime.drain(self._name, seconds=5, cause=self._cause)
        return RunResult(5, 1, stopped=stopped)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    gate = threading.Event()
    monkeypatch.setattr(GatedRun, "gate", gate)
    monkeypatch.setattr(scheduled, "OneRun", GatedRun)
    monkeypatch.setattr(document_set, "check_ends", lambda pipelines: None)
    yield gate
    gate.set()


def states(server: Harness) -> list[str]:
    return [each["state"] for each in server.client().runs("orders")]


def wait_until(server: Harness, *expected: str) -> None:
    wait_for(lambda: states(server) == [*expected], 60, lambda: f"{states(server)} instead of {expected}")


def test_a_scheduled_pipeline_waits_runs_when_asked_and_shows_what_became_of_it(
    serve: Serve, gate: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    server = serve()
    client = server.client()
    made = client.create(document("orders", schedule=YEARLY))
    assert made.status == "waiting_for_schedule"
    assert made.next_run is not None
    assert made.next_run.endswith("-01-01T00:00:00+00:00")
    assert client.status("orders")["next_run"] == made.next_run
    assert client.start("orders").status == "waiting_for_schedule"  # it waits, and runs at its slot
    assert client.runs("orders") == []

    first = client.run_now("orders", key="one", reason="closing the books")
    assert (first["state"], first["slot"]) == ("queued", "")
    assert first["actor"].startswith("ann (token")
    wait_until(server, "running")
    wait_for(lambda: client.pipeline("orders").status == "running", 60, "it was not started")
    assert client.run_now("orders")["id"] == first["id"]  # it goes on: none is added
    gate.set()
    wait_until(server, "done")
    [done] = client.runs("orders")
    assert (done["events"], done["attempts"], done["recoveries"], done["error"]) == (5, 1, 0, None)
    assert client.pipeline("orders").status == "waiting_for_schedule"
    assert (
        client.run_now("orders", key="one", reason="closing the books") == first
    )  # the same request again is no second run
    assert client.run_now("orders", key="two")["id"] != first["id"]
    wait_until(server, "done", "done")
    shown = Terminal(capsys)("pipelines", "runs", "orders", "--server", server.url, "--token", server.admin)
    assert [line.split()[0] for line in shown.out.splitlines()] == ["state", "done", "done"]
    assert [each.action for each in server.store.audit_trail(50)].count("run now") == 3


def test_who_asks_while_a_run_starts_gets_that_run(
    serve: Serve, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start takes seconds, and has the pipeline's turn meanwhile."""
    monkeypatch.setattr(fleet, "TURN_SECONDS", 0.1)
    server = serve()
    client = server.client()
    client.create(document("orders", schedule=YEARLY))
    with server.control._turn("orders"), pytest.raises(PipelineBusy):
        client.run_now("orders")
    first = client.run_now("orders")
    wait_until(server, "running")
    with server.control._turn("orders", wait=True):
        assert client.run_now("orders")["id"] == first["id"]
    client.pause("orders")
    with pytest.raises(LifecycleError, match="is paused") as refused:
        client.run_now("orders")
    assert "Resume it first" in refused.value.fix


def test_runs_are_asked_for_and_shown_over_grpc_too(serve: Serve, gate: threading.Event) -> None:
    server = serve()
    server.client().create(document("orders", schedule=YEARLY))
    with reach(server) as channel:
        rpc = Rpc(channel, server.admin)
        assert list(rpc.call("Runs.List", flows.ListRunsRequest(pipeline="orders")).runs) == []
        first = rpc.call("Runs.RunNow", operations.PipelineRef(pipeline="orders", reason="closing the books"))
        assert (first.state, first.slot, first.HasField("events")) == ("queued", "", False)
        gate.set()
        wait_until(server, "done")
        [done] = rpc.call("Runs.List", flows.ListRunsRequest(pipeline="orders")).runs
        assert (done.id, done.state, done.events, done.attempts) == (first.id, "done", 5, 1)
        server.client().create(document("others"))
        refused = rpc.refusal("Runs.RunNow", operations.PipelineRef(pipeline="others"))
        assert refused[0] is grpc.StatusCode.FAILED_PRECONDITION


def test_a_pause_ends_the_run_and_no_run_begins_until_it_is_resumed(serve: Serve, gate: threading.Event) -> None:
    server = serve()
    client = server.client()
    client.create(document("orders", schedule={"cron": "* * * * * *"}))
    wait_for(lambda: states(server) == ["running"], 60, "no slot was run")
    assert client.pause("orders").status == "paused"
    wait_until(server, "stopped")
    gate.set()
    with pytest.raises(LifecycleError, match="paused"):
        client.run_now("orders")
    assert client.pipeline("orders").next_run is None
    assert client.resume("orders").next_run is not None
    wait_for(lambda: states(server)[-2:] == ["done", "stopped"], 60, "no slot was run after it was resumed")
    changed = client.patch("orders", {"spec": {"schedule": YEARLY}})
    assert changed.status in ("waiting_for_schedule", "running")
    assert client.stop("orders").status == "stopped"


def test_a_run_that_a_server_left_goes_on_with_the_next_one(
    serve: Serve, gate: threading.Event, tmp_path: Path
) -> None:
    first = Harness(tmp_path)
    first.client().create(document("orders", schedule=YEARLY))
    first.client().run_now("orders")
    wait_until(first, "running")
    first.close()
    gate.set()
    second = serve()
    wait_until(second, "done")
    assert second.client().runs("orders")[0]["recoveries"] == 1


def test_what_has_no_schedule_has_no_runs(server: Harness) -> None:
    client = server.client()
    client.create(document("plain"))
    assert client.runs("plain") == []
    with pytest.raises(LifecycleError, match="has no schedule"):
        client.run_now("plain")


@pytest.mark.parametrize(
    ("schedule", "what"),
    [({"cron": "61 * * * *"}, "out of range"), (YEARLY, "cannot say where it ends")],
)
def test_a_schedule_that_cannot_be_kept_is_refused(server: Harness, schedule: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        server.client().create(document("orders", schedule=schedule))


def test_each_run_delivers_what_came_since_the_last_and_nothing_runs_in_between(tmp_path: Path, spark: Any) -> None:
    """SQLite into files, with Spark."""
    lake = tmp_path / "lake"

    def delivered() -> list[int]:
        lines = [line for file in lake.rglob("*.jsonl*") for line in file.read_bytes().splitlines()]
        return sorted(orjson.loads(line)["after"]["id"] for line in lines)

    def insert(*ids: int) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
            shop.executemany("INSERT INTO orders VALUES (?)", [(each,) for each in ids])
            shop.commit()

    def run_to_its_end() -> ScheduledRun:
        asked = control.run_now("orders", Cause("ann"))
        wait_for(
            lambda: control.runs("orders")[0].state not in ("queued", "running"), 180, lambda: str(control.views())
        )
        [run] = [each for each in control.runs("orders") if each.id == asked.id]
        return run

    with closing(sqlite3.connect(tmp_path / "shop.db")) as shop:
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    insert(1, 2, 3)
    file = tmp_path / "orders.yaml"
    file.write_text(
        "metadata: {name: orders}\n"
        "spec:\n"
        f"  state_dir: {tmp_path / 'state'}\n"
        "  schedule: {cron: '0 0 1 1 *'}\n"
        f"  source: {{type: sqlite, config: {{id: shop, path: {tmp_path / 'shop.db'}, snapshot: {{}}}}}}\n"
        f"  sinks: [{{type: files, config: {{id: lake, path: {lake}}}}}]\n"
    )
    control = ControlPlane(
        Runtime(spark=spark, metrics=Metrics()),
        open_installation(str(tmp_path / "state.sqlite")),
        ControlSettings(files=(file,), state_dir=tmp_path / "state"),
    )
    control.load()
    control.start_wanted()
    try:
        first = run_to_its_end()
        assert (first.state, first.events, first.error) == ("done", 3, {})
        insert(4, 5)
        assert control.view("orders").state == "waiting_for_schedule"
        [pipeline] = config.load(file)
        with lock_pipeline(pipeline):  # nobody has it
            assert delivered() == [1, 2, 3]
        second = run_to_its_end()
        assert (second.state, second.events) == ("done", 2)
        assert delivered() == [1, 2, 3, 4, 5]
    finally:
        control.close(drain_seconds=10)
