"""The port that Prometheus asks: every metric of a registry, over HTTP or TLS, and nothing else. With tokens, only for
who has one that is for all pipelines; with a secret, only for who knows that.

Each connection has a thread of its own, also for its handshake: one that stays silent keeps nobody else waiting, and is
closed after a while. Where all are taken the oldest one makes room: to read metrics takes no time.
"""

from __future__ import annotations

import hmac
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from tidemill.errors import TidemillError
from tidemill.service.server.tokens import Tokens
from tidemill.telemetry import events

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_SILENT_SECONDS = 20.0
_MOST_CONNECTIONS = 32
_LOOK_SECONDS = 0.05  # between looks whether it is to end


class _ScrapeHandler(WSGIRequestHandler):
    timeout = _SILENT_SECONDS  # of each read and write

    def address_string(self) -> str:
        return str(self.client_address[0])  # no name is looked up

    def log_message(self, format: str, *given: Any) -> None:
        """Scrapes are not events."""


class _MetricsServer(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128  # with the usual 5 a few connections at once make the next one wait a second to be heard

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._changing = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first
        super().__init__(address, _ScrapeHandler)

    def server_bind(self) -> None:
        super(WSGIServer, self).server_bind()  # without asking DNS for our name
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changing:
            if len(self._open) >= _MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with suppress(OSError):  # not that of SSLSocket, whose thread may be in its handshake
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            self._open[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                request = self._encrypt(request)
            super().process_request_thread(request, client_address)
        except (OSError, ValueError):  # the handshake failed, and closed the connection
            self.handle_error(request, client_address)
        finally:
            with self._changing:
                self._open.pop(request, None)

    def _encrypt(self, request: socket.socket) -> ssl.SSLSocket:
        assert self._tls is not None
        request.settimeout(_SILENT_SECONDS)
        with self._changing:
            if request not in self._open:
                raise ConnectionAbortedError("it made room")
            # In the place of the plain one, which is of no use any more.
            encrypted = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
            self._open = {encrypted if each is request else each: None for each in self._open}
        try:
            encrypted.do_handshake()
        except BaseException:
            with self._changing:
                self._open.pop(encrypted, None)
            encrypted.close()
            raise
        return encrypted

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or has no certificate that we know."""
        events.emit("metrics.connection_failed", logging.DEBUG, client=str(client_address[0]))


def listen_metrics(
    host: str, port: int, registry: CollectorRegistry, tls: ssl.SSLContext | None, callers: Tokens | str | None = None
) -> tuple[int, Callable[[], None]]:
    """The port, and what ends it. `OSError` if the address cannot be used."""
    server = _MetricsServer((host, port), tls)
    app = make_wsgi_app(registry)
    server.set_app(app if callers is None else _ask_for_token(app, callers))
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return server.server_port, stop


def _ask_for_token(app: WSGIApplication, callers: Tokens | str) -> WSGIApplication:
    """Metrics name pipelines of all tenants: a token of one is not enough."""

    def is_known(token: str) -> bool | None:
        """None: known, and not for all pipelines."""
        if isinstance(callers, str):
            return hmac.compare_digest(token.encode(), callers.encode())
        found = callers.authenticate(token)
        return False if found is None else found.scope.is_whole or None

    def serve_known(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        scheme, _, token = str(environ.get("HTTP_AUTHORIZATION", "")).partition(" ")
        try:
            known = is_known(token.strip()) if scheme.lower() == "bearer" else False
        except TidemillError:
            start_response("503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"the state store does not answer\n"]
        if known is False:
            start_response("401 Unauthorized", [("Content-Type", "text/plain"), ("WWW-Authenticate", "Bearer")])
            return [b"this needs a valid token\n"]
        if known is None:
            start_response("403 Forbidden", [("Content-Type", "text/plain")])
            return [b"this needs a token for all pipelines\n"]
        return app(environ, start_response)

    return serve_known


def tls_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """`OSError`, of which `ssl.SSLError` is one, if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
