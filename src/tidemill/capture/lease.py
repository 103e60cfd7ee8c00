"""What the capture process hears from the one that started it: its pipeline, until when it may work on it, and of a
document on trial that it was accepted, of a pause that it goes on capturing, and of that pause's end.

Both processes read the same clock (`lease_clock`), so a deadline is enough. A capture process whose server is frozen
hears of no renewal, and ends itself before another server may take the pipeline over. It asks the clock also before
each append: a process that was frozen itself and wakes up writes nothing.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import struct
import threading
from dataclasses import dataclass

from tidemill.config.pipeline import Pipeline
from tidemill.contracts.lease import lease_clock
from tidemill.telemetry import events

_LENGTH = struct.Struct("<I")
_RENEWAL = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class CaptureTask:
    """`until` None: nobody else may take this pipeline over. `once`: say when the source's present end is reached. On
    `trial` it connects, and captures nothing before it hears that the document was accepted. `held`: the pipeline is
    paused, and what is captured gathers in the log. `takes_over`: the process before us was fenced off; what it left
    connected to the source is nobody's."""

    pipeline: Pipeline
    until: float | None = None
    once: bool = False
    trial: bool = False
    held: bool = False
    takes_over: bool = False

    def pack(self) -> bytes:
        """The first message."""
        task = pickle.dumps(self)
        return _LENGTH.pack(len(task)) + task


def pack_renewal(until: float) -> bytes:
    """Each further message; so short that a pipe takes it wholly or not at all."""
    return _RENEWAL.pack(until)


def pack_acceptance() -> bytes:
    """As long as a renewal, and none: of a document that was on trial."""
    return _RENEWAL.pack(math.nan)


def pack_hold(held: bool) -> bytes:
    """As long as a renewal, and none: a pause begins, or is over."""
    return _RENEWAL.pack(math.inf if held else -math.inf)


def read_task(file: int) -> CaptureTask:
    """Takes no byte more than the first message has."""
    (length,) = _LENGTH.unpack(_read(file, _LENGTH.size))
    task: CaptureTask = pickle.loads(_read(file, length))
    return task


class CaptureLease:
    def __init__(self, until: float | None, *, trial: bool = False, held: bool = False) -> None:
        self._until = until
        self.accepted, self.held = threading.Event(), threading.Event()
        if not trial:
            self.accepted.set()
        if held:
            self.held.set()

    def check(self) -> None:
        """Ends this process at once if it may not go on: killed at any time it loses nothing."""
        if self._until is not None and lease_clock() >= self._until:
            events.fail("capture.lease_expired", error="the lease was not renewed in time",
                        fix="Nothing is lost: who has the pipeline's lease starts capture again.")  # fmt: skip
            os.kill(os.getpid(), signal.SIGKILL)

    def follow(self, file: int, stop: threading.Event) -> None:
        """Hears of renewals until the other end is closed, which sets `stop`. For a thread of its own."""
        # The bare descriptor: a thread inside a buffered reader would abort the interpreter's exit.
        while True:
            wait = None if self._until is None else max(0.0, self._until - lease_clock())
            if not select.select([file], [], [], wait)[0]:
                self.check()
                continue
            message = os.read(file, _RENEWAL.size)
            if not message:
                break
            (said,) = _RENEWAL.unpack(message)
            if math.isnan(said):
                self.accepted.set()
            elif math.isinf(said):
                self.held.set() if said > 0 else self.held.clear()
            else:
                self._until = said
        stop.set()
        while self._until is not None:  # what is under way still has to end in time
            select.select([], [], [], max(0.0, self._until - lease_clock()))
            self.check()


def _read(file: int, size: int) -> bytes:
    read = bytearray()
    while len(read) < size:
        more = os.read(file, size - len(read))
        if not more:
            raise EOFError("the pipeline was not sent wholly")
        read += more
    return bytes(read)
