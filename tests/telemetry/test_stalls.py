"""A process that stood still says so, and for how long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import orjson

_WATCHED = """
import time
from tidemill.telemetry import events
from tidemill.telemetry.stalls import StallWatch
events.configure()
watch = StallWatch(lambda seconds: print(f"noted {seconds:.1f}", flush=True))
watch.begin()
print("watches", flush=True)
time.sleep(4)
watch.close()
"""


def test_a_stall_is_an_event_with_its_length_and_what_the_process_did_meanwhile() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WATCHED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TIDEMILL_LOG": "json"},
    ) as watched:
        assert watched.stdout is not None
        assert watched.stdout.readline() == "watches\n"
        os.kill(watched.pid, signal.SIGSTOP)
        time.sleep(3.2)
        os.kill(watched.pid, signal.SIGCONT)
        assert watched.stdout.readline().startswith("noted ")
        said = watched.communicate(timeout=60)[1]
    (event,) = [orjson.loads(line) for line in said.splitlines() if "process.stalled" in line]
    assert 2.0 <= event["seconds"] < 30
    assert event["cpu_seconds"] < 1.0, "it did not stand still for what it did itself"
    assert event["threads"] >= 2
