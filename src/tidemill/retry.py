"""How often and for how long a failed step is tried again: one policy for capture, stream, sinks and files.

`errors.is_retryable` says *whether* an error is worth another try, a `RetryPolicy` says *when*: waits that double up to
a limit, with jitter, so that many pipelines do not knock on a restarted server in step.

    for wait in policy.waits(): ...              the waits alone, for who only needs numbers
    tries = policy.begin(stop)                   a series of tries that its caller walks through
    policy.run(step, worth=..., stop=stop)       the usual walk: try, judge, wait, until it works
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Seconds. The wait before the second try is `first`; it doubles up to `most`. `jitter` is the share of a wait that
    chance may take away. No wait begins that would end later than `seconds` after the first try."""

    first: float = 0.2
    most: float = 15.0
    jitter: float = 0.3
    seconds: float = math.inf

    def waits(self) -> Iterator[float]:
        """The wait before each further try, without end: who counts time is `begin`."""
        return map(self.wait_after, itertools.count())

    def wait_after(self, waits: int) -> float:
        """The wait that follows so many others."""
        doubled = self.first * 2.0 ** min(waits, 60)
        return min(doubled, self.most) * random.uniform(1.0 - self.jitter, 1.0)

    def begin(self, stop: threading.Event | None = None) -> Retries:
        """A series of tries, whose first begins now. `stop` cuts its waits short."""
        return Retries(self, stop)

    def run(
        self, step: Callable[[], Result], *, worth: Callable[[Exception], bool], stop: threading.Event | None = None
    ) -> Result:
        """What `step` returns. Its error, when it is not `worth` another try, the time is over, or `stop` is set."""
        tries = self.begin(stop)
        while True:
            try:
                return step()
            except Exception as error:
                if not worth(error) or not tries.pause():
                    raise


class Retries:
    """One series of tries. `taken` counts its waits, `wait` is the next; another thread may `reset` it."""

    def __init__(self, policy: RetryPolicy, stop: threading.Event | None = None) -> None:
        self._policy = policy
        self._stop = stop or threading.Event()
        self.reset()

    def reset(self) -> None:
        """It worked: the next failure begins a new series."""
        self.taken = 0
        self.wait = self._policy.wait_after(0)
        self._give_up = time.monotonic() + self._policy.seconds

    def over(self, asked: float | None = None) -> bool:
        """Somebody wants us to stop, or the time will be up before the next try. `asked` is the wait that the other
        side wants, in place of ours."""
        return self._stop.is_set() or time.monotonic() + (self.wait if asked is None else asked) > self._give_up

    def pause(self, asked: float | None = None) -> bool:
        """Waits. False if there is to be no further try: `over` before the wait, or stopped in it."""
        return not self.over(asked) and not self._stop.wait(self.take(asked))

    def take(self, asked: float | None = None) -> float:
        """The wait before the next try, for who does not wait here but looks at the clock."""
        wait = self.wait if asked is None else asked
        self.taken += 1
        self.wait = self._policy.wait_after(self.taken)
        return wait
