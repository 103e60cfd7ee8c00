"""What a running pipeline looks like from outside; `run` shows it, programs read it."""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass, field


class State(enum.StrEnum):
    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """`undelivered` events were given up, because the commit policy did not need this sink."""

    id: str
    events: int = 0
    undelivered: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Lag in three measures: `lag_bytes` of the source's own log, `lag_events` captured but not delivered, and
    `lag_seconds` since the commit of the newest delivered change while anything waits (0 when nothing does)."""

    name: str
    state: State
    stage: str = "init"
    events: int = 0
    events_per_second: float = 0.0
    lag_bytes: int | None = None
    lag_events: int = 0
    lag_seconds: float = 0.0
    batch_seconds: float = 0.0
    batches: int = 0
    position: str = ""
    capture_restarts: int = 0
    sinks: tuple[SinkStatus, ...] = ()
    error: dict[str, str] = field(default_factory=dict)


class Rate:
    """Events a second over the last few seconds."""

    def __init__(self, window: float = 5.0) -> None:
        self._window = window
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, events: int) -> None:
        self._seen.append((time.monotonic(), events))

    def per_second(self) -> float:
        now = time.monotonic()
        while self._seen and now - self._seen[0][0] > self._window:
            self._seen.popleft()
        if not self._seen:
            return 0.0
        return sum(events for _, events in self._seen) / max(now - self._seen[0][0], 1.0)
