"""How long to wait before trying again: doubling, with jitter, up to a limit."""

from __future__ import annotations

import random


class Backoff:
    """Jitter keeps many pipelines from knocking on a restarted server in step."""

    def __init__(self, first: float = 0.2, limit: float = 15.0) -> None:
        self._first, self._limit = first, limit
        self._next = first

    def next(self) -> float:
        wait = self._next * random.uniform(0.7, 1.3)
        self._next = min(self._next * 2, self._limit)
        return wait

    def reset(self) -> None:
        self._next = self._first
