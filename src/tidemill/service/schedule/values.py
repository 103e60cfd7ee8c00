"""A run of a scheduled pipeline, as its history shows it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from tidemill.errors import ErrorData


class RunState(enum.StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"  # by an operator, before all was delivered
    FAILED = "failed"


UNDER_WAY = frozenset({RunState.QUEUED, RunState.RUNNING})


@dataclass(frozen=True, slots=True)
class RunRequest:
    """`slot` is the time that the cron meant, in ISO 8601; empty where somebody asked for the run: `actor`."""

    pipeline: str
    slot: str
    actor: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """`attempts` counts starts, `events` those that all of them delivered."""

    events: int
    attempts: int
    stopped: bool = False


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """Times are ISO 8601 in UTC, empty where it has not come to that. `events` is known when the run has ended.
    `recoveries` counts servers that ended while they had the run."""

    id: str
    pipeline: str
    state: RunState
    slot: str
    actor: str
    queued: str
    started: str
    ended: str
    events: int | None = None
    attempts: int | None = None
    recoveries: int = 0
    error: ErrorData = field(default_factory=ErrorData)


class ServerEnds(BaseException):
    """Out of a run whose server ends: what is no `Exception` leaves it in the queue as running, and the next server
    recovers it."""


class RunFailed(Exception):
    """Out of a run that failed, for the queue to keep: `data` is the error as plain values."""

    def __init__(self, error: ErrorData, events: int, attempts: int) -> None:
        super().__init__(error.get("what", ""))
        self.error = error
        self.data = {"error": dict(error), "events": events, "attempts": attempts}
