"""Two servers on one state store, whose pipelines are stand-ins: either of them takes what operators ask for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.api.conftest import Harness, Serve, document, raw
from tests.crash.actors import wait_for
from tests.service.lease.test_leases import Keepers
from tidemill.api.client import ServerClient
from tidemill.contracts.installation import KeyClaim
from tidemill.errors import ChangedMeanwhile, LifecycleError, UnknownPipeline
from tidemill.service.lease.leases import keeping_leases
from tidemill.service.server import elsewhere

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
    bob = second.client(name="bob")
    for verb, status in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        bob.change("orders", verb, reason=f"to {verb}")
        assert _states(first) == [status], "who was asked answers when it is done"
    steps = {each["state"]: each for each in first.client().transitions("orders")[::-1]}
    for status, why in (("paused", "to pause"), ("running", "to resume"), ("stopped", "to stop")):
        assert (steps[status]["actor"].partition(" ")[0], steps[status]["reason"]) == ("bob", why)
    for verb, refused in (("pause", "only a running"), ("resume", "only a paused")):
        with pytest.raises(LifecycleError, match=refused):
            second.client().change("orders", verb)


def test_what_needs_the_run_itself_is_done_where_it_is(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    first.client().create(document("orders"))
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    wait_for(lambda: second.client().status("orders")["lag_bytes"] == 7, 30, "its numbers are not known there")
    asked = second.client(name="bob")
    assert asked.restart("orders").status == "standby"
    asked.patch("orders", {"spec": {"batch": {"max_events": 5}}})
    assert (_batch(first), _batch(second), _states(first)) == (5, 5, ["running"])
    with pytest.raises(LifecycleError, match="the changed pipeline cannot start: the pond is dry"):
        asked.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://drought"}}}})
    assert (_batch(first), _states(first)) == (5, ["running"]), "the document from before is in place"
    read = second.client().pipeline("orders").version
    asked.drain("orders")
    assert _states(first) == ["stopped"]
    asked.start("orders")
    by_bob = [each["action"] for each in first.client().request("GET", "/audit") if each["actor"].startswith("bob")]
    assert by_bob[:5] == ["start", "drain", "change", "change", "restart"]
    with pytest.raises(ChangedMeanwhile):
        asked.delete("orders", version="another")
    asked.delete("orders", version=read)
    wait_for(lambda: list(first.client().pipelines()) == [], 30, "it was not forgotten")
    assert (list(second.client().pipelines()), first.store.statuses()) == ([], {})


def test_a_pipeline_that_another_server_removed_leaves_no_status(servers: tuple[Harness, Harness]) -> None:
    """The other one may have stopped its own run, and removed the document when this one had just begun."""
    first, second = servers
    first.client().create(document("orders"))
    wait_for(lambda: "orders" in second.store.statuses(), 30, "its status is not published")
    second.store.remove_document("orders")
    wait_for(lambda: list(first.client().pipelines()) == [], 30, "it was not forgotten")
    assert second.store.statuses() == {}


def test_a_pipeline_that_is_deleted_is_not_started_elsewhere_on_its_way_out(
    servers: tuple[Harness, Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is free when it has stopped: another server must find no document to start it by."""
    first, second = servers
    first.client().create(document("orders"))
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    taken = []
    removes = first.control.runtime.remove

    def remove_slowly(name: str, **given: Any) -> None:
        removes(name, **given)
        for _ in range(20):  # the other one looks at what may be started many times
            time.sleep(0.1)
            lease = second.control.lease_of(name)
            taken.append(lease is not None and lease.epoch > 1)

    monkeypatch.setattr(first.control.runtime, "remove", remove_slowly)
    second.client().delete("orders")
    assert not any(taken), "it ran again between its stop and its removal"
    wait_for(lambda: list(second.client().pipelines()) == [], 30, "it was not forgotten")


def test_a_key_that_two_servers_get_at_once_is_carried_out_once(
    servers: tuple[Harness, Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers
    key = {"Authorization": f"Bearer {first.admin}", "Idempotency-Key": "once"}
    began, goes_on = threading.Event(), threading.Event()
    creates = first.control.create

    def create_slowly(*given: Any, **more: Any) -> Any:
        began.set()
        assert goes_on.wait(30)
        return creates(*given, **more)

    monkeypatch.setattr(first.control, "create", create_slowly)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(raw, first, "POST", "/pipelines", document("orders"), key)
        assert began.wait(30)
        status, problem, headers = raw(second, "POST", "/pipelines", document("orders"), key)
        assert (status, problem["code"], headers["retry-after"]) == (409, "request-under-way", "1")
        assert second.control.names == [], "the second one has not begun it"
        goes_on.set()
        assert slow.result()[0] == 201
    status, made, headers = raw(second, "POST", "/pipelines", document("orders"), key)
    assert (status, made["name"], headers["idempotent-replayed"]) == (201, "orders", "true")


def test_a_key_of_a_server_that_is_gone_or_refused_can_be_used_again(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    gone = KeyClaim("a server that never was", "2026-01-02T00:00:00+00:00")
    principal = first.tokens.authenticate(first.admin)
    assert principal is not None
    assert first.store.claim_key(principal.id, "once", gone) is None
    key = {"Authorization": f"Bearer {first.admin}", "Idempotency-Key": "once"}
    assert raw(second, "POST", "/pipelines/nothing/start", None, key)[0] == 404
    assert raw(first, "POST", "/pipelines", document("orders"), key)[0] == 201


def test_a_process_that_has_a_pipeline_and_does_not_hear_is_named(
    servers: tuple[Harness, Harness], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = servers
    first.client().create(document("orders"))
    wait_for(shows(second, "standby"), 30, "the second server does not know the pipeline")
    monkeypatch.setattr(elsewhere, "TAKE_SECONDS", 0.3)
    monkeypatch.setattr(first.control, "_take_requests", lambda: None)
    with pytest.raises(LifecycleError, match=r"which does not hear: .* pid \d+"):
        second.client().restart("orders")
    assert second.store.open_requests() == [], "it was taken back: nobody does it later"
    assert _states(first) == ["running"]


def test_a_pipeline_that_captures_in_its_pause_is_taken_over_paused(servers: tuple[Harness, Harness]) -> None:
    first, second = servers
    first.client().create(document("orders", pause={"capture": True}))
    first.client().create(document("rests"))
    for name in ("orders", "rests"):
        first.client().pause(name)
    wait_for(lambda: len(second.control.names) == 2, 30, "the second server does not know them")
    wait_for(lambda: second.client().status("orders")["lag_bytes"] == 7, 30, "the second server does not know it")
    assert _states(first) == ["paused", "paused"]
    first.control.close(drain_seconds=1)
    wait_for(lambda: _lease(second, "orders") == (True, 2), 30, "nobody captures")
    wait_for(lambda: second.control.runtime.status("orders").stage == "cdc", 30, "nobody captures")
    assert _states(second) == ["paused", "paused"]
    assert _lease(second, "rests") is None, "nothing of it runs"
    assert second.client().resume("orders").status == "running"


def test_a_server_that_was_restarted_goes_on_capturing_in_the_pause(serve: Serve) -> None:
    first = serve()
    first.client().create(document("orders", pause={"capture": True}))
    first.client().pause("orders")
    first.control.close(drain_seconds=1)
    again = serve()
    wait_for(lambda: again.client().status("orders")["lag_bytes"] == 7, 30, "it does not capture")
    assert _states(again) == ["paused"]
    again.client().patch("orders", {"spec": {"batch": {"max_events": 5}}})
    assert (_states(again), again.control.runtime.status("orders").state) == (["paused"], "paused")
    with pytest.raises(LifecycleError, match="cannot start: the pond is dry"):
        again.client().patch("orders", {"spec": {"source": {"config": {"dsn": "pond://drought"}}}})
    assert again.client().patch("orders", {"spec": {"pause": None}}).status == "paused"
    assert again.control.runtime.status("orders").state == "created", "nothing of it runs any more"
    assert again.client().resume("orders").status == "running"


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
        wait_for(lambda: _states(server) == ["running", "unassigned"], 30, "the server does not see how it is")
        wait_for(lambda: client.status("orders")["lag_bytes"] == 7, 30, "its numbers are not known there")
        unassigned = client.pipeline("others").error
        assert unassigned is not None
        assert "tidemill worker --pipeline others" in unassigned["fix"]
        assert _next_status(client, "orders", lambda: client.pause("orders")) == "paused"
        for verb, state in (("resume", "running"), ("restart", "running"), ("drain", "stopped"), ("start", "running")):
            assert client.change("orders", verb).status == state
        assert client.patch("orders", {"spec": {"batch": {"max_events": 5}}}).status == "running"
        assert _batch(worker) == 5
        with pytest.raises(LifecycleError, match="the changed pipeline cannot start: the pond is dry"):
            client.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://drought"}}}})
        assert _states(server)[0] == "running"
        client.patch("others", {"spec": {"batch": {"max_events": 5}}})
        with pytest.raises(LifecycleError, match="only a running"):
            client.pause("others")
        assert client.stop("others").status == "stopped"
        client.delete("others")
        assert client.stop("orders").status == "stopped"
        server.close()
        worker.close()


def test_a_pipeline_that_failed_in_its_worker_is_mended_at_the_server(tmp_path: Path, stand_ins: None) -> None:
    state = str(tmp_path / "state" / "state.sqlite")
    with keeping_leases(state, SECONDS) as one, keeping_leases(state, SECONDS) as other:
        server = Harness(tmp_path, leases=one, runs=frozenset())
        worker = Harness(tmp_path, leases=other, runs=frozenset({"orders"}))
        dry = document("orders")
        dry["spec"]["source"]["config"]["dsn"] = "pond://drought"
        client = server.client()
        client.create(dry)
        wait_for(lambda: _states(server) == ["failed"], 30, "the server does not know that it failed")
        error = client.pipeline("orders").error
        assert error is not None
        assert error["what"] == "the pond is dry"
        mended = client.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://water"}}}})
        assert (mended.status, mended.error) == ("running", None)
        server.close()
        worker.close()


def _next_status(client: ServerClient, name: str, change: Callable[[], object]) -> str:
    """The state that the stream of events has after the change."""
    stream = client.events(name)
    assert next(stream).data["state"] == "running"
    change()
    return next(str(each.data["state"]) for each in stream if each.data["state"] not in ("running", "stopping"))


def _lease(server: Harness, name: str) -> tuple[bool, int] | None:
    lease = server.client().pipeline(name).lease
    return (lease["here"], lease["epoch"]) if lease is not None else None


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
