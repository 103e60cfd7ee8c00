"""An event whose waiters are woken one after the other: for the threads that look after pipelines at rest.

A wait with an end of its own asks for the interpreter when the end comes. Where hundreds of threads look after two
hundred pipelines, a process that had no CPU for a moment finds them all in line for it; each of them wakes up once in a
switch interval to ask again, a hundred thousand times a second, and whoever has the interpreter gets no CPU to go on:
the process stands still, for as long as a minute. So these wait without an end, and one thread wakes them, which must
have the interpreter itself before each (ADR 78).
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from _thread import LockType

_APART_SECONDS = 0.001  # between two that are due
_PER_SECOND = 200.0  # looks at rest, of all together


class WakingThread:
    """Wakes waiters when they are due. There while somebody waits; for any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards what is below
        self._due: list[tuple[float, int, LockType]] = []
        self._numbers = itertools.count()
        self._runs = False

    @property
    def waiting(self) -> int:
        return len(self._due)

    def wake_at(self, due: float, bell: LockType) -> None:
        """Releases `bell` then, unless somebody else has."""
        with self._changed:
            entry = (due, next(self._numbers), bell)
            heapq.heappush(self._due, entry)
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._wake, name="looks", daemon=True).start()
            elif self._due[0] is entry:
                self._changed.notify()

    def _wake(self) -> None:
        while True:
            with self._changed:
                while self._due and (left := self._due[0][0] - time.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._due:
                    self._runs = False
                    return
                bell = heapq.heappop(self._due)[2]
            if bell.locked():
                _release(bell)
                time.sleep(_APART_SECONDS)


class PacedEvent(threading.Event):
    """One thread at a time may be in `wait_turn`; all else is `threading.Event`."""

    def __init__(self) -> None:
        super().__init__()
        self._bell: LockType | None = None

    def set(self) -> None:
        super().set()
        self.wake()

    def wake(self) -> None:
        """Ends a `wait_turn` now."""
        if (bell := self._bell) is not None:
            _release(bell)

    def wait_turn(self, seconds: float) -> bool:
        """As `wait`, but it may end later than that where many are due, and sooner when somebody calls `wake`."""
        bell = threading.Lock()
        bell.acquire()
        self._bell = bell
        if not self.is_set():  # `set` finds the bell from here on
            _waking.wake_at(time.monotonic() + seconds, bell)
            bell.acquire()
        self._bell = None
        return self.is_set()


def rest_seconds(least: float) -> float:
    """How long one of all that wait may rest between two looks, so that those of all are no more than a server can
    afford."""
    return max(least, _waking.waiting / _PER_SECOND)


_waking = WakingThread()  # of the process, because the interpreter is


def _release(bell: LockType) -> None:
    try:
        bell.release()
    except RuntimeError:
        return  # somebody else was faster
