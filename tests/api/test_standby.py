"""Two servers on one state store, whose pipelines are stand-ins: either of them takes what operators ask for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from tests.api.conftest import Harness, document
from tests.crash.actors import wait_for
from tests.service.lease.test_leases import Keepers
from tidemill.errors import ChangedMeanwhile, LifecycleError, UnknownPipeline
from tidemill.service.lease.leases import keeping_leases

SECONDS = 3.0


@pytest.fixture
def servers(tmp_path: Path, stand_ins: None) -> Iterator[tuple[Harness, Harness]]:
    """The second one knows only what the store says."""
    state = str(tmp_path / "state" / "state.sqlite")
    with keeping_leases(state, SECONDS) as one, keeping_leases(state, SECONDS) as other:
        first = Harness(tmp_path, leases=one)
        second = Harness(tmp_path, leases=other)
        yield first, second
        first.close()
        second.close()


def shows(server: Harness, status: str) -> Callable[[], bool]:
    return lambda: [each.status for each in server.client().pipelines()] == [status]


def test_a_pipeline_of_one_server_stands_by_at_the_other(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    made = first.client().create(document("orders"))
    assert made.status == "running"
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    wait_for(lambda: _holder(second) is not None, 30, "the second server does not see who runs it")
    lease = second.client().pipeline("orders").lease
    assert lease is not None
    assert (lease["here"], lease["epoch"]) == (False, 1)
    assert second.client().status("orders")["lease"]["epoch"] == 1
    assert 'tidemill_lease_held{pipeline="orders"} 1.0' in first.metrics.text().decode()
    assert 'tidemill_lease_epoch{pipeline="orders"} 1.0' in first.metrics.text().decode()


def test_the_server_that_does_not_run_a_pipeline_pauses_and_resumes_it(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    first.client().create(document("orders"))
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    assert second.client().pause("orders").desired == "paused"
    wait_for(shows(first, "paused"), 30, "it was not paused")
    second.client().resume("orders")
    wait_for(shows(first, "running"), 30, "it was not resumed")
    with pytest.raises(LifecycleError, match="runs on another server"):
        second.client().drain("orders")
    with pytest.raises(LifecycleError, match="runs on another server"):
        second.client().patch("orders", {"spec": {"batch": {"max_events": 5}}})
    second.client().stop("orders")
    wait_for(shows(first, "stopped"), 30, "it was not stopped")


def test_a_stopped_pipeline_may_be_changed_and_started_anywhere(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    first.client().create(document("orders"))
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    first.client().stop("orders")
    wait_for(shows(second, "stopped"), 30, "what is wanted is the same everywhere")
    second.client().patch("orders", {"spec": {"batch": {"max_events": 5}}})
    wait_for(lambda: _batch(first) == 5, 30, "the first server has the old document")
    assert second.client().start("orders").status == "running"
    wait_for(shows(first, "standby"), 30, "two servers run it")
    second.client().stop("orders")
    wait_for(lambda: first.client().pipeline("orders").desired == "stopped", 30, "it is wanted here")
    second.client().delete("orders")
    wait_for(lambda: list(first.client().pipelines()) == [], 30, "it was not forgotten")


def test_what_a_closed_server_ran_goes_on_at_the_other(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    first.client().create(document("orders"))
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    first.control.close(drain_seconds=1)
    wait_for(shows(second, "running"), 30, "nobody runs it")
    lease = second.client().pipeline("orders").lease
    assert lease is not None
    assert (lease["here"], lease["epoch"]) == (True, 2)


def _batch(server: Harness) -> int:
    spec = server.client().pipeline("orders").spec
    assert spec is not None
    return int(spec["batch"]["max_events"])


def test_a_paused_pipeline_whose_lease_is_lost_can_be_resumed_elsewhere(tmp_path: Path, stand_ins: None) -> None:
    keepers = Keepers(tmp_path / "state" / "state.sqlite")
    one, database = keepers.make("first", seconds=SECONDS)
    other, _ = keepers.make("second", seconds=SECONDS)
    first, second = Harness(tmp_path, leases=one), Harness(tmp_path, leases=other)
    first.client().create(document("orders"))
    first.client().pause("orders")
    wait_for(shows(second, "paused"), 30, "the second server does not know the pipeline")
    database.cut = True
    wait_for(lambda: first.control.runtime.status("orders").state == "created", 30, "it still holds the pipeline")
    second.client().resume("orders")
    wait_for(shows(second, "running"), 30, "it was not taken over")
    database.cut = False
    wait_for(shows(first, "standby"), 30, "two servers run it")
    assert keepers.ended == []
    first.close()
    second.close()
    keepers.close()


def test_a_server_that_leaves_pipelines_to_workers_steers_them_through_the_store(
    tmp_path: Path, stand_ins: None
) -> None:
    """The worker knows no API; what it does is what the store says."""
    state = str(tmp_path / "state" / "state.sqlite")
    with keeping_leases(state, SECONDS) as one, keeping_leases(state, SECONDS) as other:
        server = Harness(tmp_path, leases=one, runs=frozenset())
        worker = Harness(tmp_path, leases=other, runs=frozenset({"orders"}))
        client = server.client()
        client.create(document("orders"))
        client.create(document("others"))
        wait_for(lambda: _states(worker) == ["running", "standby"], 30, "the worker does not run its pipeline")
        wait_for(lambda: _holder(server) is not None, 30, "the server does not see who runs it")
        assert _states(server) == ["standby", "standby"]
        client.pause("orders")
        wait_for(lambda: _states(worker)[0] == "paused", 30, "it was not paused")
        client.stop("orders")
        wait_for(lambda: _states(worker)[0] == "stopped", 30, "it was not stopped")
        wait_for(lambda: server.control.holder_elsewhere("orders") is None, 30, "the lease was not given back")
        client.patch("orders", {"spec": {"batch": {"max_events": 5}}})
        client.start("orders")
        wait_for(lambda: _states(worker)[0] == "running" and _batch(worker) == 5, 30, "it has the old document")
        server.close()
        worker.close()


def _states(server: Harness) -> list[str]:
    return [each.status for each in server.client().pipelines()]


def _holder(server: Harness) -> str | None:
    lease = server.client().pipeline("orders").lease
    return lease["holder"] if lease is not None else None


def test_a_server_that_has_not_heard_of_a_change_yet_does_not_undo_it(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    first.client().create(document("orders"), start=False)
    wait_for(lambda: bool(list(second.client().pipelines())), 30, "the second server does not know the pipeline")
    follower = second.control._follower
    assert follower is not None
    follower.close()  # from here on it is always in the second between two looks
    read = second.client().pipeline("orders").version
    first.client().patch("orders", {"spec": {"batch": {"max_events": 5}}})
    with pytest.raises(ChangedMeanwhile):
        second.client().patch("orders", {"spec": {"batch": {"max_events": 6}}}, version=read)
    assert _batch(second) == 5
    first.client().patch("orders", {"spec": {"batch": {"max_events": 7}}})
    second.client().stop("orders")
    assert (_batch(second), _batch(first), _stored_batch(first)) == (7, 7, 7)
    first.client().patch("orders", {"spec": {"batch": {"max_events": 8}}})
    assert second.client().start("orders").status == "running"
    assert _batch(second) == 8, "an old document runs"
    second.client().stop("orders")
    wait_for(lambda: first.client().pipeline("orders").desired == "stopped", 30, "it is wanted here")
    first.client().delete("orders")
    with pytest.raises(UnknownPipeline):
        second.client().stop("orders")
    assert first.store.document("orders") is None
    first.client().create(document("orders"), start=False)
    with pytest.raises(LifecycleError, match="already"):
        second.client().create(document("orders", batch={"max_events": 9}), start=False)
    assert _stored_batch(first) is None


def _stored_batch(server: Harness) -> int | None:
    stored = server.store.document("orders")
    assert stored is not None
    found: int | None = orjson.loads(stored.document)["spec"].get("batch", {}).get("max_events")
    return found
