"""Captured events, as `tidemill log cat` and `log tail` print them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Annotated, Any, Literal

import anyio
import anyio.to_thread
import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from tidemill.api import sse
from tidemill.api.access import Control, Name, Operator
from tidemill.api.sse import LastEventId
from tidemill.errors import TidemillError, to_data
from tidemill.service.change_log import captured_events
from tidemill.service.change_log.captured_events import EventFilter, EventTail

router = APIRouter(tags=["log"])

LOOK_SECONDS = 0.5
_AT_ONCE = 200
_READERS = anyio.CapacityLimiter(4)
"""Threads in which followers look into logs: those of other requests are not for them."""
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events as JSON, in order.",
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}},
    }
}
OnlyTable = Annotated[
    str | None, Query(max_length=500, description="Only this table; * and ? match.", examples=["public.*"])
]
OnlyOp = Annotated[
    Literal["insert", "update", "delete", "read", "truncate", "ddl", "message"] | None,
    Query(description="Only events of this kind.", examples=["delete"]),
]
_LAST = 2**63 - 1


@router.get("/pipelines/{name}/log", summary="Captured events", responses=_EVENTS)
def read_log(
    _: Operator,
    control: Control,
    name: Name,
    first: Annotated[
        int | None,
        Query(alias="from", ge=0, le=_LAST, description="First offset; else the last events.", examples=[1200]),
    ] = None,
    last: Annotated[
        int | None, Query(alias="to", ge=0, le=_LAST, description="Before this offset.", examples=[1300])
    ] = None,
    since: Annotated[
        str | None,
        Query(
            max_length=64, description="Instead of `from`: captured since this time.", examples=["2026-01-31T12:00:00Z"]
        ),
    ] = None,
    table: OnlyTable = None,
    op: OnlyOp = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 20,
) -> Response:
    """In order, with their values: the first of a range, or the last of the log that the filters leave. Safe while the
    pipeline runs."""
    pipeline, wanted = control.pipeline(name), EventFilter(table, op)
    uri, source = pipeline.log_uri, pipeline.source_id
    if since is not None:
        first = captured_events.events_since(uri, since, "since")
    if first is None and last is None:
        lines = [line for _, line in captured_events.recent_events(uri, source, wanted, limit)]
    else:
        lines = [*captured_events.print_events(uri, source, first or 0, last, wanted, limit)]
    return Response(f"[{','.join(lines)}]", media_type="application/json")


@router.get("/pipelines/{name}/log/stream", summary="Captured events, as they come", responses=sse.RESPONSES)
async def follow_log(
    principal: Operator, control: Control, request: Request, name: Name, table: OnlyTable = None, op: OnlyOp = None,
    last_event_id: LastEventId = None,
) -> Any:  # fmt: skip
    """Each is an event `change` with the event as JSON; its `id` is its offset. With `Last-Event-ID` those after that
    offset come first, else those captured from now on. `dropped` says how many were delivered and trimmed before they
    could be sent. Safe while the pipeline runs; a slow reader holds up nothing."""
    pipeline = control.pipeline(name)
    tail = await _read(EventTail, pipeline.log_uri, pipeline.source_id, EventFilter(table, op))
    if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) <= 18:
        tail.offset = int(last_event_id) + 1

    def is_over() -> bool:
        """The name may be another tenant's by now, or its document another one."""
        try:
            same = control.covers(principal.scope, name) and control.pipeline(name).log_uri == pipeline.log_uri
        except TidemillError:
            return True
        return control.stopping or not same

    return sse.stream(request, _messages(name, tail, is_over))


async def _messages(name: str, tail: EventTail, is_over: Callable[[], bool]) -> AsyncGenerator[bytes | None]:
    while not is_over():
        try:
            new = await _read(tail.read, _AT_ONCE, is_over)
        except TidemillError as error:  # the log is gone, with the pipeline or its volume
            yield sse.message("error", orjson.dumps({"pipeline": name, **to_data(error)}))
            return
        if is_over():
            return
        if new.lost:
            yield sse.message("dropped", b'{"events":%d}' % new.lost)
        for offset, line in new.lines:
            yield sse.message("change", line.encode(), str(offset))
        if not new.lines:
            yield None
            await asyncio.sleep(LOOK_SECONDS)


async def _read(call: Any, *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(call, *arguments), limiter=_READERS)
