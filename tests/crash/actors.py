"""The processes of a pipeline, found through /proc and ended as a crash would end them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.crash.harness import SourceHarness
from tidemill import config
from tidemill.capture.lease import CaptureTask
from tidemill.capture.status import read_status
from tidemill.config.pipeline import Pipeline
from tidemill.service.schema.changes import list_changes

CRASH_AT, CRASH_ONCE = "TIDEMILL_CRASH_AT", "TIDEMILL_CRASH_ONCE"


def write_pipeline(directory: Path, source: dict[str, Any], sinks: list[dict[str, Any]], **spec: Any) -> Path:
    """A pipeline document whose state lives beside it."""
    document = {
        "metadata": {"name": "proof"},
        "spec": {
            "source": source,
            "sinks": sinks,
            "state_dir": str(directory / "state"),
            # Two lanes however small a batch: order per key must hold across workers.
            "spark": {"master": "local[2]", "conf": {"spark.driver.memory": "512m"}},
            **spec,
        },
    }
    path = directory / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def wait_for(condition: Callable[[], bool], seconds: float, what: str | Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what if isinstance(what, str) else what()
        time.sleep(0.05)


class _Actor:
    """A process of ours with its output in a file of the evidence directory.

    `crash_at` is the point at which whoever passes it next is to end, once; it counts from the next start. Several
    are told apart by commas.
    """

    def __init__(self, directory: Path, crash_at: str = "") -> None:
        self.kills: Counter[str] = Counter()
        self._directory = directory
        self.crash_at = crash_at
        self._process: subprocess.Popen[bytes] | None = None
        self._family: dict[int, str] = {}

    @property
    def output(self) -> str:
        path = self._directory / "output.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def _marker(self) -> Path:
        return self._directory / "crashed-at"

    @property
    def crashed_at_failpoint(self) -> bool:
        """At all of them."""
        names = [point.partition(":")[0] for point in self.crash_at.split(",")]
        return all(Path(f"{self._marker}-{name}").exists() for name in names)

    def wait_for_failpoint(self, seconds: float) -> None:
        """Until somebody has ended at `crash_at`. One that ends in another way says at once what it died of."""
        wait_for(
            lambda: self.crashed_at_failpoint or not (self.alive or self.was_killed), seconds,
            lambda: f"{self.crash_at} was never passed:\n{self.testimony()}",
        )  # fmt: skip
        assert self.crashed_at_failpoint, f"it ended before {self.crash_at}:\n{self.output[-8000:]}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def was_killed(self) -> bool:
        return self._process is not None and self._process.poll() == -signal.SIGKILL

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _spawn(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        environment = {k: v for k, v in os.environ.items() if k not in (CRASH_AT, CRASH_ONCE)}
        environment["PYTHONFAULTHANDLER"] = "1"  # see `testimony`
        if self.crash_at:
            environment |= {CRASH_AT: self.crash_at, CRASH_ONCE: str(self._marker)}
        with (self._directory / "output.log").open("ab") as output:
            # A session of its own: Ctrl-C ends the test first, which then ends its actors.
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True, **options
            )
        return self._process

    def _remember(self) -> None:
        """Ids alone would not do: by the time of the last look they may belong to somebody else."""
        if self.alive:
            self._family |= {pid: _born(pid) for pid in [self.pid, *descendants(self.pid)]}

    def testimony(self) -> str:
        """The end of its output, and what each of its processes was about when it did not go on: Java says so at
        SIGQUIT, Python as it dies of SIGABRT. It is over after this."""
        said = self.output
        family = [pid for pid in [self.pid, *descendants(self.pid)] if _born(pid)] if self.alive else []
        for pid in (pid for pid in family if _program(pid) == "java"):
            os.kill(pid, signal.SIGQUIT)
            time.sleep(1)
        self._remember()
        pythons = [pid for pid in family if _program(pid).startswith("python")]
        for pid in pythons:  # each says what it did before another's end, and alone: words of two would mix
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in pythons:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
                os.kill(pid, signal.SIGABRT)
                os.kill(pid, signal.SIGCONT)
            deadline = time.monotonic() + 60  # a machine that is busy writes slowly
            while _runs(pid) and time.monotonic() < deadline:
                time.sleep(0.05)
        rest = self.output[len(said) :].split("\n\n")
        # Java has a hundred threads that only wait for work; all are in the output's file.
        busy = [
            part for part in rest if not part.startswith('"') or "stream execution" in part or "task launch" in part
        ]
        return "\n\n".join([said[-5000:], *busy])

    def bury(self) -> None:
        """Nothing of it outlives the test."""
        self._remember()
        for pid, born in self._family.items():
            if born and _born(pid) == born:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(120)
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()


class CaptureActor(_Actor):
    """Loop one alone: the capture process without driver and Spark, started again by whoever kills it."""

    def __init__(self, directory: Path, document: Path, crash_at: str = "") -> None:
        super().__init__(directory, crash_at)
        [self.pipeline] = config.load(document)

    def start(self) -> None:
        self._close_pipe()
        process = self._spawn([sys.executable, "-m", "tidemill.capture"], stdin=subprocess.PIPE)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(CaptureTask(self.pipeline).pack())
            process.stdin.flush()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.kills["capture"] += 1

    def wait_for_crash(self, seconds: float = 180) -> None:
        wait_for(lambda: not self.alive, seconds, "the process never passed the point at which it was to end")
        assert self._process is not None
        assert self._process.returncode == -signal.SIGKILL, self.output[-3000:]
        self.kills["capture"] += 1


class RunActor(_Actor):
    """`tidemill run`, and what it consists of: driver, capture, the JVM, and the JVM's Python processes."""

    VICTIMS = ("capture", "worker", "driver")

    def __init__(self, directory: Path, document: Path, crash_at: str = "") -> None:
        super().__init__(directory, crash_at)
        self._document = document
        [self.pipeline] = config.load(document)
        self.starts = self._said = 0

    def start(self) -> None:
        self.starts += 1
        self._said = len(self.output)
        self._spawn(
            [str(Path(sys.executable).with_name("tidemill")), "run", "--interval", "1", str(self._document)],
            stdin=subprocess.DEVNULL,
        )

    @property
    def output_of_this_start(self) -> str:
        return self.output[self._said :]

    def begin(self, source: SourceHarness, seconds: float = 300) -> None:
        """The first start: returns when changes are captured and the stream runs, so that the load meets both. A
        failpoint may lie before that: what ended there is started again."""

        def streams() -> bool:
            if source.ready() and "stream.started" in self.output:
                return True
            self.keep_running()
            return False

        self.start()
        wait_for(streams, seconds, lambda: f"no capture, or no stream:\n{self.output[-3000:]}")

    def keep_running(self) -> None:
        """As a service manager would: a driver that was killed is started again. One that gave up is a failure."""
        if not self.alive:
            assert self.was_killed, self.output[-5000:]
            self.start()

    def stop(self, seconds: float = 180) -> int:
        """As Ctrl-C would: drains. The exit code. One that has just been started has to hear of signals first."""
        assert self._process is not None
        wait_for(
            lambda: not self.alive or "pipeline.started" in self.output[self._said :], seconds,
            lambda: f"it does not start:\n{self.output[-3000:]}",
        )  # fmt: skip
        self._remember()
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(seconds)

    def kill(self, victim: str, dice: Random) -> bool:
        """False if there was no such process at this moment."""
        self._remember()
        candidates = self._candidates(victim)
        if not candidates:
            return False
        pid = dice.choice(candidates)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills[victim] += 1
        if victim == "driver" and self._process is not None:
            self._process.wait(120)
        return True

    def _candidates(self, victim: str) -> list[int]:
        if not self.alive:
            return []
        family = {pid: command_of(pid) for pid in descendants(self.pid)}
        match victim:
            case "driver":
                return [self.pid]
            case "capture":
                return [pid for pid, command in family.items() if "tidemill.capture" in command]
            case "worker":
                # Lanes, the source's planner, and the parent that lanes are forked from: it may have gone before them.
                return [
                    pid for pid in session_of(self.pid)
                    if _program(pid).startswith("python") and "pyspark" in command_of(pid)
                ]  # fmt: skip
            case _:
                raise ValueError(victim)


@contextmanager
def on_stage(actor: _Actor) -> Iterator[None]:
    try:
        yield
    finally:
        actor.bury()


def delivered_offset(pipeline: Pipeline) -> int:
    store = pipeline.build_checkpoints()
    try:
        saved = store.load(pipeline.name)
    finally:
        store.close()
    return saved.offset if saved else 0


def uncounted_changes(pipeline: Pipeline, source: SourceHarness) -> int:
    """Events of schema changes that were met so far and that the source's own account does not have."""
    return 0 if source.COUNTS_DDL else len(list_changes(pipeline, 10_000))


def capture_status(pipeline: Pipeline) -> dict[str, Any]:
    found = read_status(pipeline.state_path)
    return asdict(found) if found is not None else {}


def descendants(pid: int) -> list[int]:
    found = []
    for task in _tasks(pid):
        with contextlib.suppress(OSError):
            for child in map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def session_of(leader: int) -> list[int]:
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(int(name)) == leader != int(name):
                found.append(int(name))
    return found


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def command_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _program(pid: int) -> str:
    """The executable's name. A command line would not do: java's is full of paths to Python."""
    with contextlib.suppress(OSError):
        return Path(os.readlink(f"/proc/{pid}/exe")).name
    return ""


def _runs(pid: int) -> bool:
    """A zombie does not."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def _born(pid: int) -> str:
    """The start time in clock ticks (field 22 of stat), empty if there is no such process."""
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""
