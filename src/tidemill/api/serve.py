"""One process with the REST and gRPC APIs, the metrics and the pipelines: what `tidemill serve` runs.

The ports answer before any pipeline is started, and until the last one has been drained.
"""

from __future__ import annotations

import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from tidemill.api.app import create_app
from tidemill.api.connections import BACKLOG, ListeningSocket, protocol_of
from tidemill.api.federated_metrics import federate
from tidemill.api.guard import MAX_BODY
from tidemill.api.ports import Address, LiveCertificate, TlsFiles, check_lease_seconds, serve_metrics
from tidemill.api.rpc.server import GrpcSettings, serve_grpc
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.service.lease.leases import LEASE_SECONDS, keeping_leases
from tidemill.service.run.capture_fork_server import keep_fork_server
from tidemill.service.run.interrupts import call_on_hangup, listen
from tidemill.service.runtime import Runtime
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.dispatch import Dispatcher, WorkerCommand
from tidemill.service.server.document_set import ControlSettings
from tidemill.service.server.reload import reload_files
from tidemill.service.server.tokens import Tokens
from tidemill.service.server.watched_files import WatchedFiles, watching_files
from tidemill.state import open_installation
from tidemill.telemetry import events
from tidemill.telemetry.garbage import short_collections
from tidemill.telemetry.metrics import Metrics

_MOST_CONNECTIONS = 512
_START_SECONDS = 30.0
_HURRY_SECONDS = 2.0
_OPEN_FILES = 65_536


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """`metrics`, `grpc` None: no port for them. `auth` False: whoever reaches the API may do everything. `client_ca`:
    only clients with a certificate that it signed are served. `rate`: requests a second of one caller, over REST and
    as many over gRPC; None: no limit. `watch_files`: documents are read again when their files change.
    `metrics_auth`: metrics want a token, too. `dispatch`: how this server starts a worker for each pipeline; None: it
    starts none."""

    api: Address
    metrics: Address | None
    state: str
    auth: bool = True
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    rate: float | None = None
    max_body: int = MAX_BODY
    drain_seconds: float = 30.0
    grpc: Address | None = None
    lease_seconds: float = LEASE_SECONDS
    watch_files: bool = False
    metrics_auth: bool = False
    dispatch: WorkerCommand | None = None
    control: ControlSettings = field(default_factory=ControlSettings)

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(self.certificate, self.key, self.client_ca)

    def check(self) -> None:
        for address in (self.api, self.grpc):
            if self.auth or address is None or address.is_loopback:
                continue
            raise ConfigError(
                f"without tokens the API would be open to whoever reaches {address}",
                where="--auth none",
                fix="Bind it to 127.0.0.1, or leave --auth out.",
            )
        if self.metrics_auth and not self.auth:
            raise ConfigError("there are no tokens", where="--metrics-auth token", fix="Leave --auth none out.")
        self.tls.check()
        check_lease_seconds(self.lease_seconds)


def run_server(settings: ServerSettings, say: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM, which drain; a second one stops at once. SIGHUP reads the files again. Called in the
    main thread. `say` is told what an operator must see: a first token, and where the ports are."""
    settings.check()
    allow_open_files()
    with listen() as (stop, hurry):
        _run_until(stop, hurry, settings, say)


def _run_until(
    stop: threading.Event, hurry: threading.Event, settings: ServerSettings, say: Callable[[str], None]
) -> None:
    store = open_installation(settings.state)
    tokens = Tokens(store) if settings.auth else None
    metrics = Metrics()
    runs = settings.control.runs
    forks = nullcontext() if runs is not None and not runs else keep_fork_server()
    with forks, short_collections(), keeping_leases(settings.state, settings.lease_seconds) as leases:
        control = ControlPlane(Runtime(metrics=metrics, leases=leases, runs=runs), store, settings.control)
        control.load()
        workers = None
        if settings.dispatch is not None:
            workers = Dispatcher(control, settings.dispatch, drain_seconds=settings.drain_seconds)
        registry = metrics.registry if workers is None else federate(metrics, lambda: workers.metrics, workers.secret)
        files = WatchedFiles(settings.control.files, lambda: reload(control, workers, "a file has changed"))
        app = create_app(control, tokens, max_body=settings.max_body, rate=settings.rate)
        with (
            call_on_hangup(lambda: reload(control, workers)), _grpc(control, tokens, settings, say),
            serving(app, settings, registry, say, tokens), watching_files(files, settings.watch_files),
        ):  # fmt: skip
            _announce(settings, tokens, say)
            threading.Thread(target=control.start_wanted, name="first start", daemon=True).start()
            if workers is not None:
                workers.begin()
            stop.wait()
            events.emit("server.stopping", drain_seconds=settings.drain_seconds)
            if workers is not None:
                control.stopping = True
                workers.close(hurry)
            ending = threading.Thread(
                target=control.close, kwargs={"drain_seconds": settings.drain_seconds}, name="drain", daemon=True
            )
            ending.start()
            while ending.is_alive():
                if hurry.wait(0.1):
                    control.runtime.close(seconds=_HURRY_SECONDS)
                    ending.join()
    events.emit("server.stopped")


def allow_open_files() -> None:
    """As many as this user may have: a pipeline takes some twenty here and in Java, and 1024, with which many systems
    begin, is few for hundreds of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if most == resource.RLIM_INFINITY else min(most, _OPEN_FILES)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def reload(control: ControlPlane, workers: Dispatcher | None = None, reason: str = "SIGHUP") -> None:
    """Here, and in the workers that were started here."""
    if reload_files(control, reason) and workers is not None:
        workers.reload()


@contextmanager
def serving(
    app: FastAPI,
    settings: ServerSettings,
    registry: CollectorRegistry,
    say: Callable[[str], None],
    tokens: Tokens | None = None,
) -> Iterator[tuple[str, str | None]]:
    """Both ports answer; their URLs."""
    scheme = "https" if settings.certificate else "http"
    bound = _bind(settings.api, "--api")
    api = f"{scheme}://{Address(settings.api.host, bound.getsockname()[1])}"
    metrics_url = None
    stop_metrics: Callable[[], None] = lambda: None  # noqa: E731
    try:
        metrics_tls = settings.tls.context()
        if settings.metrics is not None:
            callers = tokens if settings.metrics_auth else None
            metrics_url, stop_metrics = serve_metrics(settings.metrics, registry, metrics_tls, callers)
        server, thread = _serve_api(app, bound, settings)
    except BaseException:
        stop_metrics()
        bound.close()
        raise
    events.emit("server.listening", api=api, metrics=metrics_url)
    say(f"API on {api}" + (f", metrics on {metrics_url}" if metrics_url else ""))
    try:
        with LiveCertificate(settings.tls, metrics_tls, server.config.ssl):
            yield api, metrics_url
    finally:
        server.should_exit = True
        stop_metrics()
        thread.join(30)
        bound.close()


@contextmanager
def _grpc(
    control: ControlPlane, tokens: Tokens | None, settings: ServerSettings, say: Callable[[str], None]
) -> Iterator[None]:
    if settings.grpc is None:
        yield
        return
    given = GrpcSettings(
        str(settings.grpc), settings.certificate, settings.key, settings.client_ca, max_message=settings.max_body,
        rate=settings.rate,
    )  # fmt: skip
    with serve_grpc(control, tokens, given) as port:
        address = str(Address(settings.grpc.host, port))
        events.emit("server.listening", grpc=address)
        say(f"gRPC on {address}")
        yield


def _announce(settings: ServerSettings, tokens: Tokens | None, say: Callable[[str], None]) -> None:
    if tokens is None:
        events.warn("server.open", fix="Everybody on this machine may do everything: --auth none is for trying out.")
        say("WARNING: there is no authentication. Every program on this machine may do everything.")
        return
    with_tokens = [settings.api, settings.grpc, settings.metrics if settings.metrics_auth else None]
    outside = [each for each in with_tokens if each is not None and not each.is_loopback]
    if outside and settings.certificate is None:
        events.warn("server.unencrypted", fix="Tokens go over the network in clear: give --tls-cert and --tls-key, or "
                    "put a proxy with TLS in front.")  # fmt: skip
    first = tokens.create_first()
    if first is not None:
        say(f"first start, admin token (shown only now): {first}")


def _bind(address: Address, option: str) -> ListeningSocket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return ListeningSocket(socket.create_server((address.host, address.port), family=family, backlog=BACKLOG))
    except OSError as error:
        raise EnvironmentProblem(
            f"the address {address} cannot be used: {error.strerror or error}",
            where=option,
            fix="Choose another one, or end what uses it.",
        ) from error


def _serve_api(
    app: FastAPI, bound: ListeningSocket, settings: ServerSettings
) -> tuple[uvicorn.Server, threading.Thread]:
    given: dict[str, Any] = {}
    if settings.tls.context() is not None:
        given = {"ssl_certfile": str(settings.certificate), "ssl_keyfile": str(settings.key)}
        if settings.client_ca is not None:
            given |= {"ssl_ca_certs": str(settings.client_ca), "ssl_cert_reqs": ssl.CERT_REQUIRED}
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", http=protocol_of(bound), loop="asyncio",
        server_header=False, limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=5, ws="none",
        proxy_headers=False, backlog=BACKLOG, **given,
    )  # fmt: skip
    events.adopt("uvicorn", "asyncio")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([bound],), name="api", daemon=True)
    thread.start()
    waited = threading.Event()
    for _ in range(int(_START_SECONDS / 0.02)):
        if server.started or not thread.is_alive():
            break
        waited.wait(0.02)
    if not server.started:
        raise EnvironmentProblem("the API did not start", where=str(settings.api), fix="Its log says why.")
    return server, thread
