"""What a server costs: memory a pipeline, the API's answers under load, throughput beside `run` alone, a takeover.

All processes are real: `tidemill run` and `tidemill serve` over SQLite files. One pipeline is busy, the others wait for
changes that never come. For a measured drain the busy pipeline's capture is frozen while its backlog is written: the
writer takes no time from it. The clock starts when capture goes on and ends with the checkpoint of the last event.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil

from tidemill import config
from tidemill.api.client import ServerClient
from tidemill.capture.status import read_status
from tidemill.errors import EnvironmentProblem, TidemillError, UnknownPipeline
from tidemill.lab.servers.process import free_port
from tidemill.lab.waits import Waits, ending_on_signals
from tidemill.model.delivery import Checkpoint
from tidemill.service.server.tokens import Role, open_tokens

_COMMAND = "tidemill bench server"
_BUSY, _WARM_ROWS = "busy", 2000
_ROUNDS = 3
_REQUESTS_PER_SECOND = 40.0
_LEASE_SECONDS = 60.0  # a frozen capture keeps its lease
_DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source: {{type: sqlite, config: {{id: {name}, path: {file}}}}}
  sinks: [{{type: blackhole, config: {{id: nowhere-{name}}}}}]
  state_dir: {state}
  {trigger}
"""
_TABLE = "CREATE TABLE bench (id INTEGER PRIMARY KEY, customer INT, amount DECIMAL(12,2), note TEXT)"


class ServerBench:
    def __init__(
        self, *, pipelines: int, rows: int, say: Callable[[str], None], mode: str = "", limit_seconds: float = 1800.0
    ) -> None:
        """`pipelines` in all, the busy one included. Without a `mode`, that of documents that do not say. `say` gets
        what goes on, a line at a time."""
        self.pipelines, self.rows, self._mode = pipelines, rows, mode
        self.measured: dict[str, Any] = {"pipelines": pipelines, "rows": rows}
        """So far; where `run` raises, this is what was measured before."""
        self._waits = Waits(_COMMAND, seconds=limit_seconds, say=say)
        self._say = self._waits.say
        self._written = 0

    def try_all(self) -> TidemillError | None:
        """What it ended with, if it did not come to its end; `measured` has the rest."""
        try:
            self.run()
        except TidemillError as error:
            return error
        return None

    def run(self) -> dict[str, Any]:
        # What was killed may still write.
        with (
            ending_on_signals(_COMMAND),
            tempfile.TemporaryDirectory(prefix="tidemill-bench-", ignore_cleanup_errors=True) as folder,
        ):
            self._folder = Path(folder)
            (self._folder / "documents").mkdir()
            self._alone()
            self._measure_served()
        return self.measured

    def _alone(self) -> None:
        self._add(_BUSY, "alone")
        with self._process("run", str(self._document(_BUSY)), "--json"):
            speed = self._speed()
        self._say(f"run alone {speed:>10,.0f} rows/s")
        self._alone_speed = speed
        (busy,) = config.load(self._document(_BUSY))
        self.measured |= {"mode": busy.spec.trigger.mode, "alone_rows_per_s": round(speed)}

    def _measure_served(self) -> None:
        self._add(_BUSY, "served")
        state = self._folder / "served" / "state.sqlite"
        with open_tokens(str(state), create=True) as tokens:
            token = tokens.create("bench", Role.ADMIN)[0]
        with self._server(token) as (first, client):
            self._compare("served_rows_per_s", "throughput_ratio", "server on")
            self._measure_start(first, client)
            with _asking(client, self.pipelines) as asked:
                self._compare("among_rows_per_s", "throughput_ratio_with_all", f"among {self.pipelines}")
            p50, p99 = (round(1000 * quantiles(asked.seconds, n=100)[at - 1], 1) for at in (50, 99))
            self.measured |= {
                "api_requests": len(asked.seconds), "api_errors": asked.errors, "api_p50_ms": p50, "api_p99_ms": p99,
            }  # fmt: skip
            self._say(f"{len(asked.seconds)} requests meanwhile: p50 {p50} ms, p99 {p99} ms, {asked.errors} refused")
            with self._server(token) as (_, standby):
                self._take_over(first, standby)

    def _compare(self, measure: str, ratio: str, name: str) -> None:
        speed = self._speed()
        self.measured |= {measure: round(speed), ratio: round(speed / self._alone_speed, 3)}
        self._say(f"{name} {speed:>10,.0f} rows/s, {self.measured[ratio]} of run alone")

    def _measure_start(self, server: subprocess.Popen[bytes], client: ServerClient) -> None:
        """Of all but the busy one, which is there."""
        memory, used, began = _memory_mb(server), _cpu_seconds(server), time.monotonic()
        for number in range(self.pipelines - 1):
            self._add(f"idle-{number:04}", "served")
        server.send_signal(signal.SIGHUP)
        self._wait_for_all(client)
        started, cpu = time.monotonic() - began, _cpu_seconds(server) - used
        in_all = _memory_mb(server)
        idle = (in_all - memory) / max(1, self.pipelines - 1)
        self.measured |= {
            "start_seconds": round(started, 1), "start_cpu_seconds": round(cpu, 1), "mb_in_all": round(in_all),
            "mb_per_pipeline": round(idle, 1),
        }  # fmt: skip
        self._say(f"{self.pipelines} pipelines stream after {started:.1f} s ({cpu:.1f} s of CPU), {idle:.1f} MB each")

    # ---------------------------------------------------------------- pipelines

    def _add(self, name: str, state: str) -> None:
        file = self._folder / f"{name}-{state}.db"
        with closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA journal_mode = wal")
            db.execute(_TABLE)
        trigger = f"trigger: {{mode: {self._mode}}}" if self._mode else ""
        text = _DOCUMENT.format(name=name, file=file, state=self._folder / state, trigger=trigger)
        self._document(name).write_text(text)
        if name == _BUSY:
            self._file, self._written = file, 0

    def _document(self, name: str) -> Path:
        return self._folder / "documents" / f"{name}.yaml"

    def _speed(self) -> float:
        """The median of a few backlogs: one alone takes a second or two, and is what the machine was then."""
        return median(self._drain() for _ in range(_ROUNDS))

    def _drain(self) -> float:
        """Rows a second of a backlog, after a few rows that warm everything up."""
        (pipeline,) = config.load(self._document(_BUSY))
        self._until(lambda: self._streams(pipeline), "the busy pipeline streams")
        self._write(_WARM_ROWS)
        self._wait_for_checkpoint(pipeline)
        capture = read_status(pipeline.state_path)
        assert capture is not None
        self._until(lambda: self._freeze(capture.pid), "capture lets others write")
        try:
            self._write(self.rows)
        finally:
            began = time.time()
            os.kill(capture.pid, signal.SIGCONT)
        saved = self._wait_for_checkpoint(pipeline)
        return self.rows / (datetime.fromisoformat(saved.saved_at).timestamp() - began)

    def _freeze(self, capture: int) -> bool:
        """False if it was just writing: it goes on then, because nobody else could write."""
        os.kill(capture, signal.SIGSTOP)
        with closing(sqlite3.connect(self._file, timeout=0.5, isolation_level=None)) as db:
            try:
                db.execute("BEGIN IMMEDIATE")
                db.execute("ROLLBACK")
            except sqlite3.OperationalError:
                os.kill(capture, signal.SIGCONT)
                return False
        return True

    def _write(self, rows: int) -> None:
        with closing(sqlite3.connect(self._file, timeout=60)) as db:
            for first in range(self._written, self._written + rows, 1000):
                last = min(first + 1000, self._written + rows)
                db.executemany(
                    "INSERT INTO bench VALUES (?, ?, ?, ?)",
                    [(n, n % 1000, n % 100_000 / 100, f"note number {n}") for n in range(first, last)],
                )
                db.commit()
        self._written += rows

    def _wait_for_checkpoint(self, pipeline: config.Pipeline) -> Checkpoint:
        found: list[Checkpoint] = []
        with closing(pipeline.build_checkpoints()) as store:

            def is_there() -> bool:
                saved = store.load(pipeline.name)
                found[:] = [saved] if saved is not None else []
                return saved is not None and saved.offset >= self._written

            self._until(is_there, "the backlog is delivered")
        return found[0]

    @staticmethod
    def _streams(pipeline: config.Pipeline) -> bool:
        status = read_status(pipeline.state_path)
        return status is not None and bool(status.streaming_since)

    # ---------------------------------------------------------------- servers

    @contextmanager
    def _process(self, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self._folder / f"{arguments[0]}-{free_port()}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", "from tidemill.cli.main import main; main()", *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        self._log, self._under_way = Path(log.name), process
        started = psutil.Process(process.pid)
        try:
            yield process
        finally:
            below = started.children(recursive=True) if started.is_running() else []
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _end(below)

    @contextmanager
    def _server(self, token: str) -> Iterator[tuple[subprocess.Popen[bytes], ServerClient]]:
        port = free_port()
        given = (
            "--config", str(self._folder / "documents"), "--state-dir", str(self._folder / "served"),
            "--api", f"127.0.0.1:{port}", "--metrics", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--drain", "0",
            "--lease-seconds", str(_LEASE_SECONDS),
        )  # fmt: skip
        with self._process("serve", *given) as process:
            client = ServerClient(f"http://127.0.0.1:{port}", token, timeout=60)
            self._until(lambda: _is_ready(client), "the server is ready")
            yield process, client

    def _wait_for_all(self, client: ServerClient) -> None:
        """Asks for each until it streams, one after the other: the server has better things to do meanwhile."""
        waiting = _names(self.pipelines)[::-1]  # they start in the order of their names

        def all_stream() -> bool:
            while waiting and _streams_at(client, waiting[-1]):
                waiting.pop()
            return not waiting

        self._until(
            all_stream, "every pipeline streams", pause=0.5,
            progress=lambda: f"{self.pipelines - len(waiting)} of {self.pipelines}",
        )  # fmt: skip

    def _take_over(self, first: subprocess.Popen[bytes], standby: ServerClient) -> None:
        """Seconds from the first server's death until the busy pipeline streams, and until all do."""
        self._until(lambda: standby.pipeline(_BUSY).status == "standby", "the second server stands by")
        below = psutil.Process(first.pid).children(recursive=True)
        first.kill()
        began = time.monotonic()
        first.wait()
        self._until(lambda: _streams_at(standby, _BUSY), "the busy pipeline is taken over")
        taken = time.monotonic() - began
        self._wait_for_all(standby)
        everything = time.monotonic() - began
        _end(below)
        self.measured |= {"takeover_seconds": round(taken, 1), "takeover_all_seconds": round(everything, 1)}
        self._say(f"taken over after {taken:.1f} s, all after {everything:.1f} s")

    def _until(
        self, condition: Callable[[], bool], wanted: str, *, pause: float = 0.02,
        progress: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        def check() -> None:
            if self._under_way.poll() not in (None, -signal.SIGKILL):
                tail = self._log.read_text(errors="replace").strip().splitlines()[-3:]
                raise EnvironmentProblem(
                    f"the bench stopped: its server or run ended with {self._under_way.poll()}, before {wanted}",
                    where=_COMMAND, fix="\n".join(tail),
                )  # fmt: skip

        self._waits.until(condition, wanted, check=check, pause=pause, progress=progress)


def _is_ready(client: ServerClient) -> bool:
    try:
        return bool(client.request("GET", "/readyz")["status"] == "ready")
    except TidemillError:
        return False


def _names(pipelines: int) -> list[str]:
    return [_BUSY, *(f"idle-{number:04}" for number in range(pipelines - 1))]


def _streams_at(client: ServerClient, name: str) -> bool:
    try:
        status = client.status(name)
    except UnknownPipeline:  # files are not read again yet
        return False
    return bool(status["state"] == "running" and status["stage"] == "cdc")


@dataclass(slots=True)
class Asked:
    """Seconds that each request took, also those that were refused."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0


@contextmanager
def _asking(client: ServerClient, pipelines: int) -> Iterator[Asked]:
    """Requests meanwhile: lists, one pipeline, its status, readiness, in turn."""
    asked = Asked()
    ended = threading.Event()
    names = _names(pipelines)

    def ask() -> None:
        number = 0
        while not ended.wait(1 / _REQUESTS_PER_SECOND) or len(asked.seconds) < 100:
            name = names[number % len(names)]
            path = ("/pipelines", f"/pipelines/{name}/status", f"/pipelines/{name}", "/readyz")[number % 4]
            began = time.monotonic()
            try:
                client.request("GET", path)
            except TidemillError:
                asked.errors += 1
            asked.seconds.append(time.monotonic() - began)
            number += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        ended.set()
        thread.join(60)


def _memory_mb(process: subprocess.Popen[bytes]) -> float:
    """Of the process and all below it; pages that several share count once."""
    top = psutil.Process(process.pid)
    total = 0
    for each in [top, *top.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += each.memory_full_info().pss
    return total / 1e6


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Of the process and all below it that are there."""
    top = psutil.Process(process.pid)
    total = 0.0
    for each in [top, *top.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            total += sum(each.cpu_times()[:2])
    return total


def _end(processes: list[psutil.Process]) -> None:
    """What a killed process left: capture ends by itself when its lease does, which takes longer than the bench."""
    for each in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
