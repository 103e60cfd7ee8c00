"""How an operator's signals reach a process that runs pipelines."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from tidemill.capture.signals import call_on_signal


def listen() -> tuple[threading.Event, threading.Event]:
    """Two events: the first SIGINT or SIGTERM sets the first one, the next sets the second. Called in the main thread,
    once."""
    first, second = threading.Event(), threading.Event()
    call_on_signal(lambda: (second if first.is_set() else first).set())
    return first, second


def call_on_hangup(call: Callable[[], None]) -> None:
    """From now on `call` is called for each SIGHUP, in a thread of its own, one at a time. Called in the main thread,
    once, after `listen`."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)

    def hear(*_: object) -> None:
        with suppress(BlockingIOError):  # so many wait already that this one changes nothing
            os.write(mouth, b"h")

    def attend() -> None:
        while os.read(ear, 4096):  # those that came meanwhile are one
            call()

    signal.signal(signal.SIGHUP, hear)
    threading.Thread(target=attend, daemon=True, name="hangups").start()
