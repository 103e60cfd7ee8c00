"""How many requests a second one caller may make: a bucket of tokens for each, refilled as time goes by."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_CALLERS = 10_000  # that are remembered; who was forgotten begins with a full bucket


class RateLimit:
    """For the event loop's thread. `per_second` on the average, `burst` at once."""

    def __init__(
        self, per_second: float, burst: float | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second, self._burst, self._clock = per_second, burst or max(1.0, 2 * per_second), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> float:
        """0.0 if the request may pass; else after how many seconds the next one may."""
        now = self._clock()
        left, at = self._left.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        passes = left >= 1.0
        self._left[caller] = (left - 1.0 if passes else left, now)
        while len(self._left) > _CALLERS:
            self._left.popitem(last=False)
        return 0.0 if passes else (1.0 - left) / self._per_second
