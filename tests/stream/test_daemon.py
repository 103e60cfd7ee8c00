"""The parent of Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tidemill.stream.daemon import until_hung_up

HUNG_UP = """
from tidemill.stream.daemon import until_hung_up
def worker(sock, authenticated):
    raise {error}("the JVM is gone")
until_hung_up(worker)(None, True)
print("still here")
"""

LOADED = """
import os, sys
from tidemill.stream import daemon
daemon.preload()
print("pyarrow" in sys.modules, len(os.listdir("/proc/self/task")))
"""


@pytest.mark.parametrize("error", ["BrokenPipeError", "ConnectionResetError"])
def test_a_worker_whose_jvm_hung_up_ends_without_a_word(error: str) -> None:
    ended = subprocess.run([sys.executable, "-c", HUNG_UP.format(error=error)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_other_errors_and_exit_codes_of_a_worker_stay_what_they_are() -> None:
    def broken(*_: object) -> int:
        raise ZeroDivisionError

    assert until_hung_up(lambda sock, authenticated: 7)(None, True) == 7
    with pytest.raises(ZeroDivisionError):
        until_hung_up(broken)(None, True)


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_with_all_that_lanes_need_loaded_it_still_has_one_thread() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JE_ARROW_MALLOC_CONF"}
    environment |= {"OMP_NUM_THREADS": "1"}  # as Spark sets it for its workers
    told = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, env=environment)
    assert told.stdout.split() == ["True", "1"], told.stderr
