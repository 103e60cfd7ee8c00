"""How an operator's signals reach a process that runs pipelines."""

from __future__ import annotations

import threading

from tidemill.capture.signals import call_on_signal


def listen() -> tuple[threading.Event, threading.Event]:
    """Two events: the first SIGINT or SIGTERM sets the first one, the next sets the second. Called in the main thread,
    once."""
    first, second = threading.Event(), threading.Event()
    call_on_signal(lambda: (second if first.is_set() else first).set())
    return first, second
