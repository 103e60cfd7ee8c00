"""How long a batch is tried again, and the pauses between: doubling, with jitter, cut short by a stop."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

_FIRST_PAUSE = 0.2


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. `in_task` a lane tries by itself; `overall` the driver sends failed lanes again before it gives up."""

    in_task: float = 10.0
    overall: float = 600.0
    longest_pause: float = 15.0


ENDLESS = Patience(in_task=0.0, overall=float("inf"), longest_pause=30.0)
"""For sinks the pipeline does not wait for: a task ends at the first error and leaves its core to others; the driver
tries again for as long as it takes."""


class Pauses:
    """Between the tries of one batch."""

    def __init__(self, patience: Patience, stopping: threading.Event) -> None:
        self.taken = 0
        self.next = _FIRST_PAUSE
        self._longest = patience.longest_pause
        self._give_up = time.monotonic() + patience.overall
        self._stopping = stopping

    @property
    def over(self) -> bool:
        """Somebody wants us to stop, or the time will be up before the next try."""
        return self._stopping.is_set() or time.monotonic() + self.next > self._give_up

    def take(self) -> None:
        self.taken += 1
        self._stopping.wait(self.next * random.uniform(0.7, 1.0))
        self.next = min(self.next * 2, self._longest)
