"""Reads a logged-in socket in large reads into one buffer. Every source that owns its stream's bytes uses it.

It knows frames only where one does not fit (`frame_size`); the decoder walks them.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tidemill.errors import ConnectionLost

# The rate is that of the last tenth of a second or so; a shorter wait than this is not worth a system call.
_RATE_SECONDS = 0.1
_SHORTEST = 0.002


@dataclass(frozen=True, slots=True)
class Pace:
    """How long bytes are gathered before they are handed on: at most `gather` seconds or `read_bytes` bytes. The wait
    follows the rate: all of `gather` where it brings `worth` bytes, a part of it where it brings a part, and nothing
    where that is hardly any, because then waiting costs latency and saves nothing.

    While it gathers, the kernel wakes us only when `wake` bytes are there. Measured against sleeping 4 ms between
    reads, that takes a third of the CPU here and a third less in the WAL sender. `pause` is for sockets that do not
    know such a mark. `window` is how much a server on this machine may send before we read, 0 as the kernel likes: one
    that sends row by row pays for each as long as the window is open, and for many at once when it is not (ADR 68).
    """

    gather: float = 0.05
    worth: int = 256 << 10
    wake: int = 1 << 20
    pause: float = 0.004
    read_bytes: int = 8 << 20
    buffer: int = 64 << 20
    window: int = 0


class BufferedReader:
    """One non-blocking socket and what came from it. Not for several threads.

    `frame_size` tells from the first bytes of a frame how long it is, 0 while that is not known.
    """

    def __init__(
        self,
        sock: socket.socket,
        where: str,
        frame_size: Callable[[memoryview], int],
        *,
        unread: bytes = b"",
        pace: Pace | None = None,
    ) -> None:
        self.pace = pace or Pace()
        self.last_data = 0.0  # when bytes last came, by the monotonic clock
        self.quiet = 0.0  # seconds without bytes while we listened: a log without room may keep us from it for long
        self._sock = sock
        self._where = where
        self._frame_size = frame_size
        self._buffer = memoryview(np.empty(self.pace.buffer, np.uint8))  # type: ignore[arg-type]
        self._start, self._end = 0, len(unread)
        self._buffer[: self._end] = unread
        self._closed_by_server = False
        self._rate, self._rated_at = 0.0, 0.0  # bytes a second lately, and up to when
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        if self.pace.window and _is_local(sock):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.pace.window)
        sock.setblocking(False)

    @property
    def pending(self) -> memoryview:
        """The bytes not yet consumed."""
        return self._buffer[self._start : self._end]

    def read(self, wait: float) -> memoryview:
        """All bytes not yet consumed, with what has arrived; waits up to `wait` seconds for new ones.

        The view holds until the next `read`. It ends anywhere, also within a frame.
        """
        self._make_room()
        before, began = self._end, time.monotonic()
        if not self._receive(self.pace.read_bytes):
            self._poll.poll(int(wait * 1000))
            self._receive(self.pace.read_bytes)
        now = time.monotonic()
        self.quiet = 0.0 if self._end > before else self.quiet + now - began
        if self._end > before:
            self.last_data = now
            wait = self._gathering_seconds()
            if wait >= _SHORTEST:
                self._gather(before, now + wait)
            self._note_rate(self._end - before)
        elif self._closed_by_server:
            raise ConnectionLost("the server closed the connection", where=self._where)
        return self.pending

    def more(self) -> None:
        """Waits a moment for bytes, without gathering."""
        if not self._receive(self.pace.read_bytes):
            self._poll.poll(100)

    def consumed(self, count: int) -> None:
        """The first `count` bytes of the last view are done with."""
        self._start += count
        if self._start == self._end:
            self._start = self._end = 0

    def send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(10)
            try:
                self._sock.sendall(data)
            finally:
                self._sock.setblocking(False)
        except OSError as error:
            raise ConnectionLost(f"the connection broke: {error}", where=self._where) from error

    def close(self) -> None:
        self._sock.close()

    def _gathering_seconds(self) -> float:
        """0 after a silence, and while little comes."""
        expected = self._rate * self.pace.gather
        silent = time.monotonic() - self._rated_at >= max(self.pace.gather, _RATE_SECONDS)
        return 0.0 if silent else self.pace.gather * min(1.0, expected / self.pace.worth)

    def _note_rate(self, count: int) -> None:
        now = time.monotonic()
        passed = max(now - self._rated_at, 0.001)
        self._rate += (count / passed - self._rate) * min(1.0, passed / _RATE_SECONDS)
        self._rated_at = now

    def _gather(self, before: int, deadline: float) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, self.pace.wake)
        try:
            while self._end - before < self.pace.read_bytes and not self._closed_by_server:
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                self._poll.poll(max(1, int(left * 1000)))
                count = self._receive(self.pace.read_bytes - (self._end - before))
                if count:
                    self.last_data = time.monotonic()
                if count < self.pace.wake:
                    time.sleep(max(0.0, min(self.pace.pause, deadline - time.monotonic())))
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
        if rest < self.pace.read_bytes and size > self.pace.buffer:
            self._resize(self.pace.buffer)
        elif self._end + self.pace.read_bytes > size:
            # A single row may be up to 1 GB: the buffer grows for it, and shrinks when it is done.
            wanted = max(rest, self._frame_size(self.pending)) + self.pace.read_bytes
            self._resize(max(size, wanted))

    def _resize(self, size: int) -> None:
        rest = self._end - self._start
        fresh = memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]
        fresh[:rest] = self._buffer[self._start : self._end]
        self._buffer, self._start, self._end = fresh, 0, rest


def _is_local(sock: socket.socket) -> bool:
    """Over TCP, from this machine to itself: nothing is under way for long enough to need a window."""
    return sock.family != socket.AF_UNIX and bool(sock.getpeername()[0] == sock.getsockname()[0])


def keep_alive(sock: socket.socket, dead_after: float) -> None:
    """A peer whose machine is gone is noticed within about `dead_after` seconds, also while nothing is sent."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # An unanswered segment shows a dead peer sooner than keepalives would; a server that is merely busy still answers
    # on this level, and is not mistaken for a dead one.
    for name, value in (("TCP_USER_TIMEOUT", int(dead_after * 1000)), ("TCP_KEEPIDLE", 10),
                        ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):  # fmt: skip
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
