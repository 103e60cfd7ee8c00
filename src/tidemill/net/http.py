"""HTTP/1.1 as a sender of ready bodies needs it: a kept connection, a request in one piece, the head of the answer.

A client library makes objects and parses a mail header for each request, which takes longer than sending a third of a
megabyte (docs/benchmarks.md), and sends a body although the server has not said `100 Continue` to it. TLS, names and
timeouts are the standard library's. The sinks http and starrocks and the schema registry's client decide what an answer
means, and where a redirect may lead.
"""

from __future__ import annotations

import functools
import re
import select
import socket
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from tidemill import __version__

_STATUS = re.compile(r"HTTP/1\.(\d) +(\d\d\d)(?!\d)", re.ASCII)
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")  # some servers leave out the carriage return (RFC 9112, 2.2)
_LONGEST_HEAD = 65_536
_DISCARDED = 65_536  # of an answer's body is read, so that the connection can be used again
_DEFAULTS = {"Accept-Encoding": "identity", "User-Agent": f"tidemill/{__version__}"}


class Garbled(Exception):
    """What came back is no answer of HTTP/1."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whom a connection is to."""

    secure: bool
    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Self:
        """`ValueError` if the URL has none."""
        split = urlsplit(url)
        if split.scheme not in ("http", "https") or not split.hostname:
            raise ValueError("neither http nor https, or no host")
        secure = split.scheme == "https"
        return cls(secure, split.hostname, split.port or (443 if secure else 80))

    def __str__(self) -> str:
        """As the header Host has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reply:
    """`headers` by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    lasting: bool  # whether the connection stays


def head(method: str, url: str, headers: Mapping[str, str]) -> bytes:
    """A request's first lines; the caller adds those that differ between requests, and `exchange` ends them."""
    split = urlsplit(url)
    given = {name.lower() for name in headers}
    lines = [f"{method} {split.path or '/'}{'?' + split.query if split.query else ''} HTTP/1.1"]
    lines += [] if "host" in given else [f"Host: {Origin.of(url)}"]
    lines += [f"{name}: {value}" for name, value in _DEFAULTS.items() if name.lower() not in given]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")


class HttpConnection:
    """A connection that is made when it is needed, and again when the receiver has closed it. For one thread.

    `tls` is for a secure origin.
    """

    def __init__(
        self, origin: Origin, tls: ssl.SSLContext | None, *, connect_seconds: float, answer_seconds: float
    ) -> None:
        self._origin = origin
        self._tls = tls
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._socket: socket.socket | None = None
        self._readable = select.poll()
        self._rest = b""  # read, but not yet used

    def exchange(self, head: bytes, body: bytes | memoryview) -> Reply:
        """`OSError` or `Garbled` if there is no answer; whether the request arrived is not known then."""
        return self._exchange(head, body)[0]

    def fetch(self, head: bytes, body: bytes | memoryview = b"", *, expect: bool = False) -> tuple[Reply, bytes]:
        """`exchange`, with the answer's own body. With `expect` the server is asked first whether it wants the
        request's body, and gets it only after `100 Continue` (RFC 9110, 10.1.1): a redirect comes instead of it."""
        return self._exchange(head, body, expect=expect, most=sys.maxsize)

    def _exchange(
        self, head: bytes, body: bytes | memoryview, *, expect: bool = False, most: int = _DISCARDED
    ) -> tuple[Reply, bytes]:
        connection = self._socket
        if connection is None or self._readable.poll(0):  # nothing is due: what can be read is the end
            connection = self._connect()
        try:
            lines = b"%sContent-Length: %d\r\n" % (head, len(body))
            refusal = self._ask(connection, lines) if expect else None
            if refusal is not None:
                reply = refusal
            else:
                try:
                    self._send(connection, b"" if expect else lines + b"\r\n", body)
                except (BrokenPipeError, ConnectionResetError):
                    return self._answer_before_the_end(connection), b""
                reply = self._answer(connection)
            content, lasting = self._body(connection, reply, most)
        except BaseException:
            self.close()
            raise
        if not lasting or refusal is not None:  # the server may still wait for a body that was announced
            self.close()
        return reply, content

    def close(self) -> None:
        if self._socket is not None:
            self._readable.unregister(self._socket)
            self._socket.close()
        self._socket = None
        self._rest = b""

    def _connect(self) -> socket.socket:
        self.close()
        connection = socket.create_connection((self._origin.host, self._origin.port), self._connect_seconds)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._origin.secure:
                assert self._tls is not None
                connection = self._tls.wrap_socket(connection, server_hostname=self._origin.host)
            connection.settimeout(self._answer_seconds)
        except BaseException:
            connection.close()
            raise
        self._readable.register(connection, select.POLLIN)
        self._socket = connection
        return connection

    def _send(self, connection: socket.socket, head: bytes, body: bytes | memoryview) -> None:
        if self._origin.secure:
            connection.sendall(head)
            connection.sendall(body)
            return
        sent = connection.sendmsg((head, body))  # both in one call: a small request is one packet
        if sent < len(head):
            connection.sendall(head[sent:])
            sent = len(head)
        if sent < len(head) + len(body):
            connection.sendall(memoryview(body)[sent - len(head) :])

    def _answer_before_the_end(self, connection: socket.socket) -> Reply:
        """A receiver may say no, as with 413, and hang up before it has read all."""
        try:
            return self._answer(connection)
        finally:
            self.close()

    def _ask(self, connection: socket.socket, lines: bytes) -> Reply | None:
        """None if the server wants the body, else its answer."""
        connection.sendall(b"%sExpect: 100-continue\r\n\r\n" % lines)
        reply = self._answer(connection, or_status=100)
        return None if reply.status == 100 else reply

    def _answer(self, connection: socket.socket, or_status: int = 200) -> Reply:
        while True:
            data = self._rest
            while (end := _BLANK_LINE.search(data)) is None:
                if len(data) > _LONGEST_HEAD:
                    raise Garbled("the head of the answer does not end")
                data += _more(connection)
            self._rest = data[end.end() :]
            reply = _parse(data[: end.start()])
            if reply.status >= 200 or reply.status == or_status:  # 1xx come before the answer
                return reply

    def _body(self, connection: socket.socket, reply: Reply, most: int) -> tuple[bytes, bool]:
        """The rest of the answer, and whether the connection can be used again: not if the rest is longer than `most`,
        or ends with the connection, or if there is more than anybody asked for."""
        keep = most > _DISCARDED
        if reply.status in (204, 304):
            return b"", reply.lasting and not self._rest
        if not reply.lasting and not keep:
            return b"", False
        if (coding := reply.headers.get("transfer-encoding")) is not None:
            if coding.lower() != "chunked":
                return b"", False
            content = self._chunks(connection, most)
            return content or b"", content is not None and reply.lasting and not self._rest
        length = reply.headers.get("content-length", "")
        if length.isascii() and length.isdecimal() and int(length) <= most:
            return self._take(connection, int(length)), reply.lasting and not self._rest
        return self._to_the_end(connection) if keep and not length else b"", False

    def _chunks(self, connection: socket.socket, most: int) -> bytes | None:
        """RFC 9112, 7.1. None if they are longer than `most`."""
        pieces: list[bytes] = []
        while True:
            text = self._line(connection).partition(b";")[0].strip()
            if not text.isalnum():
                raise Garbled("a chunk of the answer has no size")
            try:
                size = int(text, 16)
            except ValueError as error:
                raise Garbled("a chunk of the answer has no size") from error
            if size == 0:
                while self._line(connection):
                    pass
                return b"".join(pieces)
            most -= size
            if most < 0:
                return None
            pieces.append(self._take(connection, size))
            self._line(connection)

    def _line(self, connection: socket.socket) -> bytes:
        while (end := self._rest.find(b"\n")) < 0:
            if len(self._rest) > _LONGEST_HEAD:
                raise Garbled("a line of the answer does not end")
            self._rest += _more(connection)
        line, self._rest = self._rest[:end], self._rest[end + 1 :]
        return line.rstrip(b"\r")

    def _take(self, connection: socket.socket, size: int) -> bytes:
        pieces: list[bytes] = []
        while len(self._rest) < size:
            pieces.append(self._rest)
            size -= len(self._rest)
            self._rest = _more(connection)
        pieces.append(self._rest[:size])
        self._rest = self._rest[size:]
        return b"".join(pieces)

    def _to_the_end(self, connection: socket.socket) -> bytes:
        pieces, self._rest = [self._rest], b""
        while data := connection.recv(65_536):
            pieces.append(data)
        return b"".join(pieces)


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(8192)
    if not data:
        raise ConnectionResetError("the receiver closed the connection before it had answered")
    return data


@functools.lru_cache(maxsize=16)  # a receiver's answers differ by the second, at most
def _parse(head: bytes) -> Reply:
    first, *lines = head.decode("latin-1").split("\n")
    status = _STATUS.match(first)
    if status is None:
        raise Garbled("the answer does not begin with a status of HTTP/1")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    lasting = "keep-alive" in connection if status[1] == "0" else "close" not in connection
    return Reply(int(status[2]), headers, lasting)
