"""Changes of documents: what others are checked against meanwhile, and that a change that fails loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.api.conftest import Harness, Serve, StandInCapture, document
from tests.support.blocks import make_change
from tests.support.scripted import ScriptedStream
from tests.support.session_standin import NO_SPARK
from tests.support.waiting import until
from tidemill.api.client import ServerClient
from tidemill.capture.status import CaptureStatus
from tidemill.errors import ConfigError, LifecycleError, PipelineBusy, StateError, TidemillError
from tidemill.log import LogConfig, LogWriter
from tidemill.service.cause import Cause
from tidemill.service.runtime import Runtime
from tidemill.service.server import fleet

ANN = Cause("ann", "a test")


class SlowCapture(StandInCapture):
    """Says nothing until `goes_on` is set; with `drought` in its DSN it fails then."""

    goes_on = threading.Event()
    waits = threading.Event()

    def watch(self) -> CaptureStatus:  # type: ignore[override]
        slow = "slow" in self._pipeline.spec.source.config.dsn  # type: ignore[attr-defined]
        if slow and not self.goes_on.is_set():
            self.waits.set()
            return CaptureStatus(1, stage="connecting")
        return super().watch()


@pytest.fixture
def slow(server: Harness, monkeypatch: pytest.MonkeyPatch) -> type[SlowCapture]:
    monkeypatch.setattr("tidemill.service.run.pipeline_run.CaptureProcess", SlowCapture)
    monkeypatch.setattr(SlowCapture, "goes_on", threading.Event())
    monkeypatch.setattr(SlowCapture, "waits", threading.Event())
    return SlowCapture


def patch_beside(client: ServerClient, name: str, patch: dict[str, Any]) -> Callable[[], TidemillError | None]:
    """Sends it from another thread; the function waits for its refusal, None if it was taken."""
    refusals: list[TidemillError] = []

    def send() -> None:
        try:
            client.patch(name, patch)
        except TidemillError as error:
            refusals.append(error)

    thread = threading.Thread(target=send)
    thread.start()

    def wait() -> TidemillError | None:
        thread.join(120)
        return refusals[0] if refusals else None

    return wait


def sink(name: str) -> list[dict[str, Any]]:
    return [{"type": "bucket", "config": {"id": name}}]


def dsn(text: str) -> dict[str, Any]:
    return {"source": {"config": {"dsn": text}}}


@pytest.mark.parametrize("ends", ["drought", "water"])
def test_a_trial_delivers_nothing_before_it_has_succeeded(
    server: Harness, slow: type[SlowCapture], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The log holds events that no sink has: they are for the sinks of the document that stays."""
    client = server.client()
    client.create(document("orders", sinks=sink("old")), start=False)
    log = LogWriter.open(server.control.pipeline("orders").log_uri, LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10))
    log.close()
    monkeypatch.setitem(ScriptedStream.outlook, "old", "down")
    delivered: list[tuple[str, int]] = []
    server.control.runtime.subscribe(
        on_batch=lambda _, report: delivered.extend((each.sink, each.events) for each in report.receipts)
    )
    client.start("orders")
    refused = patch_beside(client, "orders", {"spec": {"sinks": sink("new"), **dsn(f"pond://slow-{ends}")}})
    assert slow.waits.wait(120)
    monkeypatch.setitem(ScriptedStream.outlook, "old", "up")
    kept = server.control.pipeline("orders").build_checkpoints().load("orders")
    assert kept is None or kept.offset == 0
    slow.goes_on.set()
    assert (refused() is not None) == (ends == "drought")
    until(lambda: bool(delivered))
    assert delivered == [("old" if ends == "drought" else "new", 10)]


def test_a_trial_that_the_server_drains_delivers_nothing(server: Harness, slow: type[SlowCapture]) -> None:
    client = server.client()
    client.create(document("orders"), start=False)
    log = LogWriter.open(server.control.pipeline("orders").log_uri, LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10))
    log.close()
    server.control.runtime.start("orders", trial=True)
    server.control.runtime.drain("orders", seconds=5)
    assert server.control.pipeline("orders").build_checkpoints().load("orders") is None
    server.control.runtime.start("orders")
    server.control.runtime.drain("orders", seconds=5)
    kept = server.control.pipeline("orders").build_checkpoints().load("orders")
    assert kept is not None
    assert kept.offset == 10


def test_while_a_change_is_tried_others_are_checked_against_both_documents(
    server: Harness, slow: type[SlowCapture]
) -> None:
    client = server.client()
    client.create(document("orders"))
    refused = patch_beside(client, "orders", {"spec": dsn("pond://slow-drought") | {"source": {"config": {
        "id": "another", "dsn": "pond://slow-drought"}}}})  # fmt: skip
    assert slow.waits.wait(120)
    for taken in ("orders", "another"):
        other = document("other", source={"type": "pond", "config": {"id": taken, "dsn": "${POND_DSN}"}})
        with pytest.raises(ConfigError, match=f'two pipelines have a source called "{taken}"'):
            client.create(other)
    slow.goes_on.set()
    assert isinstance(refused(), LifecycleError)
    other = document("other", source={"type": "pond", "config": {"id": "another", "dsn": "${POND_DSN}"}})
    assert client.create(other).status == "running"


def test_a_call_that_would_wait_for_another_is_refused_and_says_so(
    server: Harness, slow: type[SlowCapture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "TURN_SECONDS", 0.05)
    client = server.client()
    client.create(document("orders"))
    refused = patch_beside(client, "orders", {"spec": dsn("pond://slow")})
    assert slow.waits.wait(120)
    with pytest.raises(PipelineBusy, match="being changed by somebody else") as busy:
        client.restart("orders")
    assert "Try again" in busy.value.fix
    assert client.pipeline("orders").name == "orders"
    slow.goes_on.set()
    assert refused() is None
    assert client.restart("orders").status == "running"


def test_a_change_that_cannot_be_stored_leaves_a_paused_pipeline_as_it_was(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = server.client()
    client.create(document("orders"))
    before = client.pause("orders")

    def full(document: object, *, instead_of: object) -> None:
        raise StateError("the disk is full", fix="Make room.")

    with monkeypatch.context() as patching:
        patching.setattr(server.store, "change_document", full)
        with pytest.raises(StateError, match="disk is full"):
            client.patch("orders", {"spec": {"batch": {"max_events": 5}}})
    now = client.pipeline("orders")
    assert (now.version, now.spec, now.status) == (before.version, before.spec, "paused")


def test_a_state_directory_is_changed_only_with_what_is_in_it(server: Harness) -> None:
    """Else the pipeline begins anew, under offsets that its sinks know."""
    client = server.client()
    before = client.create(document("orders"))
    new = server.directory / "root" / "elsewhere"
    to_new = {"spec": {"state_dir": str(new)}}
    with pytest.raises(ConfigError, match="has its state in another directory") as refused:
        client.patch("orders", to_new)
    assert f"move {server.settings.state_dir / 'orders'} there" in refused.value.fix
    now = client.pipeline("orders")
    assert (now.version, now.status) == (before.version, "running")
    client.stop("orders")
    new.mkdir(parents=True)
    (server.settings.state_dir / "orders").rename(new / "orders")
    assert client.patch("orders", to_new).status == "stopped"
    assert client.start("orders").status == "running"
    client.create(document("others"), start=False)
    assert client.patch("others", {"spec": {"state_dir": str(new)}}).status == "created", "it has never run"


def test_what_is_wanted_is_kept_before_it_is_done_and_taken_back_when_it_is_refused(
    server: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain takes long: a server that is killed over it must not start the pipeline again."""
    client = server.client()
    client.create(document("orders"))
    kept = dict[str, str]()

    def note(verb: str) -> Callable[..., None]:
        def do(name: str, **_: object) -> None:
            stored = server.store.document(name)
            kept[verb] = stored.desired if stored is not None else ""
            raise LifecycleError("it cannot be done now")

        return do

    for verb in ("drain", "pause"):
        monkeypatch.setattr(server.control.runtime, verb, note(verb))
        with pytest.raises(LifecycleError, match="cannot be done now"):
            client.change("orders", verb)
        assert client.pipeline("orders").desired == "running"
    assert kept == {"drain": "stopped", "pause": "paused"}
    assert client.pipeline("orders").status == "running"


def test_files_that_change_their_spark_together_are_all_taken_and_api_documents_follow(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "pipelines"
    folder.mkdir()
    monkeypatch.setattr(Runtime, "_session", lambda *_: NO_SPARK)

    def write(name: str, master: str) -> None:
        spark = {"master": master, "conf": {"spark.x": master}}
        content = document(name, state_dir=str(tmp_path / "state"), spark=spark)
        (folder / f"{name}.yaml").write_bytes(orjson.dumps(content))

    write("one", "local[1]")
    write("two", "local[1]")
    server = serve(files=(folder,))
    server.control.runtime._given = server.control.runtime._spark = None
    client = server.client()
    client.create(document("posted"))
    write("one", "local[2]")
    with pytest.raises(ConfigError, match="different Spark masters"):
        server.control.reload(ANN)
    assert {each.status for each in client.pipelines()} == {"running"}
    write("two", "local[2]")
    assert server.control.reload(ANN).changed == ("one", "two")
    assert {each.name: each.status for each in client.pipelines()} == dict.fromkeys(("one", "posted", "two"), "running")
    assert server.control.pipeline("two").spec.spark.master == "local[2]"
