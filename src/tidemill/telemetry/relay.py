"""Events of a process whose log nobody reads: a Spark worker keeps them, and sends them home with its receipts.

Bounded in number and bytes; of what is beyond that, only the count comes home.
"""

from __future__ import annotations

import logging
from typing import Any

import orjson

from tidemill.telemetry import events
from tidemill.telemetry.context import current

MAX_EVENTS = 100
MAX_BYTES = 64 * 1024
_MAX_FIELD = 4096  # characters


class EventBuffer(logging.Handler):
    """Keeps events until `take`. The first ones stay: they say what began it."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._max_events, self._max_bytes = max_events, max_bytes
        self._reset()

    def install(self) -> None:
        """From now on the events of this process come here, and go nowhere else. May be called again."""
        events.LOGGER.handlers[:] = [self]
        events.LOGGER.setLevel(logging.INFO)
        events.LOGGER.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        packed = _pack(record)
        if len(self._kept) >= self._max_events or self._bytes + len(packed) > self._max_bytes:
            self._dropped += 1
            return
        self._kept.append(packed)
        self._bytes += len(packed)

    def take(self) -> bytes:
        """What came since the last time, packed for `replay`; empty for nothing."""
        self.acquire()  # threads of sinks emit
        try:
            kept, dropped = self._kept, self._dropped
            self._reset()
        finally:
            self.release()
        return b'{"dropped":%d,"events":[%s]}' % (dropped, b",".join(kept)) if kept or dropped else b""

    def _reset(self) -> None:
        self._kept: list[bytes] = []
        self._bytes = self._dropped = 0


def replay(packed: bytes) -> None:
    """Emits another process's events here, with their time and their context, and the trace that this thread is in."""
    said = orjson.loads(packed)
    trace = {name: value for name, value in current().items() if name == "trace_id"}
    for event in said["events"]:
        events.emit_again(event["event"], event["level"], event["time"], {**event["fields"], **trace})
    if said["dropped"]:
        events.warn("telemetry.events_dropped", stage="deliver", events=said["dropped"])


def _pack(record: logging.LogRecord) -> bytes:
    fields = {name: _short(value) for name, value in events.fields_of(record).items()}
    event = {"event": _short(record.getMessage()), "level": record.levelno, "time": record.created}
    return orjson.dumps({**event, "fields": fields})


def _short(value: Any) -> Any:
    """A number that JSON has, or text."""
    if isinstance(value, float | bool | None) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return str(value)[:_MAX_FIELD].encode(errors="replace").decode()  # what is no Unicode would not be JSON
