"""A connection of the REST API that does nothing is closed: one that sends no request, or does not read its answer.

uvicorn counts connections, and refuses more than so many. Without these limits whoever reaches the port, with no token
at all, opens them, sends nothing, and keeps everybody else out. Where all are taken, the one that has been silent for
longest makes room for a new one: who asks at once is answered, however many others open connections and wait.

With TLS uvicorn hears of a connection only after its handshake. Those before it are counted where they are accepted.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 20.0
"""How long the lines before a request's body may take, from the connection's begin or from the last answer."""
STALLED_SECONDS = 60.0
"""How long an answer may wait for who asked to read some of it."""


BACKLOG = 128
"""Connections that are accepted in one go: far fewer than `_MOST_HANDSHAKES`, so that a handshake gets its turns."""
_MOST_HANDSHAKES = 512


class ListeningSocket(socket.socket):
    """Knows the connections that uvicorn does not know yet. Each costs a third of a megabyte with TLS, and no token: at
    the most that there may be, the oldest one ends."""

    def __init__(self, listening: socket.socket) -> None:
        """Takes `listening` over."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._begun: dict[int, socket.socket] = {}  # by descriptor, oldest first; only the thread that accepts

    def accept(self) -> tuple[socket.socket, Any]:
        made, address = super().accept()
        self.forget(made.fileno())  # of one that was closed
        if len(self._begun) >= _MOST_HANDSHAKES:
            self._begun = {number: each for number, each in self._begun.items() if each.fileno() == number}
        if len(self._begun) >= _MOST_HANDSHAKES:
            oldest = self._begun.pop(next(iter(self._begun)))
            with suppress(OSError):  # it may be gone by now
                oldest.shutdown(socket.SHUT_RDWR)
        self._begun[made.fileno()] = made
        return made, address

    def forget(self, number: int) -> None:
        """Its handshake is over."""
        self._begun.pop(number, None)


def protocol_of(listening: ListeningSocket) -> type[ImpatientProtocol]:
    """For uvicorn, which makes protocols without any argument of ours."""
    return type("ListeningProtocol", (ImpatientProtocol,), {"listening": listening})


class ImpatientProtocol(H11Protocol):
    listening: ListeningSocket | None = None
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _silent_since: float | None = None  # no request, or one whose answer is not read; None while it is answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.listening is not None:
            self.listening.forget(transport.get_extra_info("socket").fileno())
        self._await_request()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_idle():
            _cancel(self._waiting)
            self._silent_since = None

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_idle():
            self._await_request()

    def pause_writing(self) -> None:
        super().pause_writing()
        _cancel(self._stalled)
        self._silent_since = self.loop.time()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)
        if not self._is_idle():
            self._silent_since = None

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._waiting)
        _cancel(self._stalled)
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    def _await_request(self) -> None:
        _cancel(self._waiting)
        self._silent_since = self.loop.time()
        # Not `close`, which waits until what was written is read.
        self._waiting = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        others = (each for each in self.connections if isinstance(each, ImpatientProtocol) and each is not self)
        silent = [(each._silent_since, id(each), each) for each in others if each._silent_since is not None]
        if silent:
            *_, oldest = min(silent)
            self.connections.discard(oldest)  # now: it hears of its end only after others have come
            oldest.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
