"""The parent of Spark's Python workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.stream.spark.daemon import until_hung_up

HUNG_UP = """
from tidemill.stream.spark.daemon import until_hung_up
def worker(sock, authenticated):
    raise {error}("the JVM is gone")
until_hung_up(worker)(None, True)
print("still here")
"""

LOADED = """
import gc, os, sys
from tidemill.stream.spark import daemon
daemon.preload()
print("pyarrow" in sys.modules, len(os.listdir("/proc/self/task")), len(gc.get_objects()) < gc.get_freeze_count() / 100)
"""


BORN = """
import os, signal, time
from tidemill.stream.spark.daemon import until_hung_up, watch_births

watch_births(seconds=1)

def ends(work):
    child = os.fork()
    if not child:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def grandchild():
    until_hung_up(lambda: os._exit(signal.alarm(0) if not os.fork() else os.waitpid(-1, 0)[1]))()

print(ends(lambda: time.sleep(30)) == -signal.SIGALRM)
print(ends(until_hung_up(lambda: time.sleep(2) or 0)) == 0)
print(ends(grandchild) == 0)
"""


def test_a_worker_that_is_never_born_is_ended_and_others_take_their_time() -> None:
    confirmed = subprocess.run([sys.executable, "-c", BORN], capture_output=True, text=True, timeout=60)
    assert confirmed.stdout.split() == ["True", "True", "True"], confirmed.stderr


STUCK = """
import os, time
from pyspark import daemon
from tidemill.stream.spark import daemon as ours

def stuck():
    if not os.path.exists("{once}"):
        open("{once}", "w").close()
        time.sleep(600)

ours.watch_births(seconds=4)
os.register_at_fork(after_in_child=stuck)
daemon.worker = ours.until_hung_up(daemon.worker)
daemon.manager()
"""

SESSION = """
from tidemill.stream.spark.session import create_session, warm_up

spark = create_session("t", master="local[2]", conf={"spark.python.daemon.module": "stuck"})
try:
    warm_up(spark)
    print("nothing was stuck")
except Exception:
    print("failed")
warm_up(spark)
print("went on")
spark.stop()
"""


@pytest.mark.slow  # the program starts Spark
def test_a_session_goes_on_after_a_worker_that_was_never_born(tmp_path: Path) -> None:
    """Java would wait for it for ever, and all streams of the session with it."""
    (tmp_path / "stuck.py").write_text(STUCK.format(once=tmp_path / "once"))
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    confirmed = subprocess.run(
        [sys.executable, "-c", SESSION], capture_output=True, text=True, env=environment, timeout=180
    )
    assert confirmed.stdout.splitlines() == ["failed", "went on"], confirmed.stderr[-3000:]


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
def test_with_all_that_lanes_need_loaded_it_has_one_thread_and_nothing_for_the_garbage_collector() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "JE_ARROW_MALLOC_CONF"}
    environment |= {"OMP_NUM_THREADS": "1"}  # as Spark sets it for its workers
    confirmed = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, env=environment)
    assert confirmed.stdout.split() == ["True", "1", "True"], confirmed.stderr
