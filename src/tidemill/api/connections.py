"""A connection of the REST API that does nothing is closed: one that sends no request, or does not read its answer.

uvicorn counts connections, and refuses more than so many. Without these limits whoever reaches the port, with no token
at all, opens them, sends nothing, and keeps everybody else out. Where all are taken, the one that has been silent for
longest makes room for a new one: who asks at once is answered, however many others open connections and wait.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 20.0
"""How long the lines before a request's body may take, from the connection's begin or from the last answer."""
STALLED_SECONDS = 60.0
"""How long an answer may wait for who asked to read some of it."""


class ImpatientProtocol(H11Protocol):
    _waiting: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _silent_since: float | None = None  # no request, or one whose answer is not read; None while it is answered

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
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
