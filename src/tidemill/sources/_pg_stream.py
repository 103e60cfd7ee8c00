"""The replication stream as bytes: read in large gulps into one buffer, answered with status updates.

It knows frames only at the edges (the answer to START_REPLICATION, and how long a frame is that does not fit);
the decoder walks them. Manual 54.4, "Streaming Replication Protocol".
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import time
from dataclasses import dataclass

import numpy as np

from tidemill.errors import ConnectionLost, SourceError
from tidemill.sources._pg_errors import from_server

_TWO_THOUSAND = 946_684_800  # seconds from 1970 to 2000, where PostgreSQL's clock starts
_HEADER = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """How long bytes are gathered before they are handed on: `gather` seconds or `gulp` bytes. After a silence of
    `gather` the first bytes are handed on at once.

    While it gathers, the kernel wakes us only when `wake` bytes are there. Measured against sleeping 4 ms between
    reads, that takes a third of the CPU here and a third less in the WAL sender. `pause` is for sockets that do not
    know such a mark.
    """

    gather: float = 0.05
    wake: int = 1 << 20
    pause: float = 0.004
    gulp: int = 8 << 20
    buffer: int = 64 << 20


class Stream:
    """One connection in streaming mode. Not for several threads."""

    def __init__(self, sock: socket.socket, where: str, ahead: bytes = b"", pace: Pace | None = None) -> None:
        self._sock = sock
        self._where = where
        self._pace = pace or Pace()
        self._buffer = memoryview(np.empty(self._pace.buffer, np.uint8))  # type: ignore[arg-type]
        self._start, self._end = 0, len(ahead)
        self._buffer[: self._end] = ahead
        self._last_data = 0.0
        self._closed_by_server = False
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def begin(self, command: str, timeout: float) -> None:
        """Sends START_REPLICATION; returns when the server has switched to streaming."""
        text = command.encode() + b"\0"
        self._send(b"Q" + struct.pack(">I", len(text) + 4) + text)
        deadline = time.monotonic() + timeout
        while True:
            while (frame := self._first_frame()) is None:
                if time.monotonic() > deadline:
                    raise ConnectionLost("the server does not answer START_REPLICATION", where=self._where)
                if not self._receive(self._pace.gulp):
                    self._poll.poll(100)
            kind, body = frame
            self.consumed(_HEADER + len(body))
            if kind == "W":  # CopyBothResponse
                return
            server_message(kind, body, self._where)

    def read(self, wait: float) -> memoryview:
        """All bytes not yet consumed, with what has arrived; waits up to `wait` seconds for new ones.

        The view holds until the next `read`. It ends anywhere, also within a frame.
        """
        self._make_room()
        before = self._end
        if not self._receive(self._pace.gulp):
            self._poll.poll(int(wait * 1000))
            self._receive(self._pace.gulp)
        now = time.monotonic()
        if self._end > before:
            busy = now - self._last_data < self._pace.gather
            self._last_data = now
            if busy:
                self._gather(before, now + self._pace.gather)
        elif self._closed_by_server:
            raise ConnectionLost("the server closed the connection", where=self._where)
        return self._buffer[self._start : self._end]

    def consumed(self, count: int) -> None:
        """The first `count` bytes of the last view are done with."""
        self._start += count
        if self._start == self._end:
            self._start = self._end = 0

    def status(self, written: int, flushed: int, *, reply: bool = False) -> None:
        """StandbyStatusUpdate. `flushed` 0 says nothing about flushing; `reply` asks for a keepalive at once."""
        clock = int((time.time() - _TWO_THOUSAND) * 1_000_000)
        self._send(b"d" + struct.pack(">IcQQQqB", 38, b"r", written, flushed, flushed, clock, reply))

    def close(self) -> None:
        """Says goodbye, so that the server frees the slot now and not at its next write."""
        with contextlib.suppress(OSError, ConnectionLost):
            self._send(b"c" + struct.pack(">I", 4) + b"X" + struct.pack(">I", 4))
        self._sock.close()

    def _gather(self, before: int, deadline: float) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self._pace.wake)
        try:
            while self._end - before < self._pace.gulp and not self._closed_by_server:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._poll.poll(max(1, int(left * 1000)))
                count = self._receive(self._pace.gulp - (self._end - before))
                if count:
                    self._last_data = time.monotonic()
                if count < self._pace.wake:
                    time.sleep(max(0.0, min(self._pace.pause, deadline - time.monotonic())))
        finally:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def _receive(self, limit: int) -> int:
        """What is there now, without waiting."""
        begin = self._end
        limit = min(begin + limit, len(self._buffer))
        try:
            while self._end < limit:
                count = self._sock.recv_into(self._buffer[self._end : limit])
                if count == 0:
                    self._closed_by_server = True
                    break
                self._end += count
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            # What came before a reset may hold the server's reason: it is handed on first.
            self._closed_by_server = True
            if self._end == begin:
                raise ConnectionLost(f"the connection broke: {error}", where=self._where) from error
        return self._end - begin

    def _make_room(self) -> None:
        rest, size = self._end - self._start, len(self._buffer)
        if self._start and rest <= self._start:  # does not overlap, and never moves more than was consumed
            self._buffer[:rest] = self._buffer[self._start : self._end]
            self._start, self._end = 0, rest
        if rest < self._pace.gulp and size > self._pace.buffer:
            self._resize(self._pace.buffer)
        elif self._end + self._pace.gulp > size:
            # A single row may be up to 1 GB: the buffer grows for it, and shrinks when it is done.
            wanted = rest + self._pace.gulp
            if rest >= _HEADER:
                wanted = max(wanted, 1 + struct.unpack_from(">I", self._buffer, self._start + 1)[0] + self._pace.gulp)
            self._resize(max(size, wanted))

    def _resize(self, size: int) -> None:
        rest = self._end - self._start
        fresh = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        fresh[:rest] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = fresh, 0, rest

    def _first_frame(self) -> tuple[str, bytes] | None:
        have = self._buffer[self._start : self._end]
        if len(have) < _HEADER:
            return None
        size = 1 + struct.unpack_from(">I", have, 1)[0]
        return (chr(have[0]), bytes(have[_HEADER:size])) if len(have) >= size else None

    def _send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(10)
            try:
                self._sock.sendall(data)
            finally:
                self._sock.setblocking(False)
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}", where=self._where) from error


def server_message(kind: str, body: bytes, where: str) -> None:
    """A frame of the stream that is not CopyData: raises what it means, returns if it means nothing to us."""
    match kind:
        case "E":
            fields = _fields(body)
            raise from_server(fields.get("C", ""), fields.get("M", "the server reported an error"), where)
        case "N" | "S" | "A":  # notice, a parameter that changed, a notification
            return
        case "c" | "C" | "Z":  # CopyDone and the end of the command: the server is shutting down
            raise ConnectionLost("the server ended the stream", where=where)
        case _:
            raise SourceError(f'the server sent an unexpected frame of kind "{kind}"', where=where)


def _fields(body: bytes) -> dict[str, str]:
    """ErrorResponse and NoticeResponse: a letter and a text, each ended by a zero byte (manual 54.8)."""
    parts = (part.decode(errors="replace") for part in body.split(b"\0") if part)
    return {part[0]: part[1:] for part in parts}
