"""How many epochs of a process begin at a time: each asks Spark for a job, and workers for memory and CPU.

Where all lanes of two hundred pipelines are lost at once, as with a machine's long pause, two hundred that began anew
together would lose each other again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LONGEST_SECONDS = 30.0  # whoever waited for so long begins beside the others
_LOOK_SECONDS = 0.5


class EpochTurns:
    """For any thread."""

    def __init__(self, at_once: int | None = None) -> None:
        self._turns = threading.Semaphore(at_once or max(4, 2 * (os.cpu_count() or 1)))

    @contextmanager
    def turn(self, stopping: Callable[[], bool], *, longest: float = _LONGEST_SECONDS) -> Iterator[Turn]:
        """Waits until few others begin, the run stops, or it took too long."""
        deadline = time.monotonic() + longest
        while not (taken := self._turns.acquire(timeout=min(_LOOK_SECONDS, longest))):
            if stopping() or time.monotonic() >= deadline:
                break
        turn = Turn(self._turns if taken else None)
        try:
            yield turn
        finally:
            turn.end()


class Turn:
    """Over once the lanes stand, or do not."""

    def __init__(self, turns: threading.Semaphore | None) -> None:
        self._turns, self._ending = turns, threading.Lock()

    def end(self) -> None:
        """May be called again."""
        with self._ending:
            turns, self._turns = self._turns, None
        if turns is not None:
            turns.release()


epoch_turns = EpochTurns()  # of the process: all its pipelines share a machine, and mostly a session
