"""A signal ends a process whatever its main thread is about at that moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tidemill.service.run.interrupts import call_on_hangup, listen

# As whoever waits for an event does for a moment, at the beginning and at the end of each wait.
_HOLDING = """
import os, signal, threading, time
from tidemill.capture.signals import call_on_signal

stop = threading.Event()
with call_on_signal(stop.set):
    with stop._cond:
        os.kill(os.getpid(), signal.{name})
        time.sleep(0.1)
    assert stop.wait(30)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_comes_while_the_lock_of_its_event_is_held_is_heard(name: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _HOLDING.format(name=name)], timeout=60, check=False)
    assert ended.returncode == 0


def test_afterwards_signals_do_what_they_did_before() -> None:
    """A command that ran in this process must not keep the next SIGTERM from ending it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    heard = threading.Event()
    with listen() as (stop, _), call_on_hangup(heard.set):
        assert [signal.getsignal(number) for number in numbers] != before
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.wait(60)
        assert heard.wait(60)
    assert [signal.getsignal(number) for number in numbers] == before
    assert signal.set_wakeup_fd(-1) == -1
