"""Keeps Python's collections of garbage short in a process with many pipelines.

All threads stand still while Python looks at every object that it has: 0.4 seconds where a server has two hundred
pipelines, often enough for one request in a hundred to meet it. What survived such a collection is left out of the
next ones for half an hour; objects that nobody refers to go at once as ever, only cycles wait.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LONG_SECONDS = 0.05
_WHOLE_SECONDS = 1800.0  # between collections that look at everything
_OLDEST = 2  # of Python's generations


class ShortCollections:
    """Hears of each collection, in whatever thread it happens."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        freeze: Callable[[], None] = gc.freeze,
        unfreeze: Callable[[], None] = gc.unfreeze,
    ) -> None:
        self._clock, self._freeze, self._unfreeze = clock, freeze, unfreeze
        self._began = 0.0
        self._whole_at = clock()

    def hear(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began = self._clock()
            return
        now = self._clock()
        if now - self._whole_at > _WHOLE_SECONDS:
            self._whole_at = now
            self._unfreeze()  # the next one looks at everything
        elif now - self._began > _LONG_SECONDS:
            self._freeze()


@contextmanager
def short_collections() -> Iterator[None]:
    """Meanwhile, in this process."""
    collections = ShortCollections()
    gc.callbacks.append(collections.hear)
    try:
        yield
    finally:
        gc.callbacks.remove(collections.hear)
        gc.unfreeze()
