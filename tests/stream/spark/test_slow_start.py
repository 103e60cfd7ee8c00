"""A planning process that needs its time: nobody is told that anything failed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.stream.conftest import MICRO_BATCHES, Mill
from tests.support.blocks import make_change
from tidemill.errors import DeliveryError, TidemillError, is_retryable
from tidemill.service.run.status import SinkState
from tidemill.service.run.stream_group import GroupRun
from tidemill.stream.batch import failures
from tidemill.stream.spark import session as sessions

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"
EARLY = Path(sessions.__file__).with_name("early")

# As if its imports took so long: more than the ten seconds that Java waits for a connection.
SLOW = f"""
import sys, time
if {PLANNER!r} in sys.orig_argv:
    open({{seen!r}}, "w").close()
    time.sleep(12)
"""


@pytest.fixture
def slow_planner(scribes_spark: Any, tmp_path: Path) -> Iterator[Path]:
    """The session, its planning processes held up by a `sitecustomize` of the environment's own."""
    seen = tmp_path / "seen"
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "sitecustomize.py").write_text(SLOW.format(seen=str(seen)))
    context = scribes_spark.sparkContext
    context.environment["PYTHONPATH"] = str(tmp_path / "slow")
    try:
        sessions.register_source(scribes_spark)
        yield seen
    finally:
        del context.environment["PYTHONPATH"]
        sessions.register_source(scribes_spark)


def test_a_planning_process_that_starts_slowly_is_waited_for(mill: Mill, slow_planner: Path) -> None:
    mill.log.append(make_change(3))
    mill.run(trigger=MICRO_BATCHES)
    assert slow_planner.exists(), "nothing held it up"
    assert mill.reports[-1].end == 3


CONNECTS = """
import os, socket, time
time.sleep({imports})
sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.settimeout(15)
sock.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
sock.sendall(b"here")
assert sock.recv(5) == b"hello"
other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
other.connect(os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"])
other.sendall(b"another")
"""


def started(place: Path, code: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(EARLY), "PYTHON_WORKER_FACTORY_SOCK_PATH": str(place)}
    return subprocess.Popen([sys.executable, "-c", code, PLANNER], env=environment, stderr=subprocess.PIPE)


def test_the_early_connection_is_the_one_that_pyspark_then_uses(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as java:
        java.bind(str(tmp_path / "s"))
        java.listen()
        process = started(tmp_path / "s", CONNECTS.format(imports=0))
        with java.accept()[0] as first, closing(process.stderr):  # type: ignore[type-var]
            assert first.recv(4) == b"here"
            first.sendall(b"hello")
            with java.accept()[0] as second:
                assert second.recv(7) == b"another"
            assert process.communicate(timeout=60)[1] == b""
            assert process.returncode == 0


def test_a_planning_process_that_never_comes_up_is_ended(tmp_path: Path) -> None:
    code = "import signal, time; assert 30 < signal.alarm(1) <= 60; time.sleep(600)"  # its minute, cut short
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as java:
        java.bind(str(tmp_path / "s"))
        java.listen()
        with started(tmp_path / "s", code) as process:
            with java.accept()[0] as connection:
                assert connection.recv(1) == b""  # closed: Java goes on
            assert process.wait(60) == -signal.SIGALRM


def test_other_processes_are_left_alone(tmp_path: Path) -> None:
    """The path is inherited by whatever a worker starts; a `sitecustomize` of the environment still runs."""
    (tmp_path / "sitecustomize.py").write_text("print('the other one')")
    environment = os.environ | {"PYTHONPATH": f"{EARLY}{os.pathsep}{tmp_path}"}
    confirmed = subprocess.run([sys.executable, "-c", "print('done')"], capture_output=True, text=True, env=environment)
    assert (confirmed.stdout.split("\n")[:2], confirmed.stderr) == (["the other one", "done"], "")


NOT_UP = "org.apache.spark.SparkException: Python worker failed to connect back.\n\tat org.apache.spark..."


class Stream:
    """A stand-in that fails as it is told, when it is started."""

    running = True

    def __init__(self, error: TidemillError) -> None:
        self._error = error

    def start(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("error", "blamed"),
    [
        (failures.outside_a_batch(Exception(NOT_UP), "mill"), False),
        (failures.start_error(OSError(28, "No space left on device"), Path("/state")), False),
        (failures.job_error(Exception("Job aborted"), "mill", 0), False),
        (DeliveryError('sink "s" did not take it'), True),
    ],
)
def test_a_stream_that_does_not_start_is_no_sinks_fault(mill: Mill, error: TidemillError, blamed: bool) -> None:
    loop = mill.loop()
    run = GroupRun(loop._group, loop._ledger, lambda _: Stream(error))  # type: ignore[arg-type,return-value]
    run.watch()
    assert is_retryable(error)
    assert run.last_error["what"] == error.what
    assert [sink.state for sink in run.sinks(0)] == [SinkState.FAILING if blamed else SinkState.OK]
    assert run.failing
