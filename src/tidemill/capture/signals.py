"""Signals as calls from a thread of its own: for `tidemill run` and its capture processes.

A handler runs in the main thread, between any two of its steps. If it set the event that the main thread is just
beginning or ceasing to wait for, it would wait for the event's lock, which the main thread holds: for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

BOTH = (signal.SIGINT, signal.SIGTERM)


def call_on_signal(confirmed: Callable[[], None]) -> None:
    """From now on `confirmed` is called for each SIGINT and SIGTERM, one at a time, until the process ends. Called in
    the
    main thread, once."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    for number in BOTH:
        signal.signal(number, lambda *_: None)  # else the signal would do what it does by default
    signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(ear, confirmed), daemon=True, name="signals").start()


def _listen(ear: int, confirmed: Callable[[], None]) -> None:
    while heard := os.read(ear, 64):
        for number in heard:
            if number in BOTH:
                confirmed()
