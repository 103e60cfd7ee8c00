"""The capture process of one pipeline, as its supervisor sees it: started, watched, started again."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import termios
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tidemill.capture.lease import CaptureTask, pack_acceptance, pack_hold, pack_renewal
from tidemill.capture.status import CaptureStatus, read_status
from tidemill.config.pipeline import Pipeline
from tidemill.disk.private import open_file
from tidemill.errors import SourceError, TidemillError, from_data, to_data
from tidemill.retry import RetryPolicy
from tidemill.service.lease.leases import HeldLease
from tidemill.service.run.capture_fork_server import ForkedProcess, start_capture
from tidemill.telemetry import events

_STOP_SECONDS = 20.0
FROZEN_SECONDS = 30.0
"""For how long renewals of a lease may lie unread before the process is taken for frozen: one that wakes up later than
a lease lasts ends itself anyway."""


class CaptureProcess:
    """A process that was killed is started again, with backoff; one that gave up says why. With a lease one that is
    frozen, or hangs as a whole, is killed: it would show nothing but what it said last."""

    def __init__(
        self, pipeline: Pipeline, said: Path | None = None, lease: HeldLease | None = None, once: bool = False,
        trial: bool = False, held: bool = False,
    ) -> None:  # fmt: skip
        """With a `lease` the process ends itself when it has not heard of a renewal in time, also while this one is
        frozen. With `once` its status says when it has `caught_up`. While `trial` is set it
        captures nothing; who clears it calls `watch` as ever, which lets the process go on. While `held` is set the
        pipeline is paused, and the process fills the log; who changes it calls `watch` as ever."""
        self.trial, self._waits = trial, False
        self.held, self._holds = held, False
        self._pipeline, self._said, self._lease, self._once = pipeline, said, lease, once
        self._piping = threading.Lock()  # renewals come from a thread of their own
        if lease is not None:
            lease.on_renewed = self._extend
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._retries = RetryPolicy().begin()
        self._start_at = 0.0
        self._unheard_since: float | None = None
        self._killed = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Does nothing where a process runs: `watch` may have started it."""
        if self._process is not None:
            return
        # Standard output is for what `run` prints.
        said = os.dup(2) if self._said is None else open_file(self._said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            process = start_capture(said)
        finally:
            os.close(said)
        assert process.stdin is not None
        try:
            until = self._lease.until if self._lease is not None else None
            fenced = self._lease is not None and self._lease.predecessor is not None
            process.stdin.write(CaptureTask(self._pipeline, until, self._once, self.trial, self.held, fenced).pack())
            process.stdin.flush()
            self._waits, self._holds = self.trial, self.held
        except BrokenPipeError:
            pass  # it died at once; `watch` tells why
        os.set_blocking(process.stdin.fileno(), False)
        with self._piping:
            self._process = process
        self._unheard_since, self._killed = None, False

    def watch(self) -> CaptureStatus | None:
        """Called again and again. Raises what made capture give up; a crash is only a restart."""
        if self._process is None:
            if time.monotonic() >= self._start_at:
                self.start()
            return None
        if self._waits and not self.trial:
            self._waits = not self._send(pack_acceptance())
        if self._holds != self.held and self._send(pack_hold(self.held)):
            self._holds = self.held
        status = read_status(self._pipeline.state_path)
        if status is not None and status.pid != self._process.pid:
            status = None  # of the process before
        code = self._process.poll()
        if code is None and status is not None and self._is_frozen():
            return _without_answer(self._pipeline, status)
        if code is None:
            if time.monotonic() - self._start_at > 30:
                self._retries.reset()
            return status
        if code > 0:
            raise _reason(self._pipeline, code, status)
        wait = self._retries.take()
        self._start_at = time.monotonic() + wait
        self.restarts += 1
        events.warn("capture.restarted", exit_code=code, after_seconds=round(wait, 1))
        self._close_pipe()
        self._process = None
        return status

    def stop(self) -> None:
        """Lets it finish its append; returns when it is gone."""
        if self._process is None:
            return
        self._close_pipe()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _is_frozen(self) -> bool:
        """A thread of its own reads what is sent to it, whatever else the process does. Killed, it ends at once, unless
        it waits for a disk that does not answer."""
        now = time.monotonic()
        if not self._count_unread():
            self._unheard_since = None
            return False
        self._unheard_since = self._unheard_since or now
        if now - self._unheard_since <= FROZEN_SECONDS:
            return False
        assert self._process is not None
        if not self._killed:
            self._killed = True
            events.warn("capture.killed", pid=self._process.pid, error="it is frozen, or hangs: it hears nothing")
            self._process.kill()
        return True

    def _count_unread(self) -> int:
        """Bytes in the pipe to it."""
        with self._piping:
            if self._lease is None or self._process is None or self._process.stdin is None:
                return 0
            if self._process.stdin.closed:
                return 0
            answer = fcntl.ioctl(self._process.stdin.fileno(), termios.FIONREAD, bytes(4))
        return int(struct.unpack("i", answer)[0])

    def _extend(self, until: float) -> None:
        self._send(pack_renewal(until))

    def _send(self, message: bytes) -> bool:
        with self._piping:
            if self._process is None or self._process.stdin is None or self._process.stdin.closed:
                return False
            with suppress(BlockingIOError, BrokenPipeError):  # it is frozen, or dead: `watch` sees to it
                os.write(self._process.stdin.fileno(), message)
                return True
            return False

    def _close_pipe(self) -> None:
        with self._piping:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()


def _without_answer(pipeline: Pipeline, status: CaptureStatus) -> CaptureStatus:
    """What it said last, with its silence: nobody knows how much it has not read."""
    error = SourceError(
        "the capture process does not answer, and was killed",
        where=f"pipeline {pipeline.name}, pid {status.pid}",
        fix="Another one starts when it is gone. One that stays waits for a disk that does not answer.",
    )
    return replace(status, error=to_data(error), lag_bytes=None)


def _reason(pipeline: Pipeline, code: int, status: CaptureStatus | None) -> TidemillError:
    if status is None or not status.error:
        return SourceError(
            f"the capture process ended with code {code}",
            where=f"pipeline {pipeline.name}",
            fix="Its last lines on standard error say why; it is safe to start again.",
        )
    return from_data({"exit_code": code, **status.error}, SourceError)
