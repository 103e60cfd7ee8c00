"""A signal ends a process whatever its main thread is about at that moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

# As whoever waits for an event does for a moment, at the beginning and at the end of each wait.
_HOLDING = """
import os, signal, threading, time
from tidemill.capture.signals import call_on_signal

stop = threading.Event()
call_on_signal(stop.set)
with stop._cond:
    os.kill(os.getpid(), signal.{name})
    time.sleep(0.1)
assert stop.wait(30)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_comes_while_the_lock_of_its_event_is_held_is_heard(name: str) -> None:
    ended = subprocess.run([sys.executable, "-c", _HOLDING.format(name=name)], timeout=60, check=False)
    assert ended.returncode == 0
