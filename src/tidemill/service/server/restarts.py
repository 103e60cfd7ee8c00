"""Starts failed pipelines of a server again, where another try may mend what failed: with waits that double."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from tidemill.errors import AlreadyRunning, LeaseHeld, LeaseLost, SparkLost, TidemillError, is_retryable
from tidemill.retry import Retries, RetryPolicy
from tidemill.service.server.repeated import RepeatedTask
from tidemill.telemetry import events

POLICY = RetryPolicy(first=5.0, most=300.0)
_STEADY_SECONDS = 600.0  # of a run, after which the next failure begins a new series
_TICK_SECONDS = 0.25
_LEASE_SECONDS = 0.5  # between looks at a lease that another server has


def may_mend(error: TidemillError) -> bool:
    """Beyond what is retried inside a run: a lost JVM is replaced by the next start, another process may end, and a
    lease may be free again."""
    return is_retryable(error) or isinstance(error, SparkLost | AlreadyRunning | LeaseLost)


class Restarts:
    """One thread for all pipelines. `failed` yields those that are wanted and failed; `start` starts one, with what
    made it fail and the number of the try, and raises nothing."""

    def __init__(
        self,
        failed: Callable[[], Iterable[tuple[str, TidemillError]]],
        start: Callable[[str, TidemillError, int], None],
        *,
        policy: RetryPolicy = POLICY,
    ) -> None:
        self._failed, self._start, self._policy = failed, start, policy
        self._series: dict[str, Retries] = {}
        self._due: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._task = RepeatedTask(self._look, seconds=_TICK_SECONDS, name="restarts")
        self.begin, self.close = self._task.begin, self._task.close

    def forget(self, name: str) -> None:
        """An operator has taken it in hand: the next failure begins a new series."""
        self._series.pop(name, None)
        self._due.pop(name, None)

    def _look(self) -> None:
        for name, error in list(self._failed()):
            if not self._task.stopping:
                self._look_at(name, error)

    def _look_at(self, name: str, error: TidemillError) -> None:
        if not may_mend(error):
            return
        now = time.monotonic()
        if name not in self._due and isinstance(error, LeaseHeld | LeaseLost):
            self._due[name] = now + _LEASE_SECONDS
            return
        if name not in self._due:
            if now - self._started.get(name, now) > _STEADY_SECONDS:
                self._series.pop(name, None)
            series = self._series.setdefault(name, self._policy.begin())
            # Another process that is just ending must not cost minutes.
            wait = self._policy.first if isinstance(error, AlreadyRunning) else series.take()
            self._due[name] = now + wait
            events.warn("pipeline.restart_planned", pipeline=name, seconds=round(wait, 1), code=error.code)
            return
        if now < self._due[name]:
            return
        del self._due[name]
        self._started[name] = now
        self._start(name, error, self._series[name].taken if name in self._series else 1)
