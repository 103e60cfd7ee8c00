"""What a running pipeline looks like from outside; `run` shows it, programs read it."""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass, field

from tidemill.errors import ErrorData
from tidemill.service.snapshot.status import TableStatus


class State(enum.StrEnum):
    CREATED = "created"
    RUNNING = "running"
    FAILING = "failing"  # capture failed for good; what it captured before is still delivered
    STOPPING = "stopping"
    PAUSED = "paused"  # nothing is delivered; its position and its state directory are kept; it goes on when resumed
    STOPPED = "stopped"
    FAILED = "failed"


WAITING = "waiting_for_approval"
"""The stage of a pipeline that runs and whose flow stands at a schema change until an operator decides. Who looks from
outside (API, gRPC, `pipelines ls`) sees it as its state, and so does its record. A pipeline that waits is stopped,
paused and drained as any that runs."""

DRAINING = "draining"
"""Of one that is stopping, and delivers what was captured before: shown and recorded as its state."""


class SinkState(enum.StrEnum):
    OK = "ok"
    FAILING = "failing"  # does not take its batch now; it is tried again
    FAILED = "failed"  # given up until the pipeline is started again, which goes on without it


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """`offset` is the sink's position: it has every event before it, and `lag_events` wait for it in the log.

    `waited_for` says whether the pipeline's checkpoint counts on this sink. `dead_letters` went to the dead letters
    in this run; `lost` events are gone for it, because it lagged for longer than the log is kept.
    """

    id: str
    state: SinkState = SinkState.OK
    waited_for: bool = True
    events: int = 0
    offset: int = 0
    lag_events: int = 0
    dead_letters: int = 0
    lost: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class QuarantinedTable:
    """`events` of it wait in the log since `offset`, where schema change number `change` begins. `decided`: capture is
    appending them again, for the sinks."""

    table: str
    change: int
    offset: int
    since: str
    events: int
    bytes: int
    decided: bool


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """Lag in three measures: `lag_bytes` of the source's own log, `lag_events` captured but not delivered as the commit
    policy asks, and `lag_seconds` since the commit of the oldest change that waits in the log (0 when none does).
    `log_bytes` of the change log hold what waits: at `log.max_bytes` capture waits, too. `position` is delivered, as
    the commit policy asks, and `captured` is how far the log is.
    `began` is the source's position at which this run began to capture, or after which it `resumed`.
    `dead_letters_dropped` dead letters had to go for newer ones in this run. `notices` need somebody's eyes although
    everything runs: {code, subject, what, fix}.
    `tables` are those of the newest snapshot, `quarantined` those whose rows wait at a schema change. `lanes_stand`:
    what delivers to the sinks has started; before, events only gather in the log. `caught_up`, of a run that ends then
    (`run --once`): what the source had at the start is captured, snapshots included. `drains`: it is stopping, and what
    was captured is still delivered."""

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
    captured: str = ""
    log_bytes: int = 0
    began: str = ""
    resumed: bool = False
    capture_restarts: int = 0
    dead_letters_dropped: int = 0
    sinks: tuple[SinkStatus, ...] = ()
    error: ErrorData = field(default_factory=ErrorData)
    notices: tuple[dict[str, str], ...] = ()
    tables: tuple[TableStatus, ...] = ()
    quarantined: tuple[QuarantinedTable, ...] = ()
    lanes_stand: bool = False
    caught_up: bool = False
    drains: bool = False

    @property
    def shown_state(self) -> str:
        """The state for who asks what it does now, and for its record: one that runs and waits for an operator says so,
        and one that delivers the rest before it stops."""
        if self.state is State.STOPPING and self.drains:
            return DRAINING
        return WAITING if self.state is State.RUNNING and self.stage == WAITING else str(self.state)


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
        seen = list(self._seen)  # in one go: batches add to it from other threads
        return sum(events for _, events in seen) / max(now - seen[0][0], 1.0)
