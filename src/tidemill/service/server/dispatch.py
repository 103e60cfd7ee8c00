"""Workers that a server starts itself: one process for each pipeline that is wanted, started again when it dies.

The server runs no pipeline then. It talks with its workers as with any other process of the state store (elsewhere.py);
what they have besides is a pipe. It closes with the server, also when that is killed, and the worker drains and ends.
Two such servers of one store start one worker for a pipeline: who sees that it is leased starts none. A worker that
is frozen loses its lease and is killed: nobody else would take its pipeline over.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO

from tidemill.errors import LeaseHeld
from tidemill.retry import Retries, RetryPolicy
from tidemill.service.lease.lease_process import LeaseProcess
from tidemill.service.server import managed as m
from tidemill.service.server.control import ControlPlane
from tidemill.service.server.repeated import RepeatedTask
from tidemill.service.server.restarts import POLICY
from tidemill.telemetry import events

LOOK_SECONDS = 0.5
METRICS_SECRET = "TIDEMILL_WORKER_SECRET"
STOP_SECONDS = 90.0
"""Beyond its drain, that a worker may take to end before it is killed; and that a pipeline which is not wanted any more
may take to stop before its worker is ended."""
_STEADY_SECONDS = 600.0  # after which the next death begins a new series
_SECOND_SECONDS = 30.0  # that another process has the pipeline, before the worker here is taken for superfluous
_KILLED_SECONDS = 10.0
SILENCE_LOOK_SECONDS, FROZEN_SECONDS = 2.0, 10.0
"""How often it is asked which workers are silent, and for how long one may be before it is taken for frozen. It has
lost its lease by then; after a store that was away it has time to renew."""
_METRICS = re.compile(r"metrics on (\S+)")


@dataclass(frozen=True, slots=True)
class WorkerCommand:
    """How a worker is started; the pipeline's name is appended. `environment` has what must not stand in a list of
    processes, the `secret` among it, with which alone a worker can be asked for its metrics."""

    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def secret(self) -> str:
        return self.environment.get(METRICS_SECRET, "")


class WorkerProcess:
    """`metrics` is where it can be asked for them, None before it has said so. Its log is our standard error."""

    def __init__(self, pipeline: str, command: WorkerCommand) -> None:
        self.metrics: str | None = None
        self.began, self.ends_since, self.second_since, self.silent_since = time.monotonic(), 0.0, 0.0, 0.0
        # A session of its own: Ctrl-C at the server's terminal is for the server, which asks its workers to drain.
        self._process = subprocess.Popen(
            [*command.arguments, pipeline], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **command.environment}, start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        threading.Thread(
            target=self._listen, args=(self._process.stdout,), name=f"worker {pipeline}", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.poll()

    def ask_to_end(self) -> None:
        """It drains and ends. May be called again."""
        self.ends_since = self.ends_since or time.monotonic()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def release(self) -> None:
        """Its process is gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end_frozen(self) -> None:
        """Its children may be frozen too."""
        LeaseProcess.of(self.pid).end()

    def wait(self, seconds: float) -> bool:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        return self._process.poll() is not None

    def _listen(self, said: IO[str]) -> None:
        with said:
            for line in said:
                if found := _METRICS.search(line):
                    self.metrics = found[1].rstrip('"}')


class Dispatcher:
    """`begin`, then `close`. Any thread may ask for `metrics` and call `reload`."""

    def __init__(
        self,
        control: ControlPlane,
        command: WorkerCommand,
        *,
        drain_seconds: float,
        policy: RetryPolicy = POLICY,
        start: Callable[[str, WorkerCommand], WorkerProcess] = WorkerProcess,
    ) -> None:
        self._control, self._command, self._drain_seconds = control, command, drain_seconds
        self.secret = command.secret
        self._policy, self._start = policy, start
        self._changing = threading.Lock()  # guards what is below
        self._workers: dict[str, WorkerProcess] = {}
        self._series: dict[str, Retries] = {}
        self._due: dict[str, float] = {}
        self._silence_looked = 0.0
        self._task = RepeatedTask(self._look, seconds=LOOK_SECONDS, name="dispatch")
        self.begin = self._task.begin

    @property
    def metrics(self) -> list[str]:
        """Where the workers can be asked for them."""
        with self._changing:
            return [each.metrics for each in self._workers.values() if each.metrics is not None]

    def reload(self) -> None:
        """Files have changed: workers read them again, too."""
        with self._changing:
            for each in self._workers.values():
                each.send(signal.SIGHUP)

    def close(self, hurry: threading.Event) -> None:
        """Lets all workers drain; `hurry` cuts that short."""
        self._task.close()
        with self._changing:
            workers = dict(self._workers)
        for each in workers.values():
            each.ask_to_end()
        until, hurried = time.monotonic() + self._drain_seconds + STOP_SECONDS, False
        while any(each.poll() is None for each in workers.values()) and time.monotonic() < until:
            if not hurried and hurry.wait(0.1):
                hurried = True
                for each in workers.values():
                    each.send(signal.SIGTERM)
            elif hurried:
                time.sleep(0.1)
        for name, each in workers.items():
            if each.poll() is None:
                events.warn("worker.killed", pipeline=name, pid=each.pid, error="it did not end in time")
                each.send(signal.SIGKILL)
                each.wait(_KILLED_SECONDS)
            each.release()

    def _look(self) -> None:
        with self._changing:
            self._end_frozen()
            for name in list(self._workers):
                self._look_at(name, self._workers[name])
            for name in self._control.names:
                if name not in self._workers and not self._task.stopping:
                    self._start_if_due(name)

    def _end_frozen(self) -> None:
        """A worker that is stopped, or hangs, holds no lease and does not die: nobody would run its pipeline."""
        now = time.monotonic()
        if now - self._silence_looked < SILENCE_LOOK_SECONDS:
            return
        self._silence_looked = now
        silent = self._control.silent_processes()
        for name, worker in self._workers.items():
            if worker.pid not in silent:
                worker.silent_since = 0.0
                continue
            worker.silent_since = worker.silent_since or now
            if now - worker.silent_since > FROZEN_SECONDS and worker.poll() is None:
                events.warn("worker.killed", pipeline=name, pid=worker.pid, error="it did not renew its lease in time")
                worker.end_frozen()

    def _look_at(self, name: str, worker: WorkerProcess) -> None:
        now, code = time.monotonic(), worker.poll()
        if code is not None:
            self._note_end(name, worker, code)
            return
        wish = self._control.wish(name)
        if wish in (m.RUNNING, m.PAUSED) and self._is_ours(name, worker):
            worker.second_since = 0.0
            return
        if wish in (m.RUNNING, m.PAUSED):  # another process has the pipeline
            worker.second_since = worker.second_since or now
            if now - worker.second_since > _SECOND_SECONDS:
                worker.ask_to_end()
        elif not worker.ends_since:
            stopped_since = worker.second_since = worker.second_since or now
            if not self._control.is_leased(name) or now - stopped_since > STOP_SECONDS:
                worker.ask_to_end()
        if worker.ends_since and now - worker.ends_since > self._drain_seconds + STOP_SECONDS:
            worker.send(signal.SIGKILL)

    def _is_ours(self, name: str, worker: WorkerProcess) -> bool:
        """Whether the worker has the pipeline, or nobody."""
        lease = self._control.lease_of(name)
        holder = LeaseProcess.read(lease.holder.process) if lease is not None and lease.holder is not None else None
        return holder is None or (holder.is_here and holder.pid == worker.pid) or not self._control.is_leased(name)

    def _note_end(self, name: str, worker: WorkerProcess, code: int) -> None:
        del self._workers[name]
        worker.release()
        if worker.ends_since:
            events.emit("worker.ended", pipeline=name, pid=worker.pid, exit_code=code)
            return
        now = time.monotonic()
        if now - worker.began > _STEADY_SECONDS:
            self._series.pop(name, None)
        wait = self._plan_restart(name, f"its worker ended with code {code}")
        events.warn("worker.died", pipeline=name, pid=worker.pid, exit_code=code, restart_seconds=round(wait, 1))

    def _plan_restart(self, name: str, why: str) -> float:
        wait = self._series.setdefault(name, self._policy.begin()).take()
        self._due[name] = time.monotonic() + wait
        self._control.worker_notes[name] = LeaseHeld(
            f"{why}, and the next one starts after {wait:.0f} seconds", where=f"worker of pipeline {name}",
            fix="What it said last stands in the server's log.",
        )  # fmt: skip
        return wait

    def _start_if_due(self, name: str) -> None:
        if not self._control.is_wanted(name) or self._control.is_leased(name):
            self._due.pop(name, None)
            self._series.pop(name, None)
            return
        if time.monotonic() < self._due.get(name, 0.0):
            return
        try:
            worker = self._workers[name] = self._start(name, self._command)
        except OSError as error:
            wait = self._plan_restart(name, f"its worker cannot be started: {error}")
            events.fail("worker.not_started", pipeline=name, error=str(error), restart_seconds=round(wait, 1))
            return
        self._control.worker_notes[name] = LeaseHeld("its worker is just starting", fix="Wait some seconds.")
        events.emit("worker.started", pipeline=name, pid=worker.pid)
