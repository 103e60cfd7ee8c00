"""What happens to pipelines, as it happens: server-sent events (text/event-stream).

    event: status    the new status, whenever it changes; the present one first
    event: batch     a batch that every sink of its group has, after its checkpoint
    event: error     what makes a pipeline fail, or go on without a sink
    event: dropped   how many events this client was too slow for; null after a cut, if nobody knows

Each but the last has an `id`. A client that was cut off sends the last one as `Last-Event-ID`, as an EventSource of a
browser does by itself, and gets what it missed instead of the present status. Where that is not kept any more, or
another server answers, `dropped` says so, and it begins anew. A stream ends with the server, and within seconds of its
token's revocation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import asdict
from typing import Any

import orjson
from fastapi import APIRouter, Request

from tidemill.api import sse
from tidemill.api.access import Control, Name, Viewer
from tidemill.api.event_journal import EventJournal, JournalEvent
from tidemill.api.sse import LastEventId
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.scope import Scope

router = APIRouter(tags=["events"])

_QUEUED = 1000
LOOK_SECONDS = 1.0


@router.get("/events", summary="What happens to all pipelines", responses=sse.RESPONSES)
async def stream_all(principal: Viewer, control: Control, request: Request, last_event_id: LastEventId = None) -> Any:
    """The events `status`, `batch`, `error` and `dropped`, of the pipelines that the token is for."""
    return _stream(control, request, Mailbox(principal.scope), last_event_id)


@router.get("/status/stream", summary="How all pipelines do, whenever that changes", responses=sse.RESPONSES)
async def stream_status(
    principal: Viewer, control: Control, request: Request, last_event_id: LastEventId = None
) -> Any:
    """Only the events `status` and `dropped`."""
    return _stream(control, request, Mailbox(principal.scope, kind="status"), last_event_id)


@router.get("/pipelines/{name}/events", summary="What happens to one pipeline", responses=sse.RESPONSES)
async def stream_one(
    principal: Viewer, control: Control, request: Request, name: Name, last_event_id: LastEventId = None
) -> Any:
    """The events `status`, `batch`, `error` and `dropped` of this one."""
    control.view(name)
    return _stream(control, request, Mailbox(principal.scope, name), last_event_id)


def _stream(control: ControlPlane, request: Request, mailbox: Mailbox, after: str | None) -> Any:
    return sse.stream(request, _messages(control, request.app.state.journal, mailbox, after))


async def _messages(
    control: ControlPlane, journal: EventJournal, mailbox: Mailbox, after: str | None
) -> AsyncGenerator[bytes | None]:
    following = journal.follow(mailbox.post, after)
    try:
        if following.missed is None:
            if after is not None:
                yield sse.message("dropped", b'{"events":null}')
            for view in control.views():
                if view.status is not None and mailbox.wants(view.name, view.tenant, "status"):
                    data = orjson.dumps(asdict(view.status), default=str)
                    yield sse.message("status", data, journal.id_of(following.last))
        for missed in following.missed or ():
            if mailbox.wants(missed.pipeline, missed.tenant, missed.kind):
                yield sse.message(missed.kind, missed.data, journal.id_of(missed.number))
        while not control.stopping:
            if mailbox.dropped:
                dropped, mailbox.dropped = mailbox.dropped, 0
                yield sse.message("dropped", b'{"events":%d}' % dropped)
            found = await mailbox.next()
            yield sse.message(found.kind, found.data, journal.id_of(found.number)) if found is not None else None
    finally:
        following.end()


class Mailbox:
    """Between the journal's thread and the event loop. A slow client loses the oldest, and is told how many."""

    def __init__(self, scope: Scope, pipeline: str | None = None, kind: str | None = None) -> None:
        """What the scope covers; of one pipeline, of one kind of event. Made in the event loop."""
        self._scope, self._pipeline, self._kind = scope, pipeline, kind
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[JournalEvent] = asyncio.Queue(_QUEUED)
        self.dropped = 0

    def wants(self, pipeline: str, tenant: str | None, kind: str) -> bool:
        """Asked with whose the pipeline was when it happened: a name may become another tenant's."""
        wanted = self._kind in (None, kind) and self._pipeline in (None, pipeline)
        return wanted and self._scope.covers(pipeline, tenant)

    async def next(self) -> JournalEvent | None:
        """None if nothing happened for a while."""
        try:
            return await asyncio.wait_for(self._queue.get(), LOOK_SECONDS)
        except TimeoutError:
            return None

    def post(self, event: JournalEvent) -> None:
        if self.wants(event.pipeline, event.tenant, event.kind):
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: JournalEvent) -> None:
        if self._queue.full():
            self._queue.get_nowait()
            self.dropped += 1
        self._queue.put_nowait(event)
