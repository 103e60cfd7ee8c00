"""A real server over HTTP whose pipelines are stand-ins: no database, no Spark, a state store on disk."""

from __future__ import annotations

import http.client
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import orjson
import pytest

from tests.support.components import register
from tests.support.scripted import NoCapture, ScriptedStream
from tests.support.session_standin import NO_SPARK
from tidemill import config
from tidemill.api.app import create_app
from tidemill.api.client import ServerClient
from tidemill.api.ports import Address
from tidemill.api.serve import ServerSettings, serving
from tidemill.capture.status import CaptureStatus
from tidemill.config.confine import Confinement
from tidemill.errors import SourceError, TidemillError
from tidemill.retry import RetryPolicy
from tidemill.service.lease.leases import LeaseKeeper
from tidemill.service.run import pipeline_run
from tidemill.service.runtime import Runtime
from tidemill.service.schedule import run_queue
from tidemill.service.server import elsewhere, scheduled, shared_documents
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.tokens import Role, Tokens
from tidemill.state import open_installation
from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics

ENVIRONMENT = {"POND_DSN": "pond://frog:croak@127.0.0.1/lake", "SECRET_DSN": "pond://root:toor@127.0.0.1/all"}


def document(name: str, **spec: Any) -> dict[str, Any]:
    """The smallest document that is right, and what is given on top of its spec."""
    return {
        "metadata": {"name": name, "labels": {"team": "pond"}},
        "spec": {
            "source": {"type": "pond", "config": {"id": name, "dsn": "${POND_DSN}"}},
            "sinks": [{"type": "bucket", "config": {"id": f"bucket-{name}"}}],
            **spec,
        },
    }


class StandInCapture(NoCapture):
    """Streams at once, or fails as its DSN says: `drought` for good, `flood` in a way that a retry may mend."""

    failures: ClassVar[dict[str, int]] = {}

    def __init__(self, pipeline: config.Pipeline, said: Path | None = None, *given: object) -> None:
        self._pipeline = pipeline

    def start(self) -> None:
        pass

    def watch(self) -> CaptureStatus:  # type: ignore[override]
        dsn = self._pipeline.spec.source.config.dsn  # type: ignore[attr-defined]
        if "drought" in dsn:
            raise TidemillError("the pond is dry", where="pond", fix="Wait for rain.")
        if "flood" in dsn and self.failures.get(self._pipeline.name, 0) > 0:
            self.failures[self._pipeline.name] -= 1
            raise SourceError("the pond is flooded", fix="It is tried again.")
        return CaptureStatus(1, stage="cdc", streaming_since=1.0, began="0/1", lag_bytes=7)


class Harness:
    """A control plane and its server. `client(role)` has a token of that role."""

    def __init__(
        self, directory: Path, *, auth: bool = True, leases: LeaseKeeper | None = None, state: str = "", **settings: Any
    ) -> None:
        """`state` is a database in the place of a file below the directory."""
        self.directory = directory
        self.state = state or str(directory / "state" / "state.sqlite")
        self.store = open_installation(self.state)
        self.tokens = Tokens(self.store)
        self.admin = self.tokens.create("raw", Role.ADMIN)[0]
        self.metrics = Metrics()
        self.settings = ControlSettings(
            **{
                "state_dir": directory / "state", "trial_seconds": 5.0,
                "confinement": Confinement((directory / "root",), frozenset({"POND_DSN"})),
                "restarts": RetryPolicy(first=0.1, most=0.2), "environment": ENVIRONMENT, **settings,
            }
        )  # fmt: skip
        runtime = Runtime(spark=NO_SPARK, metrics=self.metrics, leases=leases)
        self.control = ControlPlane(runtime, self.store, self.settings)
        self.control.load()
        self.control.start_wanted()
        app = create_app(self.control, self.tokens if auth else None, max_body=100_000)
        server = ServerSettings(Address("127.0.0.1", 0), Address("127.0.0.1", 0), self.state, auth=auth)
        self._serving = serving(app, server, self.metrics.registry, lambda line: None)
        self.url, self.metrics_url = self._serving.__enter__()

    def client(self, role: Role | None = Role.ADMIN, name: str = "ann") -> ServerClient:
        token = self.tokens.create(name, role)[0] if role else None
        return ServerClient(self.url, token, timeout=30)

    def close(self) -> None:
        self.control.close(drain_seconds=1)
        self._serving.__exit__(None, None, None)


Serve = Callable[..., Harness]


def use_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its servers also look often at what they share: a look costs a stand-in nothing."""
    for module in (shared_documents, scheduled, run_queue):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(elsewhere, "ASSIGN_SECONDS", 1.0)
    register(monkeypatch)
    monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
    monkeypatch.setattr(pipeline_run, "CaptureProcess", StandInCapture)
    monkeypatch.setattr(ScriptedStream, "outlook", defaultdict(lambda: "up"))
    monkeypatch.setattr(StandInCapture, "failures", {})


@pytest.fixture(autouse=True)
def log_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server can be told to log less, for all that this process starts from then on: not beyond the test."""
    before = events.LOGGER.level
    monkeypatch.setenv("TIDEMILL_LOG_LEVEL", "INFO")
    yield
    events.LOGGER.setLevel(before)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    use_stand_ins(monkeypatch)


@pytest.fixture
def serve(tmp_path: Path, stand_ins: None) -> Iterator[Serve]:
    """Makes servers over one directory; they end with the test."""
    made: list[Harness] = []

    def make(**settings: Any) -> Harness:
        made.append(Harness(tmp_path, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def server(serve: Serve) -> Harness:
    return serve()


def raw(
    server: Harness, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Status, body and headers in lower case; as an administrator, unless `headers` say otherwise."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    given = {"Authorization": f"Bearer {server.admin}", "Content-Type": "application/json", **(headers or {})}
    content = body if isinstance(body, bytes) or body is None else orjson.dumps(body)
    connection.request(method, path, content, {name: value for name, value in given.items() if value})
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    shown = {name.lower(): value for name, value in answer.getheaders()}
    return answer.status, orjson.loads(text) if "json" in shown.get("content-type", "") else text, shown
