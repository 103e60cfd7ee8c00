"""Documents and lifecycle over HTTP, with stand-ins for capture and stream."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import orjson
import pytest

from tests.api.conftest import Harness, Serve, StandInCapture, document, raw
from tests.support.blocks import make_change
from tests.support.waiting import until
from tidemill.api.serve import reload
from tidemill.capture.status import CaptureStatus
from tidemill.config.confine import Confinement
from tidemill.contracts.sensing_store import SensedBatch, SensedTable
from tidemill.errors import AccessRefused, ChangedMeanwhile, ConfigError, LifecycleError, TidemillError, UnknownPipeline
from tidemill.log import LogConfig, LogWriter
from tidemill.schema.sensing import TableProfile
from tidemill.service.runtime import Runtime
from tidemill.service.server import watched_files
from tidemill.service.server.tokens import Role
from tidemill.service.server.watched_files import WatchedFiles, watching_files
from tidemill.state import open_store


def test_a_pipeline_is_created_shown_without_secrets_and_deleted(server: Harness) -> None:
    client = server.client()
    made = client.create(document("orders"))
    assert (made.name, made.status, made.origin, made.error) == ("orders", "running", "api", None)
    assert made.spec is not None
    assert made.spec["source"]["config"]["dsn"] == "pond://frog:***@127.0.0.1/lake"
    assert made.spec["batch"]["max_events"] == 500_000, "with its defaults"
    assert [each.name for each in client.pipelines()] == ["orders"]
    assert "croak" not in orjson.dumps(client.request("GET", "/pipelines")).decode()
    with pytest.raises(LifecycleError, match="already"):
        client.create(document("orders"))
    client.delete("orders")
    assert list(client.pipelines()) == []
    with pytest.raises(UnknownPipeline):
        client.pipeline("orders")


def test_yaml_with_variables_inside_braces_is_taken_as_a_file_is(server: Harness) -> None:
    text = """
metadata: {name: orders}
spec:
  source: {type: pond, config: {id: p, dsn: ${POND_DSN}, port: ${PORT:-9000}}}   # in braces
  sinks: [{type: bucket, config: {id: b, topic: "${source.table}"}}]
"""
    client = server.client()
    (made,) = client.apply(text)
    assert made.spec is not None
    assert made.spec["source"]["config"]["port"] == 9000
    assert made.spec["sinks"][0]["config"]["topic"] == "${source.table}"
    (same,) = client.apply(text)
    assert same.version == made.version, "what does not change restarts nothing"
    (changed,) = client.apply(text.replace("9000", "9001"))
    assert changed.version != made.version


def test_a_document_that_is_wrong_says_everything_that_is_wrong(server: Harness) -> None:
    wrong = document("orders", bach={}, batch={"max_events": 0})
    status, body, headers = raw(server, "POST", "/pipelines", wrong)
    assert (status, headers["content-type"]) == (422, "application/problem+json")
    assert body["code"] == "document-invalid"
    assert sorted(".".join(map(str, each["path"])) for each in body["problems"]) == [
        "spec.bach", "spec.batch.max_events",
    ]  # fmt: skip
    assert raw(server, "GET", "/pipelines/orders")[0] == 404


def test_each_verb_changes_the_state_and_what_is_illegal_is_refused_with_what_to_do(server: Harness) -> None:
    client = server.client(name="ann")
    client.create(document("orders"), start=False)
    assert client.pipeline("orders").status == "created"
    with pytest.raises(LifecycleError, match="only a running pipeline can be paused") as refused:
        client.pause("orders")
    assert refused.value.fix == "Nothing was changed. Start it first."
    for verb, state in (
        (client.start, "running"), (client.pause, "paused"), (client.resume, "running"), (client.drain, "stopped"),
        (client.start, "running"), (client.stop, "stopped"), (client.restart, "running"), (client.stop, "stopped"),
    ):  # fmt: skip
        assert verb("orders", reason="because").status == state
    with pytest.raises(LifecycleError, match="only a paused pipeline can be resumed"):
        client.resume("orders")
    newest, *_ = client.transitions("orders")
    assert newest["state"] == "stopped"
    assert newest["actor"].startswith("ann (token ")
    assert newest["reason"] == "because"
    assert {each["state"] for each in client.transitions("orders", 100)} >= {"running", "paused", "stopped"}


def test_a_patch_is_merged_checked_and_started(server: Harness) -> None:
    client = server.client()
    before = client.create(document("orders"))
    after = client.patch("orders", {"spec": {"batch": {"max_events": 5}}}, version=before.version)
    assert after.status == "running"
    assert after.spec is not None
    assert after.spec["batch"]["max_events"] == 5
    assert server.control.runtime.status("orders").state == "running"
    with pytest.raises(ChangedMeanwhile):
        client.patch("orders", {"spec": {"batch": None}}, version=before.version)
    again = client.patch("orders", {"spec": {"batch": None}}, version=after.version)
    assert again.spec is not None
    assert again.spec["batch"]["max_events"] == 500_000
    with pytest.raises(ConfigError, match="unknown key"):
        client.patch("orders", {"spec": {"bach": 1}})
    with pytest.raises(ConfigError, match="masked secret"):
        client.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://frog:***@127.0.0.1/lake"}}}})
    with pytest.raises(ConfigError, match="renamed"):
        client.patch("orders", {"metadata": {"name": "others"}})


def test_a_star_in_quotes_is_a_version_and_not_any(server: Harness) -> None:
    server.client().create(document("orders"))
    for given, status in (('"*"', 412), ("*", 200), ('"x", *', 412)):
        answer = raw(server, "PATCH", "/pipelines/orders", {"spec": {}}, {"If-Match": given})
        assert answer[0] == status, given


@pytest.mark.parametrize("name", ["state.sqlite", "state.sqlite-journal", "state.sqlite-wal", "State.SQLite-shm"])
def test_no_pipeline_is_called_as_a_file_of_the_state_store(server: Harness, name: str) -> None:
    with pytest.raises(ConfigError, match="belong to the state store"):
        server.client().create(document(name))


def test_a_patch_whose_pipeline_cannot_start_is_rolled_back(server: Harness) -> None:
    client = server.client()
    before = client.create(document("orders"))
    with pytest.raises(LifecycleError, match="cannot start: the pond is dry") as refused:
        client.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://drought"}}}})
    assert "from before is in place" in refused.value.fix
    now = client.pipeline("orders")
    assert (now.version, now.status) == (before.version, "running")
    assert now.spec == before.spec
    actions = [each["action"] for each in client.request("GET", "/audit")]
    assert actions[:3] == ["roll back", "change", "create"]


def test_a_failed_pipeline_says_why_and_starts_again_on_request(server: Harness) -> None:
    client = server.client()
    client.create(document("orders", source={"type": "pond", "config": {"id": "o", "dsn": "pond://drought"}}))
    until(lambda: client.pipeline("orders").status == "failed")
    error = client.pipeline("orders").error
    assert error is not None
    assert (error["what"], error["fix"]) == ("the pond is dry", "Wait for rain.")
    assert client.status("orders")["error"]["what"] == "the pond is dry"
    assert client.request("GET", "/healthz") == "ok"
    assert client.patch("orders", document("orders")).status == "running"


def test_what_a_retry_may_mend_is_started_again_by_itself(server: Harness) -> None:
    client = server.client()
    StandInCapture.failures["orders"] = 2
    client.create(document("orders", source={"type": "pond", "config": {"id": "o", "dsn": "pond://flood"}}))
    second = "restart 2 after: the pond is flooded"
    until(lambda: any(each["reason"].startswith(second) for each in client.transitions("orders", 100)))
    until(lambda: client.pipeline("orders").status == "running")
    assert StandInCapture.failures["orders"] == 0


def test_what_an_operator_wants_outlives_the_server(serve: Serve) -> None:
    first = serve()
    client = first.client()
    for name in ("runs", "rests", "ended"):
        client.create(document(name))
    client.pause("rests")
    client.stop("ended")
    version = client.pipeline("runs").version
    first.close()
    second = serve()
    client = second.client()
    assert {each.name: each.status for each in client.pipelines()} == {
        "runs": "running", "rests": "paused", "ended": "stopped",
    }  # fmt: skip
    assert client.pipeline("runs").version == version
    assert client.resume("rests").status == "running"


def test_a_pipeline_that_runs_once_is_stopped_then_for_the_next_server_too(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_end = CaptureStatus(1, stage="cdc", streaming_since=1.0, began="0/1", caught_up=True)
    monkeypatch.setattr(StandInCapture, "watch", lambda self: at_the_end)
    server = serve()
    client = server.client()
    file = server.directory / "root" / "shop.db"
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    log = LogWriter.open(str(server.directory / "state" / "orders" / "log"), LogConfig.model_validate({}))
    log.append(make_change(10))  # as if it was captured
    log.close()
    source = {"type": "sqlite", "config": {"id": "shop", "path": str(file)}}
    client.create(document("orders", source=source, trigger={"mode": "once"}))
    for _ in range(2):
        until(lambda: server.control.view("orders").desired == "stopped")
        until(lambda: client.pipeline("orders").status == "stopped")
        client.start("orders")  # it runs once more
    until(lambda: server.control.view("orders").desired == "stopped")
    until(lambda: client.transitions("orders")[0]["state"] == "stopped")  # it is on record after it is told
    transitions = client.transitions("orders")
    ended = [each["state"] for each in transitions if each["reason"] == "what was there is delivered"]
    assert Counter(ended) == {"draining": 3, "stopped": 3}
    server.close()
    assert serve().client().pipeline("orders").status == "stopped"


def test_a_pipeline_that_another_server_has_is_taken_over_when_that_one_ends(serve: Serve) -> None:
    first = serve()
    first.client().create(document("orders"))
    second = serve()
    client = second.client()
    waiting = client.pipeline("orders")
    assert (waiting.status, (waiting.error or {})["code"]) == ("failed", "already-running")
    assert first.client().pipeline("orders").status == "running"
    first.close()
    until(lambda: client.pipeline("orders").status == "running")


def test_a_defect_at_the_start_of_one_pipeline_stops_no_other(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    first = serve()
    for name in ("ducks", "orders"):
        first.client().create(document(name))
    first.close()
    start = Runtime.start

    def stumble(runtime: Runtime, *names: str, **given: Any) -> None:
        if "ducks" in names:
            raise IndexError("list index out of range")
        start(runtime, *names, **given)

    monkeypatch.setattr(Runtime, "start", stumble)
    second = serve()
    client = second.client()
    assert client.request("GET", "/readyz")["status"] == "ready"
    assert (client.pipeline("ducks").status, client.pipeline("orders").status) == ("failed", "running")
    assert client.status("ducks")["error"]["what"] == "builtins.IndexError was not expected"


def test_a_stored_document_that_cannot_be_used_any_more_is_shown_as_failed(serve: Serve) -> None:
    first = serve()
    first.client().create(document("orders"))
    first.client().create(document("others", source={"type": "pond", "config": {"id": "x", "dsn": "pond://x"}}))
    first.close()
    second = serve(confinement=Confinement())
    found = {each.name: each for each in second.client().pipelines()}
    assert {name: each.status for name, each in found.items()} == {"orders": "failed", "others": "running"}
    assert found["orders"].error is not None
    assert "POND_DSN is not set" in found["orders"].error["what"]
    with pytest.raises(ConfigError, match="POND_DSN"):
        second.client().start("orders")
    mended = document("orders", source={"type": "pond", "config": {"id": "o", "dsn": "pond://here"}})
    assert second.client().patch("orders", mended).status == "running"


def test_files_are_read_again_and_only_what_changed_restarts(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()

    def write(name: str, **spec: object) -> None:
        content = document(name, state_dir=str(tmp_path / "state"), **spec)
        (folder / f"{name}.yaml").write_bytes(orjson.dumps(content))

    write("stays")
    write("changes")
    write("goes")
    server = serve(files=(folder,))
    client = server.client()
    assert {each.status for each in client.pipelines()} == {"running"}
    with pytest.raises(LifecycleError, match="comes from a file"):
        client.patch("stays", {"spec": {}})
    before = {name: len(client.transitions(name)) for name in ("stays", "changes")}
    write("changes", batch={"max_events": 7})
    write("comes")
    (folder / "goes.yaml").unlink()
    reload(server.control)
    assert [each.name for each in client.pipelines()] == ["changes", "comes", "stays"]
    assert client.request("GET", "/pipelines/changes")["spec"]["batch"]["max_events"] == 7
    assert len(client.transitions("stays")) == before["stays"]
    assert len(client.transitions("changes")) > before["changes"]
    (folder / "stays.yaml").write_text("metadata: {name: stays}\nspec: {}\n")
    reload(server.control)
    assert client.pipeline("stays").status == "running", "a mistake changes nothing"


def test_files_that_change_are_read_again_once_they_are_whole(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setattr(watched_files, "LOOK_SECONDS", 0.05)
    server = serve(files=(folder,))
    files = WatchedFiles([folder], lambda: reload(server.control))
    with watching_files(files, True):
        (folder / "comes.yaml").write_bytes(orjson.dumps(document("comes", state_dir=str(tmp_path / "state"))))
        until(lambda: [each.name for each in server.client().pipelines()] == ["comes"])
        (folder / "comes.yaml").unlink()
        until(lambda: [each.name for each in server.client().pipelines()] == [])
    reads: list[str] = []
    watched = WatchedFiles([folder], lambda: reads.append("read"))
    for text in ("a", "ab", "abc"):
        (folder / "x.yaml").write_text(text)
        watched.look()
        assert reads == [], "it is still being written"
    watched.look()
    watched.look()
    assert reads == ["read"]


def test_a_list_is_filtered_and_paged(server: Harness) -> None:
    client = server.client()
    for name in ("a", "b", "c"):
        client.create(document(name), start=name != "b")
    assert [each.name for each in client.pipelines(state="created")] == ["b"]
    assert [each.name for each in client.pipelines(labels=["team=pond"])] == ["a", "b", "c"]
    assert list(client.pipelines(labels=["team=lake"])) == []
    status, page, headers = raw(server, "GET", "/pipelines?limit=2&label=team%3Dpond")
    assert (status, [each["name"] for each in page]) == (200, ["a", "b"])
    following = headers["link"].partition(">")[0].removeprefix("<")
    assert [each["name"] for each in raw(server, "GET", following)[1]] == ["c"]


def test_a_repeated_post_with_its_key_gets_the_first_answer(server: Harness) -> None:
    keyed = {"Idempotency-Key": "one"}
    first = raw(server, "POST", "/pipelines", document("orders"), keyed)
    again = raw(server, "POST", "/pipelines", document("orders"), keyed)
    assert (first[0], again[0]) == (201, 201)
    assert again[1] == first[1]
    assert again[2]["idempotent-replayed"] == "true"
    assert again[2]["etag"] == first[2]["etag"]
    other = raw(server, "POST", "/pipelines", document("others"), keyed)
    assert (other[0], other[1]["code"]) == (422, "idempotency-key-reused")
    assert raw(server, "POST", "/pipelines", document("orders"), {"Idempotency-Key": "two"})[0] == 409


def test_metrics_are_on_their_own_port_and_forget_what_is_deleted(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    assert server.metrics_url is not None
    until(lambda: b'tidemill_lag_seconds{pipeline="orders"}' in urlopen(server.metrics_url or "").read())
    client.delete("orders")
    assert b'pipeline="orders"' not in urlopen(server.metrics_url).read()


def test_events_come_as_they_happen(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    client.create(document("others"))
    stream = client.events("orders")
    first = next(stream)
    assert (first.kind, first.data["name"], first.data["state"]) == ("status", "orders", "running")
    client.pause("others")
    client.pause("orders")
    states = []
    for event in stream:
        assert event.data["name"] == "orders", "those of others are not among them"
        states.append(event.data["state"])
        if event.data["state"] == "paused":
            break
    assert states[-1] == "paused"


def test_what_is_inside_a_pipeline_can_be_asked_for(server: Harness) -> None:
    client = server.client()
    client.create(document("orders", dlq={}))
    assert client.request("GET", "/pipelines/orders/schemas") == []
    assert client.request("GET", "/pipelines/orders/log") == []
    assert client.request("GET", "/pipelines/orders/dead-letters") == {"count": {}, "dead_letters": []}
    found = client.request("GET", "/pipelines/orders/checkpoints")
    assert found["sinks"][0]["sink"] == "bucket-orders"
    report = client.request("POST", "/pipelines/orders/doctor")
    assert report["ok"] is True
    assert any(each["name"] == "source pond: water" for each in report["checks"])
    with pytest.raises(TidemillError, match="in use by pid") as running:
        client.request("POST", "/pipelines/orders/checkpoints", {"offset": 0})
    assert "tidemill pipelines stop orders" in running.value.fix, "the pid is the server's"
    client.stop("orders")
    plan = client.request("POST", "/pipelines/orders/checkpoints", {"offset": 0, "dry_run": True})
    assert plan["checkpoint"] is None
    moved = client.request("POST", "/pipelines/orders/checkpoints", {"offset": 0})
    assert moved["checkpoint"]["offset"] == 0
    with pytest.raises(ConfigError, match="which dead letters"):
        client.request("POST", "/pipelines/orders/dead-letters/purge", {})
    assert client.request("POST", "/pipelines/orders/dead-letters/purge", {"all": True}) == {"purged": 0}
    schema = client.request("GET", "/components/sinks/files")["json_schema"]
    assert "path" in schema["properties"]
    assert client.request("GET", "/version")["version"]
    valid = client.request("POST", "/validate", document("next"))
    assert valid["spec"]["source"]["config"]["dsn"] == "***"
    assert [each.name for each in client.pipelines()] == ["orders"]


def test_what_events_show_of_a_table_and_drift_can_be_asked_for(server: Harness) -> None:
    """Rendered as by `tidemill sensing` and `tidemill drift` (tests/cli/test_sensing.py)."""
    client = server.client()
    client.create(document("orders", schema_sensing={"enabled": True}))
    assert client.request("GET", "/pipelines/orders/sensing/schemas") == []
    assert client.request("GET", "/pipelines/orders/drift") == []
    assert client.request("GET", "/pipelines/orders/drift/values") == []
    with closing(open_store(server.state)) as state:
        profile = TableProfile("public.orders", "abc", 3, events=7, sampled=5)
        kept = [SensedTable("public.orders", 2, profile.to_dict())]
        state.sensing.save("orders", SensedBatch(7, "2026-01-31T12:00:00+00:00", kept, {}, {}, []))
    (listed,) = client.request("GET", "/pipelines/orders/sensing/schemas")
    assert (listed["table"], listed["version"], listed["events"], listed["sampled"]) == ("public.orders", 2, 7, 5)
    assert client.request("GET", "/pipelines/orders/sensing/schemas/public.orders")["columns"] == {}
    exported = client.request("GET", "/pipelines/orders/sensing/schemas/public.orders/json-schema")
    assert exported["$schema"].endswith("2020-12/schema")
    assert client.request("GET", "/pipelines/orders/sensing/stats")["events"] == 7
    with pytest.raises(ConfigError, match=r'no events of a table "public\.other"'):
        client.request("GET", "/pipelines/orders/sensing/schemas/public.other")
    viewer = server.client(Role.VIEWER)
    assert len(viewer.request("GET", "/pipelines/orders/sensing/schemas")) == 1
    with pytest.raises(AccessRefused):
        viewer.request("GET", "/pipelines/orders/sensing/schemas/public.orders")


def test_counters_go_on_when_a_document_is_changed(server: Harness) -> None:
    client = server.client()
    client.create(document("orders"))
    server.metrics.events.labels("orders", "bucket-orders").inc(5)
    client.patch("orders", {"spec": {"batch": {"max_events": 10}}})
    client.restart("orders")
    assert server.metrics_url is not None
    counted = b'tidemill_events_total{pipeline="orders",sink="bucket-orders"} 5.0'
    assert counted in urlopen(server.metrics_url).read()
    with pytest.raises(LifecycleError):
        client.patch("orders", {"spec": {"source": {"config": {"dsn": "pond://drought"}}}})
    assert counted in urlopen(server.metrics_url).read(), "also where the change was rolled back"
