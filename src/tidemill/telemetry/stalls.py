"""Notices when this process stood still: it got no CPU, was stopped, or one thread kept the interpreter from the rest.

Heartbeats, renewals of leases and answers of the API come late then, so an operator must be able to see it.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from tidemill.telemetry import events

STALL_SECONDS = 2.0
"""Late by less is a busy machine."""
_LOOK_SECONDS = 0.5


class StallWatch:
    """`begin`, then `close`. `note` gets the seconds of each stall."""

    def __init__(self, note: Callable[[float], None] = lambda seconds: None) -> None:
        self._note = note
        self._ended = threading.Event()
        self._collecting, self._collecting_since = 0.0, 0.0
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    def begin(self) -> None:
        gc.callbacks.append(self._collect)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        if self._collect in gc.callbacks:
            gc.callbacks.remove(self._collect)

    def _collect(self, phase: str, info: dict[str, Any]) -> None:
        """Of Python: other threads stand still while garbage is collected."""
        if phase == "start":
            self._collecting_since = time.monotonic()
        else:
            self._collecting += time.monotonic() - self._collecting_since

    def _run(self) -> None:
        slept_at, used, collected = time.monotonic(), time.process_time(), self._collecting
        while not self._ended.wait(_LOOK_SECONDS):
            now, cpu = time.monotonic(), time.process_time()
            late = now - slept_at - _LOOK_SECONDS
            if late >= STALL_SECONDS:
                self._note(late)
                events.warn(
                    "process.stalled", seconds=round(late, 1), cpu_seconds=round(cpu - used, 1),
                    collecting_seconds=round(self._collecting - collected, 1), threads=threading.active_count(),
                    load=round(os.getloadavg()[0], 1),
                )  # fmt: skip
            slept_at, used, collected = time.monotonic(), cpu, self._collecting
