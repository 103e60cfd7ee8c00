"""Server-sent events (text/event-stream): how many streams there may be, how long one lasts, what its lines are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import Header, Request
from fastapi.responses import StreamingResponse

from tidemill.api import problems

MAX_STREAMS, MAX_STREAMS_OF_ONE = 64, 32
"""Of all callers, and of one token."""
CHECK_SECONDS = 10.0
"""How often the token of an open stream is looked at."""
_RETRY_MS = 2000
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}
LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        max_length=100,
        examples=["9f86d081-41"],
        description="The id of the last event that the client had: those after it come first.",
    ),
]


def stream(request: Request, messages: AsyncGenerator[bytes | None]) -> Any:
    """`messages` ends with the server, and says None now and then where there is nothing: so that a token that was
    revoked is noticed, and the client hears that we are here."""
    open_streams: Counter[str] = request.app.state.streams
    if open_streams.total() >= MAX_STREAMS or open_streams[request.state.principal.id] >= MAX_STREAMS_OF_ONE:
        return problems.problem(
            429, "too-many-streams", f"{MAX_STREAMS} streams of events are open, or {MAX_STREAMS_OF_ONE} of this token",
            fix="Close some, or ask for status.", headers={"Retry-After": "10"},
        )  # fmt: skip
    return StreamingResponse(_while_valid(request, messages), media_type="text/event-stream")


async def _while_valid(request: Request, messages: AsyncGenerator[bytes | None]) -> AsyncIterator[bytes]:
    state, caller = request.app.state, request.state.principal.id
    state.streams[caller] += 1
    try:
        yield b"retry: %d\n\n" % _RETRY_MS
        checked = asyncio.get_running_loop().time()
        async for message in messages:
            if message is not None:
                yield message
            now = asyncio.get_running_loop().time()
            if now - checked >= CHECK_SECONDS:  # by the clock: a busy stream ends too
                if not await state.still_valid(request):
                    return
                checked = now
                yield b": still here\n\n"
    finally:
        state.streams[caller] -= 1
        state.streams += Counter()  # who has none any more is forgotten
        await messages.aclose()  # its own `finally` runs now


def message(kind: str, data: bytes, number: str = "") -> bytes:
    """`number` is its id: where a client that was cut off goes on after it."""
    named = f"id: {number}\n" if number else ""
    return f"{named}event: {kind}\ndata: ".encode() + data + b"\n\n"
