"""Workers that a server starts itself: real processes with a pipe, and nothing in them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.api.conftest import Harness, document
from tests.crash.actors import wait_for
from tidemill.api.federated_metrics import federate
from tidemill.api.ports import Address, serve_metrics
from tidemill.contracts.lease import LeaseHolder
from tidemill.errors import StateError
from tidemill.retry import RetryPolicy
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.lease.leases import keeping_leases
from tidemill.service.server import dispatch
from tidemill.service.server.dispatch import Dispatcher, WorkerCommand, WorkerProcess
from tidemill.state import open_leases
from tidemill.telemetry.metrics import Metrics

# Says where its metrics are, notes what it hears, and ends with its standard input.
WORKER = """
import os, signal, sys
from pathlib import Path
notes = Path(sys.argv[1], f"{sys.argv[-1]}.{os.getpid()}")
def note(word):
    with notes.open("a") as file:
        file.write(word + "\\n")
signal.signal(signal.SIGHUP, lambda *_: note("reload"))
signal.signal(signal.SIGTERM, lambda *_: (note("hurry"), os._exit(0)))
print("metrics on", os.environ["METRICS"], flush=True)
note("started")
while os.read(0, 100):
    pass
note("drains")
if "STUBBORN" in os.environ:
    signal.pause()
note("ended")
"""


class Stage:
    """A server that runs nothing itself, and the workers that it started."""

    def __init__(self, directory: Path, harness: Harness, **environment: str) -> None:
        self.notes = directory / "notes"
        self.notes.mkdir()
        self.server = harness
        command = (sys.executable, "-S", "-c", WORKER, str(self.notes), "--pipeline")
        given = {"METRICS": "http://127.0.0.1:1/metrics", **environment}
        self.dispatcher = Dispatcher(
            harness.control, WorkerCommand(command, given), drain_seconds=1, policy=RetryPolicy(first=0.1, most=0.2)
        )
        self.dispatcher.begin()

    def worker(self, name: str) -> WorkerProcess | None:
        return self.dispatcher._workers.get(name)

    def heard(self, name: str, pid: int) -> list[str]:
        file = self.notes / f"{name}.{pid}"
        return file.read_text().split() if file.exists() else []

    def await_worker(self, name: str, *, other_than: int = 0) -> int:
        """Until it hears: its process number."""
        found = 0

        def hears() -> bool:
            nonlocal found
            worker = self.worker(name)
            found = worker.pid if worker is not None else 0
            return found not in (0, other_than) and "started" in self.heard(name, found)

        wait_for(hears, 60, f"no worker of {name}")
        return found


@pytest.fixture
def stage(tmp_path: Path, stand_ins: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(dispatch, "LOOK_SECONDS", 0.05)
    with keeping_leases(str(tmp_path / "state" / "state.sqlite"), 3.0) as leases:
        harness = Harness(tmp_path, leases=leases, runs=frozenset())
        made = Stage(tmp_path, harness)
        yield made
        made.dispatcher.close(threading.Event())
        harness.close()


def test_a_wanted_pipeline_has_a_worker_and_one_that_dies_is_replaced(stage: Stage) -> None:
    client = stage.server.client()
    client.create(document("orders"))
    client.create(document("rests"), start=False)
    first = stage.await_worker("orders")
    assert stage.worker("rests") is None
    os.kill(first, signal.SIGKILL)
    second = stage.await_worker("orders", other_than=first)
    stage.dispatcher._series["orders"] = RetryPolicy(first=2.0, most=2.0).begin()  # long enough to be seen
    os.kill(second, signal.SIGKILL)
    wait_for(lambda: "ended with code -9" in _error(stage), 60, "it is not said why nobody runs it")
    assert client.pipeline("orders").status == "unassigned"
    third = stage.await_worker("orders", other_than=second)
    assert "just starting" in _error(stage)
    stage.dispatcher.reload()
    wait_for(lambda: "reload" in stage.heard("orders", third), 60, "it did not hear of changed files")
    client.stop("orders")
    wait_for(lambda: stage.worker("orders") is None, 60, "its worker stays")
    assert stage.heard("orders", third)[-2:] == ["drains", "ended"]
    client.start("orders")
    last = stage.await_worker("orders", other_than=third)
    client.delete("orders")
    wait_for(lambda: stage.worker("orders") is None, 60, "its worker stays")
    assert "ended" in stage.heard("orders", last)


def test_a_pipeline_that_another_process_has_gets_no_worker(stage: Stage, tmp_path: Path) -> None:
    with keeping_leases(str(tmp_path / "state" / "state.sqlite"), 3.0) as others:
        lease = others.acquire("orders")
        wait_for(lambda: stage.server.control.is_leased("orders"), 60, "the lease is not seen")
        stage.server.client().create(document("orders"))
        stage.server.client().create(document("baskets"))
        stage.await_worker("baskets")
        assert stage.worker("orders") is None
        others.release(lease)
        stage.await_worker("orders")


def test_a_worker_that_renews_no_more_is_killed_and_replaced(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is frozen, or hangs: it would never die, and nobody else takes its pipeline."""
    monkeypatch.setattr(dispatch, "SILENCE_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(dispatch, "FROZEN_SECONDS", 1.0)
    stage.server.client().create(document("orders"))
    first = stage.await_worker("orders")
    with closing(open_leases(str(tmp_path / "state" / "state.sqlite"), seconds=1)) as store:
        for _ in range(50):  # for longer than it may be silent
            store.renew("worker", 3.0, LeaseProcess.of(first).write())
            assert not threading.Event().wait(0.1)
        assert stage.await_worker("orders") == first
        os.kill(first, signal.SIGSTOP)
        second = stage.await_worker("orders", other_than=first)
        store.renew("other", 1.0, LeaseProcess.of(second).write())
        monkeypatch.setattr(stage.server.control.runtime.leases, "others", _unanswered)
        assert not threading.Event().wait(4.0)
        assert stage.await_worker("orders") == second, "while the store does not answer nobody can renew"


def _unanswered() -> list[LeaseHolder]:
    raise StateError("the store does not answer")


def test_all_workers_drain_with_the_server_and_who_hurries_or_does_not_end_is_ended(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.server.client().create(document("orders"))
    pid = stage.await_worker("orders")
    stage.dispatcher.close(threading.Event())
    assert stage.heard("orders", pid) == ["started", "drains", "ended"]
    (tmp_path / "more").mkdir()
    stubborn = Stage(tmp_path / "more", stage.server, STUBBORN="1")
    pid = stubborn.await_worker("orders")
    hurry = threading.Event()
    hurry.set()
    stubborn.dispatcher.close(hurry)
    assert stubborn.heard("orders", pid)[-1] == "hurry"
    (tmp_path / "most").mkdir()
    stubborn = Stage(tmp_path / "most", stage.server, STUBBORN="1")
    pid = stubborn.await_worker("orders")
    monkeypatch.setattr(dispatch, "STOP_SECONDS", 0.0)
    stubborn.dispatcher.close(threading.Event())
    assert stubborn.heard("orders", pid) == ["started", "drains"], "it was killed"


def test_the_metrics_of_workers_are_read_at_the_server(stage: Stage) -> None:
    workers = [Metrics(), Metrics()]
    ports = [serve_metrics(Address("127.0.0.1", 0), each.registry, callers="between us") for each in workers]
    for name, each in zip(("orders", "baskets"), workers, strict=True):
        each.events.labels(name, "lake").inc(7)
        each.batch_seconds.labels(name, "lake").observe(0.2)
    own = Metrics()
    own.events.labels("own", "lake").inc(1)
    urls = [*(url for url, _ in ports), "http://127.0.0.1:1/metrics"]
    url, stop = serve_metrics(Address("127.0.0.1", 0), federate(own, lambda: urls, "between us"))
    with pytest.raises(HTTPError, match="401"), urlopen(urls[0], timeout=60):
        pytest.fail("who does not know the secret is not answered")
    for query in ("", "?name[]=tidemill_events_total"):
        with urlopen(url + query, timeout=60) as answer:
            text = answer.read().decode()
        assert text.count("# TYPE tidemill_events_total counter") == 1
        for line in ('{pipeline="orders",sink="lake"} 7.0', '{pipeline="baskets",sink="lake"} 7.0',
                     '{pipeline="own",sink="lake"} 1.0'):  # fmt: skip
            assert f"tidemill_events_total{line}" in text
        assert ("tidemill_batch_seconds_bucket" in text) == (not query)
    for end in (stop, *(stop_one for _, stop_one in ports)):
        end()
    stage.server.client().create(document("orders"))
    stage.await_worker("orders")
    wait_for(lambda: stage.dispatcher.metrics == ["http://127.0.0.1:1/metrics"], 60, "it did not say where they are")


def _error(stage: Stage) -> str:
    return (stage.server.client().pipeline("orders").error or {}).get("what", "")
