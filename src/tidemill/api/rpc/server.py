"""The gRPC port: an event loop in a thread of its own, beside the REST API, over the same control plane.

It answers from the first second, whatever the pipelines do. `grpc.health.v1` says whether they are looked after, as
/readyz does, and needs no token; reflection describes the services to tools such as grpcurl.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from tidemill.api.metrics_port import tls_context
from tidemill.api.proto import PACKAGE, SERVICES
from tidemill.api.rpc import wiring
from tidemill.api.rpc.ddl import DDLService
from tidemill.api.rpc.flows import CheckpointsService, FlowsService
from tidemill.api.rpc.operations import ControlService, HealthService, MetricsService, StatusService
from tidemill.api.rpc.runs import RunsService
from tidemill.api.rpc.streams import StreamsService
from tidemill.api.rpc.wiring import Door, abort, address_of, handlers, read_request
from tidemill.errors import ConfigError, EnvironmentProblem, TidemillError
from tidemill.service.run.status import WAITING, State
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.tokens import Tokens

_LOOKING, _CHANGING, _PULLING, _AUTHENTICATING = 16, 32, 32, 8
_MOST_CALLS = 256
_START_SECONDS = 30.0
_GRACE_SECONDS = 5.0
_WATCH_SECONDS = 1.0
MAX_WATCHES = 64
"""Of `grpc.health.v1`, together."""
MAX_REFLECTIONS = 16
"""Streams that ask what services there are, together."""
MAX_CONNECTIONS = 2048
"""Open at once. Each takes a file of the process, of which pipelines need some too."""
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 60_000),  # its client opens another one when it asks again
    ("grpc.keepalive_time_ms", 60_000),  # who is gone without a word must not keep a stream
    ("grpc.keepalive_timeout_ms", 20_000),
)


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """`address` is host:port; port 0 takes a free one."""

    address: str
    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    max_message: int = 256 << 10
    rate: float | None = None


@contextmanager
def serve_grpc(control: ControlPlane, tokens: Tokens | None, settings: GrpcSettings) -> Iterator[int]:
    """The port that answers."""
    server = GrpcServer(control, tokens, settings)
    server.start()
    try:
        yield server.port
    finally:
        server.stop()


class GrpcServer:
    def __init__(self, control: ControlPlane, tokens: Tokens | None, settings: GrpcSettings) -> None:
        self._control, self._tokens, self._settings = control, tokens, settings
        self._thread = threading.Thread(target=self._run, name="grpc", daemon=True)
        self._started, self._stop = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._error: BaseException | None = None
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        if not self._started.wait(_START_SECONDS) or self._error is not None:
            raise EnvironmentProblem(
                f"the address {self._settings.address} cannot be used: {self._error or 'no answer'}", where="--grpc",
                fix="Choose another one, or end what uses it.",
            ) from self._error  # fmt: skip

    def stop(self) -> None:
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_GRACE_SECONDS + 10)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  raised by `start`, in the thread of who asked
            self._error = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        with (
            ThreadPoolExecutor(_LOOKING, "grpc look") as looks,
            ThreadPoolExecutor(_CHANGING, "grpc change") as changes,
            ThreadPoolExecutor(_PULLING, "grpc pull") as pulls,
            ThreadPoolExecutor(_AUTHENTICATING, "grpc token") as checks,
        ):
            pools = {"looks": looks, "changes": changes, "pulls": pulls}
            server = self._build(Door(self._tokens, checks, self._settings.rate), pools)
            self.port = self._listen(server)
            await server.start()
            self._started.set()
            await self._stop.wait()
            await server.stop(_GRACE_SECONDS)

    def _build(self, door: Door, pools: Mapping[str, Executor]) -> grpc.aio.Server:
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._settings.max_message),
                ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
                *_OPTIONS,
            ],
            maximum_concurrent_rpcs=_MOST_CALLS,
        )
        services: dict[str, Any] = {
            "Health": HealthService(self._control), "Control": ControlService(self._control),
            "Status": StatusService(self._control), "Metrics": MetricsService(self._control, door),
            "Flows": FlowsService(self._control), "Checkpoints": CheckpointsService(self._control),
            "DDL": DDLService(self._control), "Streams": StreamsService(self._control),
            "Runs": RunsService(self._control),
        }  # fmt: skip
        server.add_generic_rpc_handlers(
            (*(handlers(name, services[name], door, pools) for name in SERVICES),
             _StandardHealth(self._control, door).bind())
        )  # fmt: skip
        names = (*(f"{PACKAGE}.{name}" for name in SERVICES), _HEALTH, reflection.SERVICE_NAME)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names), server)
        return server

    def _listen(self, server: grpc.aio.Server) -> int:
        settings = self._settings
        if settings.certificate is None or settings.key is None:
            return server.add_insecure_port(settings.address)
        files = _CertificateFiles(settings.certificate, settings.key, settings.client_ca)
        try:
            first = files.read()
        except OSError as error:
            raise ConfigError(
                f"the TLS files cannot be used: {error.strerror}", where="--tls-cert, --tls-key",
                fix="Give a certificate and its key in PEM, readable for this user.",
            ) from error  # fmt: skip
        credentials = grpc.dynamic_ssl_server_credentials(
            first, files.read_if_changed, require_client_authentication=settings.client_ca is not None
        )
        return server.add_secure_port(settings.address, credentials)


class _CertificateFiles:
    """Asked at each handshake: a certificate that has replaced the old one is used from then on."""

    def __init__(self, certificate: Path, key: Path, client_ca: Path | None) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._stamps: list[tuple[int, int]] = []

    def read(self) -> Any:
        self._stamps = self._look()
        pair = self._key.read_bytes(), self._certificate.read_bytes()
        clients = self._client_ca.read_bytes() if self._client_ca else None
        return grpc.ssl_server_certificate_configuration([pair], clients)

    def read_if_changed(self) -> Any:
        """None: as it was. A pair that does not fit, because one file was replaced and the other not yet, is none."""
        try:
            if self._look() == self._stamps:
                return None
            tls_context(self._certificate, self._key, self._client_ca)
            return self.read()
        except OSError:
            return None

    def _look(self) -> list[tuple[int, int]]:
        return [(each.st_mtime_ns, each.st_ino) for each in map(os.stat, (self._certificate, self._key))]


class _StandardHealth:
    """Of the server as a whole for everybody; of one pipeline, whose name is the service, for who has a token."""

    def __init__(self, control: ControlPlane, door: Door) -> None:
        self._control, self._door = control, door
        self._watching = 0

    def bind(self) -> grpc.GenericRpcHandler:
        writes = health_pb2.HealthCheckResponse.SerializeToString
        return grpc.method_handlers_generic_handler(_HEALTH, {
            "Check": grpc.stream_unary_rpc_method_handler(self.check, None, writes),
            "Watch": grpc.stream_stream_rpc_method_handler(self.watch, None, writes),
        })  # fmt: skip

    async def check(self, requests: AsyncIterator[bytes], context: Any) -> Any:
        try:
            name = await self._read(requests, context)
            found = await self._status(name, context)
        except TidemillError as error:
            await abort(context, error, "Health.Check")
        if found == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such pipeline, or no token to ask for it")
        return health_pb2.HealthCheckResponse(status=found)

    async def watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Needs no token, so that only so many may be open: they must not take every call that the server has."""
        if self._watching >= MAX_WATCHES:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_WATCHES} watches of health are open")
        self._watching += 1
        sent = None
        try:
            name = await self._read(requests, context)
            while not self._control.stopping or sent is None:
                found = await self._status(name, context)
                if found != sent:
                    sent = found
                    yield health_pb2.HealthCheckResponse(status=found)
                await asyncio.sleep(_WATCH_SECONDS)
        except TidemillError as error:
            await abort(context, error, "Health.Watch")
        finally:
            self._watching -= 1

    async def _read(self, requests: AsyncIterator[bytes], context: Any) -> str:
        """Who names a pipeline may be guessing a token."""
        request = await read_request(requests, health_pb2.HealthCheckRequest.FromString)
        if request.service:
            principal = await self._door.recognize(context)
            self._door.count(principal.id if principal is not None else address_of(context))
        return str(request.service)

    async def _status(self, name: str, context: Any) -> int:
        kinds = health_pb2.HealthCheckResponse
        if not name:
            return kinds.SERVING if self._control.ready and not self._control.stopping else kinds.NOT_SERVING
        principal = await self._door.recognize(context)
        if principal is None or not self._control.covers(principal.scope, name):
            return kinds.SERVICE_UNKNOWN
        return kinds.SERVING if self._control.view(name).state in (State.RUNNING, WAITING) else kinds.NOT_SERVING


class _Reflection(reflection.aio.ReflectionServicer):
    """Needs no token. A stream that asks nothing for a while is ended, as if its client had."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._open = 0

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        if self._open >= MAX_REFLECTIONS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_REFLECTIONS} streams of reflection are open")
        self._open += 1
        try:
            async for reply in super().ServerReflectionInfo(_while_asked(requests), context):
                yield reply
        finally:
            self._open -= 1


async def _while_asked(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    with suppress(StopAsyncIteration, TimeoutError):
        while True:
            yield await asyncio.wait_for(anext(requests), wiring.REQUEST_SECONDS)
