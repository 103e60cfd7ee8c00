"""`tidemill pipelines` without a server's address: the same verbs on a state store, with a server there and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.api.conftest import ENVIRONMENT, Harness, document, use_stand_ins
from tests.crash.actors import wait_for
from tests.support.terminal import ScriptedResponse, Terminal
from tidemill.api.local_client import LocalClient
from tidemill.contracts.installation import StoredDocument
from tidemill.service.lease.leases import keeping_leases
from tidemill.service.server import document_set
from tidemill.service.server.local import LocalPlace
from tidemill.state import open_installation


class Place:
    """A state directory, and the command on it."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.state = directory, directory / "state"
        self._terminal = Terminal(capsys)

    def __call__(self, verb: str, *given: object) -> ScriptedResponse:
        return self._terminal("pipelines", verb, *given, "--state-dir", self.state)

    def file(self, name: str, **spec: object) -> Path:
        path = self.directory / f"{name}.yaml"
        path.write_bytes(orjson.dumps(document(name, **spec)))
        return path


@pytest.fixture
def tidemill(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    use_stand_ins(monkeypatch)
    monkeypatch.setenv("TIDEMILL_SERVER", "http://127.0.0.1:1")  # a store that is named comes before it
    monkeypatch.setenv("POND_DSN", ENVIRONMENT["POND_DSN"])
    return Place(tmp_path, capsys)


@pytest.fixture
def server(tidemill: Place) -> Iterator[Harness]:
    with keeping_leases(str(tidemill.state / "state.sqlite"), 3.0) as leases:
        harness = Harness(tidemill.directory, leases=leases)
        yield harness
        harness.close()


def test_without_any_server_the_store_is_changed_for_the_next_one(tidemill: Place) -> None:
    nobody = ": no server and no worker of this state store runs it"
    assert tidemill("apply", "-f", tidemill.file("orders")).out == f"orders is unassigned{nobody}\n"
    assert tidemill("ls").out.splitlines()[1].split()[:4] == ["orders", "unassigned", "running", "api"]
    shown = tidemill("get", "orders").json
    assert (shown["labels"], shown["spec"]["source"]["config"]["dsn"]) == (
        {"team": "pond"},
        "pond://frog:***@127.0.0.1/lake",
    )
    for verb, state in (("pause", "paused"), ("stop", "stopped"), ("start", f"unassigned{nobody}")):
        assert tidemill(verb, "orders", "--reason", "trying").out == f"orders is {state}\n"
    refused = tidemill("resume", "orders")
    assert (refused.code, "only a paused pipeline" in refused.err) == (1, True)
    assert tidemill("apply", "-f", tidemill.file("orders", batch={"max_events": 7})).code == 0
    assert tidemill("get", "orders").json["spec"]["batch"]["max_events"] == 7
    wrong = tidemill("apply", "-f", tidemill.file("orders", batch={"max_events": "many"}))
    assert (wrong.code, "max_events" in wrong.err) == (2, True)
    assert "orders unassigned init events=0" in tidemill("status", "orders").out
    unknown = tidemill("pause", "others", "--json")
    assert (unknown.code, unknown.json["error"]["code"]) == (1, "unknown-pipeline")
    assert tidemill("delete", "orders").code == 2
    assert tidemill("delete", "orders", "--yes").out == "orders is deleted\n"
    assert tidemill("ls").out.startswith(f"{tidemill.state}/state.sqlite has no pipelines. `tidemill")
    store = open_installation(str(tidemill.state / "state.sqlite"))
    actions = [each.action for each in store.audit_trail()]
    store.close()
    assert actions == ["delete", "change", "start", "stop", "pause", "create"]


def test_a_pipeline_of_a_file_is_operated_by_its_name_and_changed_by_its_file(tidemill: Place) -> None:
    tidemill("apply", "-f", tidemill.file("others"))
    store = open_installation(str(tidemill.state / "state.sqlite"))
    store.add_document(StoredDocument("orders", "file", "", "v", "running", "orders.yaml", ""))
    store.close()
    assert tidemill("stop", "orders").out == "orders is stopped\n"
    assert tidemill("get", "orders").json["spec"] is None
    for refused in (tidemill("delete", "orders", "--yes"), tidemill("apply", "-f", tidemill.file("orders"))):
        assert (refused.code, "comes from a file" in refused.err) == (2, True)


def test_a_server_of_the_store_does_what_is_asked_and_answers(tidemill: Place, server: Harness) -> None:
    wait_for(lambda: server.control.ready, 60, "the server does not start")
    assert tidemill("apply", "-f", tidemill.file("orders")).out == "orders is running\n"
    for verb, state in (
        ("pause", "paused"), ("resume", "running"), ("restart", "running"), ("drain", "stopped"), ("start", "running"),
    ):  # fmt: skip
        assert tidemill(verb, "orders").out == f"orders is {state}\n"
        assert server.client().pipeline("orders").status == state
    here, there = tidemill("get", "orders").json, server.client().request("GET", "/pipelines/orders")
    assert here["lease"].pop("here") != there["lease"].pop("here")
    assert here == there, "the same answer, but for who asks"
    wait_for(lambda: tidemill("status", "orders", "--json").json["lag_bytes"] == 7, 60, "its numbers are not known")
    forbidden = tidemill.file("reads", source={"type": "pond", "config": {"id": "reads", "dsn": "${SECRET_DSN}"}})
    refused = tidemill("apply", "-f", forbidden)
    assert (refused.code, "--allow-env" in refused.err) == (2, True), "the server says what its documents may"
    assert (
        "cannot start: the pond is dry"
        in tidemill(
            "apply",
            "-f",
            tidemill.file("orders", source={"type": "pond", "config": {"id": "orders", "dsn": "pond://drought"}}),
        ).err
    )
    assert tidemill("delete", "orders", "--yes").code == 0
    assert list(server.client().pipelines()) == []


@pytest.mark.parametrize("origin", ["api", "file"])
def test_between_two_runs_who_reads_the_store_sees_that_a_pipeline_waits_for_its_schedule(
    tidemill: Place, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    monkeypatch.setattr(document_set, "check_ends", lambda pipelines: None)
    file = tidemill.file("orders", schedule={"cron": "0 0 1 1 *"})
    with keeping_leases(str(tidemill.state / "state.sqlite"), 3.0) as leases:
        server = Harness(tidemill.directory, leases=leases, files=(file,) if origin == "file" else ())
        if origin == "api":
            tidemill("apply", "-f", file)
        wait_for(lambda: "waiting_for_schedule" in tidemill("status", "orders").out, 60, "it is not told")
        shown = tidemill("status", "orders")
        assert "error" not in shown.out
        assert shown.out.split("next_run=")[1].strip().endswith("-01-01T00:00:00+00:00")
        here, there = tidemill("get", "orders").json, server.client().request("GET", "/pipelines/orders")
        assert (here["status"], here["next_run"]) == (there["status"], there["next_run"])
        assert tidemill("pause", "orders").out == "orders is paused\n"
        assert "next_run" not in tidemill("status", "orders").out
        assert tidemill("resume", "orders").out == "orders is waiting_for_schedule\n"
        server.close()
    assert "orders unassigned" in tidemill("status", "orders").out, "nobody keeps its schedule"


def test_events_of_the_store_are_each_new_status_and_why_one_failed(tidemill: Place, server: Harness) -> None:
    wait_for(lambda: server.control.ready, 60, "the server does not start")
    tidemill("apply", "-f", tidemill.file("orders"))
    place = LocalPlace(str(tidemill.state / "state.sqlite"), tidemill.state, False)
    with LocalClient(place) as client:
        stream = client.events("orders")
        first = next(stream)
        assert (first.kind, first.data["name"], first.data["state"]) == ("status", "orders", "running")
        server.client().stop("orders")
        assert next(each for each in stream if each.data["state"] == "stopped").kind == "status"
