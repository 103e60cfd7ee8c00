"""Signals as calls from a thread of its own: for `tidemill run` and its capture processes.

A handler runs in the main thread, between any two of its steps. If it set the event that the main thread is just
beginning or ceasing to wait for, it would wait for the event's lock, which the main thread holds: for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

BOTH = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def call_on_signal(confirmed: Callable[[], None]) -> Iterator[None]:
    """`confirmed` is called for each SIGINT and SIGTERM, one at a time. Afterwards signals do what they did before: a
    process that goes on, such as a run of tests, can be ended again. Used in the main thread."""
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    before = {number: signal.signal(number, lambda *_: None) for number in BOTH}  # else it would do its default
    woken = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(ear, confirmed), daemon=True, name="signals").start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(woken)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(mouth)  # which ends the thread


def _listen(ear: int, confirmed: Callable[[], None]) -> None:
    with open(ear, "rb", buffering=0) as heard:
        while numbers := heard.read(64):
            for number in numbers:
                if number in BOTH:
                    confirmed()
