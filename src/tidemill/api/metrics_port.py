"""The port that Prometheus asks: every metric of the registry, over HTTP or TLS, and nothing else.

Each connection has a thread of its own, also for its handshake: one that stays silent keeps nobody else waiting, and is
closed after a while.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from tidemill.telemetry import events
from tidemill.telemetry.metrics import Metrics

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

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._tls = tls
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, _ScrapeHandler)

    def server_bind(self) -> None:
        super(WSGIServer, self).server_bind()  # without asking DNS for our name
        self.server_name, self.server_port = "localhost", self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                request.settimeout(_SILENT_SECONDS)
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError:  # the handshake failed, and closed the connection
            self.handle_error(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or has no certificate that we know."""
        events.emit("metrics.connection_failed", logging.DEBUG, client=str(client_address[0]))


def listen_metrics(
    host: str, port: int, metrics: Metrics, tls: ssl.SSLContext | None
) -> tuple[int, Callable[[], None]]:
    """The port, and what ends it. `OSError` if the address cannot be used."""
    server = _MetricsServer((host, port), tls)
    server.set_app(make_wsgi_app(metrics.registry))
    thread = threading.Thread(target=server.serve_forever, args=(_LOOK_SECONDS,), name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(5)

    return server.server_port, stop


def tls_context(certificate: Path, key: Path, client_ca: Path | None) -> ssl.SSLContext:
    """`OSError`, of which `ssl.SSLError` is one, if the files cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
