"""How an operator's signals reach a process that runs pipelines."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tidemill.capture.signals import call_on_signal


@contextmanager
def listen() -> Iterator[tuple[threading.Event, threading.Event]]:
    """Two events: the first SIGINT or SIGTERM sets the first one, the next sets the second. Used in the main thread;
    afterwards signals do what they did before."""
    first, second = threading.Event(), threading.Event()
    with call_on_signal(lambda: (second if first.is_set() else first).set()):
        yield first, second


@contextmanager
def call_on_hangup(call: Callable[[], object]) -> Iterator[None]:
    """Meanwhile `call` is called for each SIGHUP, in a thread of its own, one at a time. Used in the main thread."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)

    def hear(*_: object) -> None:
        with suppress(BlockingIOError):  # so many wait already that this one changes nothing
            os.write(mouth, b"h")

    def attend() -> None:
        with open(ear, "rb", buffering=0) as hangups:
            while hangups.read(4096):  # those that came meanwhile are one
                call()

    before = signal.signal(signal.SIGHUP, hear)
    threading.Thread(target=attend, daemon=True, name="hangups").start()
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(mouth)  # which ends the thread
