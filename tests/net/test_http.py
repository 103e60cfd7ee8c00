"""Our own HTTP/1.1 against a socket that answers with the bytes it is told."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.support.capturing import eventually
from tidemill.lab.servers import tls
from tidemill.lab.servers.http_receiver import Receiver
from tidemill.lab.servers.process import free_port
from tidemill.net.http import Garbled, HttpConnection, Origin, head

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Scripted:
    """Takes connections one after the other and answers each request of them with the next of `answers`, piece by
    piece; None hangs up instead. A request ends where its Content-Length says."""

    def __init__(self) -> None:
        self.answers: list[tuple[bytes, ...] | None] = []
        self.requests: list[bytes] = []
        self.connections = 0
        self.impatient = False  # answers when it has the head, and hangs up
        self.before_the_body: list[bytes] = []  # what it says to those who ask whether it wants one
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def origin(self) -> Origin:
        return Origin(False, "127.0.0.1", self._listener.getsockname()[1])

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection, contextlib.suppress(ConnectionError):  # the client may have seen enough
                while self._answer(connection):
                    pass

    def _answer(self, connection: socket.socket) -> bool:
        request = b""
        while b"\r\n\r\n" not in request or (not self.impatient and not _whole(request)):
            data = connection.recv(65_536)
            if not data:
                return False
            request += data
            if b"Expect: 100-continue" in request and b"\r\n\r\n" in request and self.before_the_body:
                said = self.before_the_body.pop(0)
                connection.sendall(said)
                if b" 100 " not in said:
                    self.requests.append(request)
                    return True
        self.requests.append(request)
        answer = self.answers.pop(0)
        for piece in answer or ():
            connection.sendall(piece)
        return answer is not None and not self.impatient


def _whole(request: bytes) -> bool:
    top, _, body = request.partition(b"\r\n\r\n")
    return len(body) >= int(top.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@pytest.fixture
def wire(server: Scripted) -> Iterator[HttpConnection]:
    made = HttpConnection(server.origin, None, connect_seconds=5, answer_seconds=5)
    yield made
    made.close()


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
KEPT = [
    ("with a body", 200, (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",)),
    ("in pieces", 202, (b"HTT", b"P/1.1 202 Accepted\r\nContent-Le", b"ngth: 5\r", b"\n\r", b"\nhel", b"lo")),
    ("without a body", 204, (b"HTTP/1.1 204 No Content\r\n\r\n",)),
    ("without a reason", 200, (b"HTTP/1.1 200\r\ncontent-length:0\r\n\r\n",)),
    ("with bare line feeds", 200, (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",)),
    ("after others that come before it", 200, (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n", OK)),
    ("in chunks", 200, (CHUNKED, b"3;a=b\r\nabc\r\n", b"A\r\n0123456789\r", b"\n0\r\nT: x\r\n\r\n")),
    ("in 1.0, but kept", 200, (b"HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 0\r\n\r\n",)),
]  # fmt: skip
CLOSED = [
    ("that says so", 200, (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",)),
    ("of an old server", 200, (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",)),
    ("of unknown length", 200, (b"HTTP/1.1 200 OK\r\n\r\nuntil it ends",)),
    ("of a length that is none", 200, (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",)),
    ("too long to read", 200, (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n",)),
    ("of chunks too long to read", 200, (CHUNKED, b"FFFFFF\r\n")),
    ("in a coding that is not ours", 200, (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",)),
    ("with more than was asked for", 200, (OK + OK,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "status", "answer"), KEPT, ids=[name for name, *_ in KEPT])
def test_after_such_an_answer_the_connection_is_used_again(
    server: Scripted, wire: HttpConnection, name: str, status: int, answer: tuple[bytes, ...]
) -> None:
    server.answers = [answer, answer, (OK,)]
    assert [wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status for _ in range(3)] == [status, status, 200]
    assert server.connections == 1


@pytest.mark.parametrize(("name", "status", "answer"), CLOSED, ids=[name for name, *_ in CLOSED])
def test_after_such_an_answer_a_new_connection_is_made(
    server: Scripted, wire: HttpConnection, name: str, status: int, answer: tuple[bytes, ...]
) -> None:
    server.answers = [answer, (OK,)]
    assert [wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status for _ in range(2)] == [status, 200]
    assert server.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((b"220 mail.example ESMTP\r\n\r\n",), Garbled),
        ((b"HTTP/2 200\r\n\r\n",), Garbled),
        ((b"HTTP/1.1 2000 OK\r\n\r\n",), Garbled),
        ((CHUNKED, b"zz\r\n"), Garbled),
        ((CHUNKED, b"-1\r\n"), Garbled),
        ((b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000,), Garbled),
        (None, ConnectionResetError),
    ],
)
def test_what_is_no_answer_is_an_error_and_the_next_request_goes_over_a_new_connection(
    server: Scripted, wire: HttpConnection, answer: Any, error: type[Exception]
) -> None:
    server.answers = [answer, (OK,)]
    with pytest.raises(error):
        wire.exchange(b"POST / HTTP/1.1\r\n", b"x")
    assert wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status == 200


def test_an_answer_that_does_not_come_in_time_is_an_error(server: Scripted) -> None:
    server.answers = [(b"HTTP/1.1 200 OK\r\n",), (OK,)]
    wire = HttpConnection(server.origin, None, connect_seconds=5, answer_seconds=0.05)
    with pytest.raises(TimeoutError):
        wire.exchange(b"POST / HTTP/1.1\r\n", b"x")
    wire.close()


def test_a_connection_that_the_receiver_closed_meanwhile_is_made_anew(wire: HttpConnection, server: Scripted) -> None:
    hung_up = threading.Event()
    answer = server._answer

    def once(connection: socket.socket) -> bool:
        answer(connection)
        connection.shutdown(socket.SHUT_RDWR)
        hung_up.set()
        return False

    server._answer = once  # type: ignore[method-assign]
    server.answers = [(OK,), (OK,)]
    for _ in range(2):
        hung_up.clear()
        assert wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status == 200
        assert hung_up.wait(10)
    assert server.connections == 2


def test_an_answer_that_comes_before_the_body_was_read_counts(server: Scripted, wire: HttpConnection) -> None:
    server.impatient = True
    server.answers = [(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n",)]
    assert wire.exchange(b"POST / HTTP/1.1\r\n", bytes(1 << 26)).status == 413


def test_a_large_body_arrives_whole(server: Scripted, wire: HttpConnection) -> None:
    body = memoryview(bytes(range(256)) * 16_384)
    server.answers = [(OK,)]
    wire.exchange(b"PUT /x HTTP/1.1\r\nA: b\r\n", body)
    assert server.requests == [b"PUT /x HTTP/1.1\r\nA: b\r\nContent-Length: 4194304\r\n\r\n" + bytes(body)]


def test_a_large_body_arrives_whole_over_tls(tmp_path: Path) -> None:
    from tidemill.net.tls import TlsConfig

    made = tls.make(tmp_path / "tls")
    with Receiver(certificates=made) as secure:
        wire = HttpConnection(
            Origin.of(secure.url), TlsConfig(ca_file=Path(made.ca)).context(), connect_seconds=5, answer_seconds=5
        )
        for _ in range(2):
            assert wire.exchange(head("POST", f"{secure.url}/x", {}), bytes(1 << 22)).status == 200
        wire.close()
        assert [len(request.body) for request in secure.taken] == [1 << 22] * 2


def test_headers_of_an_answer_are_found_whatever_their_case(server: Scripted, wire: HttpConnection) -> None:
    server.answers = [(b"HTTP/1.1 429 Slow\r\nRETRY-after:  7 \r\ncontent-length: 0\r\n\r\n",)]
    reply = wire.exchange(b"POST / HTTP/1.1\r\n", b"")
    assert (reply.status, reply.headers["retry-after"]) == (429, "7")


def test_nobody_there_is_an_error() -> None:
    with pytest.raises(ConnectionRefusedError):
        HttpConnection(Origin(False, "127.0.0.1", free_port()), None, connect_seconds=5, answer_seconds=5).exchange(
            b"", b""
        )


def test_the_head_names_the_host_and_the_given_headers_come_before_our_own() -> None:
    lines = head("POST", "https://u:p@Example.com:443/a%20b?c=d#e", {"X": "1", "user-agent": "me"}).split(b"\r\n")
    assert lines[:2] == [b"POST /a%20b?c=d HTTP/1.1", b"Host: example.com"]
    assert lines[2:] == [b"Accept-Encoding: identity", b"X: 1", b"user-agent: me", b""]
    assert head("PUT", "http://[::1]:8080", {}).split(b"\r\n")[:2] == [b"PUT / HTTP/1.1", b"Host: [::1]:8080"]
    assert b"\r\nUser-Agent: tidemill/" in head("PUT", "http://h", {})
    assert head("PUT", "http://h", {"Host": "other"}).count(b"ost: ") == 1


@pytest.mark.parametrize("url", ["ftp://h/", "http:///x", "/x", "http://h:port/"])
def test_a_url_that_leads_nowhere_has_no_origin(url: str) -> None:
    with pytest.raises(ValueError, match=r"no host|Port"):
        Origin.of(url)


BODIES = [
    ("of a known length", (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe", b"llo"), 1),
    ("in chunks", (CHUNKED, b"3\r\nhel\r\n", b"2;a=b\r\nlo\r", b"\n0\r\n\r\n"), 1),
    ("longer than one would discard", (b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n", b"x" * 200_000), 1),
    ("before the connection ends", (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",), 2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "answer", "connections"), BODIES, ids=[name for name, *_ in BODIES])
def test_the_body_of_an_answer_is_fetched_whole(
    server: Scripted, wire: HttpConnection, name: str, answer: tuple[bytes, ...], connections: int
) -> None:
    server.answers = [answer, (OK,)]
    reply, content = wire.fetch(b"GET / HTTP/1.1\r\n")
    assert (reply.status, content) == (200, b"x" * 200_000 if "longer" in name else b"hello")
    assert wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status == 200
    assert server.connections == connections


def test_a_body_without_a_length_ends_with_the_connection(server: Scripted, wire: HttpConnection) -> None:
    server.impatient = True
    server.answers = [(b"HTTP/1.1 200 OK\r\n\r\nuntil ", b"it ends")]
    assert wire.fetch(b"GET / HTTP/1.1\r\n")[1] == b"until it ends"


def test_a_body_that_ends_too_early_is_an_error(server: Scripted, wire: HttpConnection) -> None:
    server.impatient = True
    server.answers = [(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nnot fifty",)]
    with pytest.raises(ConnectionResetError):
        wire.fetch(b"GET / HTTP/1.1\r\n")


def test_a_server_that_is_asked_first_gets_the_body_after_its_consent(server: Scripted, wire: HttpConnection) -> None:
    server.before_the_body = [b"HTTP/1.1 103 Hints\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"]
    server.answers = [(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone",), (OK,)]
    reply, content = wire.fetch(b"PUT / HTTP/1.1\r\n", b"the body", expect=True)
    assert (reply.status, content) == (200, b"done")
    assert server.requests[0].endswith(b"\r\n\r\nthe body")
    assert wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status == 200
    assert server.connections == 1


def test_a_redirect_in_the_place_of_a_consent_costs_no_body(server: Scripted, wire: HttpConnection) -> None:
    """And the connection is not used again: the server may take what comes next for the body that was announced."""
    server.before_the_body = [b"HTTP/1.1 307 Elsewhere\r\nLocation: http://there/\r\nContent-Length: 0\r\n\r\n"]
    server.answers = [(OK,)]
    reply, _ = wire.fetch(b"PUT / HTTP/1.1\r\n", b"the body", expect=True)
    assert (reply.status, reply.headers["location"]) == (307, "http://there/")
    assert wire.exchange(b"POST / HTTP/1.1\r\n", b"x").status == 200
    eventually(lambda: len(server.requests) == 2)  # the first is noted when its connection is given up
    assert not any(b"the body" in request for request in server.requests)
    assert server.connections == 2


def test_nobody_speaks_http_in_a_way_of_his_own() -> None:
    """Sinks and what they share take `net/http.py`. Clients of our own servers are not on the way of events."""
    package = Path(tidemill.__file__).parent
    other = re.compile(r"^ *(import|from) (http\.client|urllib\.request|urllib3|requests|httpx|aiohttp)\b", re.M)
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if other.search(path.read_text())}
    assert {path for path in found if not path.startswith("lab/")} == {"api/client.py", "api/federated_metrics.py"}
    for sink in ("http", "starrocks"):
        assert "from tidemill.net.http import" in (package / "sinks" / sink / "client.py").read_text()
