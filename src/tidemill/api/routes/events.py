"""What happens to pipelines, as it happens: server-sent events (text/event-stream).

    event: status    the new status, whenever it changes; the present one first
    event: batch     a batch that every sink of its group has, after its checkpoint
    event: error     what makes a pipeline fail, or go on without a sink
    event: dropped   how many events this client was too slow for

A stream ends with the server, and within seconds of its token's revocation.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any

import anyio.to_thread
import orjson
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse

from tidemill.api import problems
from tidemill.api.access import Control, Name, Viewer
from tidemill.errors import TidemillError, to_data
from tidemill.service.run.status import PipelineStatus
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.scope import Scope

router = APIRouter(tags=["events"])

MAX_STREAMS, MAX_STREAMS_OF_ONE = 64, 32
"""Of all callers, and of one token."""
_QUEUED = 1000
_LOOK_SECONDS = 1.0
CHECK_SECONDS = 10.0
"""How often the token of an open stream is looked at."""
_SSE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}},
    429: {"description": "Too many streams are open.", "content": {problems.MEDIA_TYPE: {}}},
}


@router.get("/events", summary="What happens to all pipelines", responses=_SSE)
async def stream_all(principal: Viewer, control: Control, request: Request) -> Any:
    return _stream(control, request, Mailbox.for_all(control, principal.scope))


@router.get("/status/stream", summary="How all pipelines do, whenever that changes", responses=_SSE)
async def stream_status(principal: Viewer, control: Control, request: Request) -> Any:
    """Only the events `status` and `dropped`."""
    return _stream(control, request, Mailbox.for_all(control, principal.scope, only="status"))


@router.get("/pipelines/{name}/events", summary="What happens to one pipeline", responses=_SSE)
async def stream_one(principal: Viewer, control: Control, request: Request, name: Name) -> Any:
    control.view(name)
    scope = principal.scope  # looked at again for each event: the name may be another tenant's by now
    return _stream(control, request, Mailbox(lambda pipeline: pipeline == name and control.covers(scope, name)))


def _stream(control: ControlPlane, request: Request, mailbox: Mailbox) -> Any:
    open_streams: Counter[str] = request.app.state.streams
    if open_streams.total() >= MAX_STREAMS or open_streams[request.state.principal.id] >= MAX_STREAMS_OF_ONE:
        return problems.problem(
            429, "too-many-streams", f"{MAX_STREAMS} streams of events are open, or {MAX_STREAMS_OF_ONE} of this token",
            fix="Close some, or ask for status.", headers={"Retry-After": "10"},
        )  # fmt: skip
    return StreamingResponse(_lines(control, request, mailbox), media_type="text/event-stream")


async def _lines(control: ControlPlane, request: Request, mailbox: Mailbox) -> AsyncIterator[bytes]:
    state, caller = request.app.state, request.state.principal.id
    state.streams[caller] += 1
    unsubscribe = mailbox.subscribe(control)
    try:
        for view in control.views():
            if mailbox.wants(view.name) and view.status is not None:
                yield _event("status", asdict(view.status))
        checked = asyncio.get_running_loop().time()
        while not control.stopping:
            found = await mailbox.next()
            if found is not None:
                yield found
            now = asyncio.get_running_loop().time()
            if now - checked >= CHECK_SECONDS:  # by the clock: a busy stream ends too
                if not await state.still_valid(request):
                    return
                checked = now
                yield b": still here\n\n"
    finally:
        state.streams[caller] -= 1
        state.streams += Counter()  # who has none any more is forgotten
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(unsubscribe)


class Mailbox:
    """Between the subscriber's thread and the event loop. A slow client loses the oldest, and is told how many."""

    def __init__(self, wants: Callable[[str], bool], only: str | None = None) -> None:
        """`wants`: events of which pipelines; `only` of which kind. Made in the event loop."""
        self.wants, self._only = wants, only
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED)
        self._dropped = 0

    @classmethod
    def for_all(cls, control: ControlPlane, scope: Scope, only: str | None = None) -> Mailbox:
        """Of every pipeline that the scope covers when something happens to it."""
        return cls(lambda pipeline: control.covers(scope, pipeline), only)

    def subscribe(self, control: ControlPlane) -> Callable[[], None]:
        def status(new: PipelineStatus) -> None:
            self._post(new.name, "status", asdict(new))

        def batch(pipeline: str, report: Any) -> None:
            self._post(pipeline, "batch", {
                "pipeline": pipeline, "start": report.start, "end": report.end, "position": str(report.position),
                "seconds": report.seconds, "group": report.group,
                "sinks": {each.sink: each.events for each in report.receipts},
            })  # fmt: skip

        def error(pipeline: str, raised: TidemillError) -> None:
            self._post(pipeline, "error", {"pipeline": pipeline, **to_data(raised)})

        return control.runtime.subscribe(on_status=status, on_batch=batch, on_error=error)

    async def next(self) -> bytes | None:
        """None if nothing happened for a while."""
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            return _event("dropped", {"events": dropped})
        try:
            return await asyncio.wait_for(self._queue.get(), _LOOK_SECONDS)
        except TimeoutError:
            return None

    def _post(self, pipeline: str, kind: str, data: dict[str, Any]) -> None:
        if self._only in (None, kind) and self.wants(pipeline):
            self._loop.call_soon_threadsafe(self._put, _event(kind, data))

    def _put(self, event: bytes) -> None:
        if self._queue.full():
            self._queue.get_nowait()
            self._dropped += 1
        self._queue.put_nowait(event)


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return f"event: {kind}\ndata: {orjson.dumps(data, default=str).decode()}\n\n".encode()
