"""A scripted HTTP receiver for `bench` and the tests: it answers as it is told, and remembers what it got.

`Receiver` lives in a thread and calls a function for each request. Run as a module it is a process of its own that
takes everything and keeps nothing, for measuring.
"""

from __future__ import annotations

import socket
import socketserver
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tidemill.lab.servers.process import ServerProcess, speaks
from tidemill.lab.servers.tls import Certificates


@dataclass(frozen=True, slots=True)
class Received:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: float  # time.monotonic


@dataclass(frozen=True, slots=True)
class ScriptedResponse:
    """`drop` closes the connection instead of answering, after the request was read: a lost answer."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False


class Receiver:
    """`script` gives the answer to each request; `received` are those that were answered with 2xx or dropped."""

    def __init__(
        self, script: Callable[[Received], ScriptedResponse] | None = None, *, certificates: Certificates | None = None
    ) -> None:
        self.script = script or (lambda request: ScriptedResponse())
        self.all: list[Received] = []
        self.taken: list[Received] = []
        self.busiest = 0
        self.connections = 0
        self._busy = 0
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                with receiver._lock:
                    receiver.connections += 1

            def handle_any(self) -> None:
                receiver._handle(self)

            do_POST = do_PUT = do_PATCH = do_GET = handle_any

            def log_message(self, format: str, *args: object) -> None:
                """Tests read what was received, not a log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificates is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificates.certificate, certificates.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # refused handshakes are meant
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def _handle(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Received(handler.command, handler.path, headers, handler.rfile.read(size), time.monotonic())
        with self._lock:
            self._busy += 1
            self.busiest = max(self.busiest, self._busy)
            self.all.append(request)
            answer = self.script(request)
            if answer.drop or 200 <= answer.status < 300:
                self.taken.append(request)
        time.sleep(answer.delay)
        with self._lock:
            self._busy -= 1
        if answer.drop:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in answer.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Sponge(ServerProcess):
    """A process that answers 200 to everything as fast as it can, or `delay` seconds after that."""

    name = "http"

    def __init__(self, delay: float = 0.0) -> None:
        super().__init__()
        self._delay = delay

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", __spec__.name, str(self.port), str(self._delay)]

    def answers(self) -> bool:
        return speaks(self.port, b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"HTTP/1.1 200")


class _Absorb(socketserver.BaseRequestHandler):
    """Knows just enough of HTTP/1.1 to find where a request ends: by its Content-Length.

    It reads into one buffer that stays: memory for every read anew would cost more than the bytes do.
    """

    request: socket.socket
    delay = 0.0

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(1 << 18)
        view, held = memoryview(buffer), 0
        while True:
            end = buffer.find(b"\r\n\r\n", 0, held)
            if end < 0:
                size = self.request.recv_into(view[held:])
                if not size:
                    return
                held += size
                continue
            length = bytes(view[:end]).lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            left = end + 4 + int(length or 0) - held
            while left > 0:
                size = self.request.recv_into(view[:left])
                if not size:
                    return
                left -= size
            view[:-left] = bytes(view[held + left : held])  # what is of the next request already
            held = -left
            if self.delay:
                time.sleep(self.delay)
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class _Sponge(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    _Absorb.delay = float(sys.argv[2])
    with _Sponge(("127.0.0.1", int(sys.argv[1])), _Absorb) as server:
        server.serve_forever()
