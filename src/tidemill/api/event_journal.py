"""The last events of all pipelines, numbered, so that a client whose stream was cut goes on where it was.

It hears of pipelines from the first stream on: a server whose events nobody reads keeps none. Numbers are of this
process: after a restart, or at another server, a client begins anew and is told so.
"""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from tidemill.errors import TidemillError, to_data
from tidemill.service.run.status import PipelineStatus
from tidemill.service.server.control import ControlPlane

MAX_EVENTS, MAX_BYTES = 10_000, 8 << 20


@dataclass(frozen=True, slots=True)
class JournalEvent:
    """`tenant` is whose the pipeline was then: its name may be somebody else's by now. `data` is JSON."""

    number: int
    pipeline: str
    tenant: str | None
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Following:
    """`missed` are those since the event that the client had last; None if that is not known any more. What comes has
    numbers above `last`."""

    missed: list[JournalEvent] | None
    last: int
    end: Callable[[], None]


class EventJournal:
    """For any thread."""

    def __init__(self, control: ControlPlane) -> None:
        self._control, self._run = control, secrets.token_hex(4)
        self._guard = threading.Lock()
        self._kept: deque[JournalEvent] = deque()
        self._number = self._bytes = 0
        self._listeners: list[Callable[[JournalEvent], None]] = []
        self._listens = False

    def follow(self, listener: Callable[[JournalEvent], None], after: str | None) -> Following:
        """`after` is the id of the event that the client had last, None for a client that had none. Every later event
        is in `missed` or comes to the listener, which is called under a lock and must return at once."""
        with self._guard:
            if not self._listens:
                self._listens = True
                self._control.runtime.subscribe(
                    on_status=self._note_status, on_batch=self._note_batch, on_error=self._note_error
                )
            missed = self._since(after) if after is not None else None
            self._listeners = [*self._listeners, listener]
            return Following(missed, self._number, lambda: self._end(listener))

    def id_of(self, number: int) -> str:
        return f"{self._run}-{number}"

    def _since(self, after: str) -> list[JournalEvent] | None:
        run, _, text = after.rpartition("-")
        if run != self._run or not text.isdecimal() or len(text) > 18:
            return None
        first = self._kept[0].number if self._kept else self._number + 1
        if not first - 1 <= int(text) <= self._number:
            return None
        return [each for each in self._kept if each.number > int(text)]

    def _end(self, listener: Callable[[JournalEvent], None]) -> None:
        with self._guard:
            self._listeners = [each for each in self._listeners if each is not listener]

    def _note_status(self, status: PipelineStatus) -> None:
        self._note(status.name, "status", asdict(status))

    def _note_batch(self, pipeline: str, report: Any) -> None:
        self._note(pipeline, "batch", {
            "pipeline": pipeline, "start": report.start, "end": report.end, "position": str(report.position),
            "seconds": report.seconds, "group": report.group,
            "sinks": {each.sink: each.events for each in report.receipts},
        })  # fmt: skip

    def _note_error(self, pipeline: str, raised: TidemillError) -> None:
        self._note(pipeline, "error", {"pipeline": pipeline, **to_data(raised)})

    def _note(self, pipeline: str, kind: str, data: dict[str, Any]) -> None:
        content, tenant = orjson.dumps(data, default=str), self._control.tenant(pipeline)
        with self._guard:
            self._number += 1
            new = JournalEvent(self._number, pipeline, tenant, kind, content)
            self._kept.append(new)
            self._bytes += len(content)
            while len(self._kept) > MAX_EVENTS or self._bytes > MAX_BYTES:
                self._bytes -= len(self._kept.popleft().data)
            for listener in self._listeners:
                listener(new)
