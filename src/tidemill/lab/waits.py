"""What a long bench waits for: said while it lasts, and bounded by the clock and by the machine's memory.

A bench that would take the last memory of the machine ends before: what the kernel kills then may be somebody else's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import psutil

from tidemill.errors import EnvironmentProblem

_SAY_SECONDS = 10.0
_LEAST_FREE = 0.06  # of the machine's memory


class Waits:
    """`say` gets a line about what is waited for, every ten seconds."""

    def __init__(self, command: str, *, seconds: float, say: Callable[[str], None]) -> None:
        self._command, self._limit, self._say = command, seconds, say
        self._began = time.monotonic()

    def say(self, text: str) -> None:
        self._say(f"{time.monotonic() - self._began:6.0f} s  {text}")

    def until(
        self, condition: Callable[[], bool], wanted: str, *, check: Callable[[], None], pause: float = 0.02,
        progress: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        """`wanted` is a sentence that is true in the end. `check` raises where it cannot become true any more."""
        said = time.monotonic()
        while not condition():
            check()
            now = time.monotonic()
            if now - self._began > self._limit:
                raise self._stop(
                    f"after {self._limit:.0f} s it is not yet so that {wanted}", progress(),
                    "Give it longer with --limit, or a machine that has nothing else to do.",
                )  # fmt: skip
            memory = psutil.virtual_memory()
            if memory.available < _LEAST_FREE * memory.total:
                raise self._stop(
                    f"only {memory.available / 1e6:,.0f} MB of the machine's memory are free, before {wanted}",
                    progress(), "Give fewer --pipelines, or end what else uses memory.",
                )  # fmt: skip
            if now - said >= _SAY_SECONDS:
                said = now
                self.say(f"not yet: {wanted}{_in_brackets(progress())}, {memory.available / 1e9:.1f} GB free")
            time.sleep(pause)

    def _stop(self, what: str, progress: str, fix: str) -> EnvironmentProblem:
        return EnvironmentProblem(f"the bench stopped: {what}{_in_brackets(progress)}", where=self._command, fix=fix)


@contextmanager
def ending_on_signals(command: str) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the bench with an error, so that it ends everything that it started and shows what it
    has."""

    def end(number: int, frame: FrameType | None) -> None:
        raise EnvironmentProblem(f"the bench stopped: it got {signal.Signals(number).name}", where=command)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""
