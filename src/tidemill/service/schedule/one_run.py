"""One run of a scheduled pipeline: starts it, delivers what is there, and stops it. May be repeated at any time: the
pipeline goes on where its checkpoint is."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from tidemill.errors import TidemillError, from_data, to_data
from tidemill.retry import RetryPolicy
from tidemill.service.cause import Cause
from tidemill.service.run.once import find_undelivered
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.runtime import Runtime
from tidemill.service.schedule.values import RunFailed, RunResult, ServerEnds
from tidemill.telemetry import events

LOOK_SECONDS = 1.0
"""Between two looks of `max_empty_reads`."""

_WATCH_SECONDS = 0.1


class OneRun:
    """`start` starts the pipeline to run once, and says whether it is still wanted; it may raise. `may_mend` says of an
    error whether to try again, as `policy` has it. `stopping` is set when the server ends."""

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        *,
        start: Callable[[], bool],
        may_mend: Callable[[TidemillError], bool],
        policy: RetryPolicy,
        stopping: threading.Event,
        cause: Cause,
        max_empty_reads: int = 0,
    ) -> None:
        self._runtime, self._name, self._start, self._may_mend = runtime, name, start, may_mend
        self._stopping, self._cause, self._max_empty_reads = stopping, cause, max_empty_reads
        self._tries = policy.begin(stopping)
        self._events = self._attempts = 0

    def execute(self) -> RunResult:
        """`RunFailed` with its error; `ServerEnds` where another server, or the next start, goes on with it."""
        while True:
            try:
                if not self._start():
                    return RunResult(self._events, self._attempts, stopped=True)
                self._attempts += 1
                self._deliver()
                return RunResult(self._events, self._attempts)
            except TidemillError as error:
                if self._stopping.is_set():
                    raise ServerEnds from error
                if self._may_mend(error) and not self._tries.over():
                    events.warn("schedule.run_retried", pipeline=self._name, code=error.code, error=error.what)
                    if self._tries.pause():
                        continue
                    raise ServerEnds from error
                raise RunFailed(to_data(error), self._events, self._attempts) from error

    def _deliver(self) -> None:
        try:
            self._watch()
            self._runtime.drain(self._name, seconds=math.inf, cause=self._cause)
        finally:
            delivered = self._runtime.status(self._name).events
            self._events += delivered
            if delivered:  # it got further: the next failure begins a new series of tries
                self._tries.reset()
        status = self._runtime.status(self._name)
        if self._stopping.is_set() and status.lag_events:
            raise ServerEnds
        self._check(status)
        for undelivered in find_undelivered([status]):
            raise undelivered

    def _watch(self) -> None:
        """Until the run may end, or somebody ended it."""
        captured, empty, looked = -1, 0, time.monotonic()
        while (status := self._runtime.status(self._name)).state in (State.RUNNING, State.FAILING):
            if self._stopping.is_set():
                raise ServerEnds
            if status.caught_up:
                if time.monotonic() - looked >= LOOK_SECONDS:
                    looked, before = time.monotonic(), captured
                    captured = status.events + status.lag_events
                    empty = empty + 1 if captured == before else 0
                if empty >= self._max_empty_reads:
                    break
            self._stopping.wait(_WATCH_SECONDS)
        self._check(status)

    def _check(self, status: PipelineStatus) -> None:
        if status.state is State.FAILED:
            raise self._runtime.error(self._name) or from_data(status.error)
