"""Capture processes that are forked: as good as those that start by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.crash.actors import wait_for
from tidemill.service.run import capture_fork_server
from tidemill.service.run.capture_fork_server import CaptureForkServer, ForkedProcess, keep_fork_server, start_capture

pytestmark = pytest.mark.slow


@pytest.fixture
def fork_server() -> Iterator[CaptureForkServer]:
    with keep_fork_server() as kept:
        yield kept


@pytest.fixture
def fork(fork_server: CaptureForkServer, tmp_path: Path) -> Iterator[Callable[[], ForkedProcess]]:
    said = os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT)
    made: list[ForkedProcess] = []

    def make() -> ForkedProcess:
        made.append(fork_server.fork(said))
        return made[-1]

    yield make
    for each in made:
        each.stdin.close()
        each.kill()
        each.wait(60)
    os.close(said)


def test_children_are_other_processes_and_their_ends_are_told(
    fork: Callable[[], ForkedProcess], tmp_path: Path
) -> None:
    one, two = fork(), fork()
    assert len({os.getpid(), one.pid, two.pid}) == 3
    assert (one.poll(), two.poll()) == (None, None), "they wait for their task"
    with pytest.raises(subprocess.TimeoutExpired):
        one.wait(0.1)
    one.kill()
    assert one.wait(60) == -signal.SIGKILL
    one.kill()
    assert two.poll() is None
    two.stdin.close()  # there is no task in it
    assert two.wait(60) == 1
    assert two.poll() == 1
    assert "Traceback" in (tmp_path / "said").read_text(), "what it says goes where it was told"


def held_by(pid: int) -> list[str]:
    """What the process has open; some of it may be closed meanwhile."""
    found = []
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(each))
    return found


def test_what_forks_has_one_thread_and_has_loaded_kernels() -> None:
    """Of several threads a child has one, and what the others held stays locked; kernels are shared by all children."""
    script = """
import os
from tidemill.capture.fork_server import preload
preload()
from tidemill.model import keyhash
print(len(os.listdir("/proc/self/task")), len(keyhash._mix_numbers.signatures))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]


def test_a_child_has_no_descriptor_of_another(fork: Callable[[], ForkedProcess]) -> None:
    first, second = fork(), fork()
    wait_for(lambda: not any(each.startswith("socket:") for each in held_by(second.pid)), 60, "it hears requests")
    first.stdin.close()
    assert first.wait(60) == 1, "the other one does not keep its standard input open"


def test_children_of_a_fork_server_that_was_killed_end_and_the_next_one_is_forked_all_the_same(
    fork_server: CaptureForkServer, fork: Callable[[], ForkedProcess]
) -> None:
    child = fork()
    assert fork_server._process is not None
    fork_server._process.kill()
    assert child.wait(60) == -signal.SIGKILL
    fork_server._process.wait()
    assert fork().poll() is None


def test_without_a_nursery_a_process_is_started_as_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert capture_fork_server.current() is None
    said = os.open(tmp_path / "said", os.O_WRONLY | os.O_CREAT)
    try:
        plain = start_capture(said)
        assert isinstance(plain, subprocess.Popen)
        assert plain.stdin is not None
        plain.stdin.close()
        assert plain.wait(120) == 1
        with keep_fork_server() as fork_server:

            def refuse(said: int) -> ForkedProcess:
                raise OSError("no")

            monkeypatch.setattr(fork_server, "fork", refuse)
            other = start_capture(said)
            assert isinstance(other, subprocess.Popen)
            assert other.stdin is not None
            other.stdin.close()
            other.wait(120)
    finally:
        os.close(said)
