"""Capture processes of a server that are forked from one that has loaded everything (`capture/fork_server.py`).

`tidemill serve` keeps one for as long as it runs. `tidemill run`, with its one pipeline or two, has none.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

import orjson

from tidemill.capture.fork_server import CODE, LONGEST_REQUEST, PID
from tidemill.telemetry import events

_START_SECONDS = 60.0
_END_SECONDS = 30.0


class ForkedProcess:
    """What `subprocess.Popen` is for a process of our own."""

    def __init__(self, pid: int, stdin: IO[bytes], exit_end: int) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._exit, self._waiting = exit_end, threading.Lock()

    def poll(self) -> int | None:
        return self._await_exit(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._await_exit(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("tidemill.capture", timeout or 0.0)
        return code

    def kill(self) -> None:
        if self.poll() is None:  # the number is not given to another process before its end was noted
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _await_exit(self, seconds: float | None) -> int | None:
        with self._waiting:
            if self.returncode is None and _is_readable(self._exit, seconds):
                content = os.read(self._exit, CODE.size)
                # The fork server was killed, and the child with it.
                self.returncode = CODE.unpack(content)[0] if len(content) == CODE.size else -signal.SIGKILL
                os.close(self._exit)
            return self.returncode


class CaptureForkServer:
    """Any thread may ask it. One that died is started again by the next who asks."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: socket.socket | None = None

    def begin(self) -> None:
        """So that it has loaded everything when the first is asked for."""
        with self._asking:
            self._start()

    def fork(self, said: int) -> ForkedProcess:
        """`OSError` where that does not work: who asks starts a process in the ordinary way."""
        with self._asking:
            if self._process is None or self._process.poll() is not None:
                self._start()
            assert self._requests is not None
            child_input, our_end = os.pipe()
            exit_end, child_exit = os.pipe()
            try:
                content = orjson.dumps(dict(os.environ))
                if len(content) >= LONGEST_REQUEST:
                    raise OSError("the environment is too large for a message")
                socket.send_fds(self._requests, [content], [child_input, said, child_exit])
            except BaseException:
                for each in (our_end, exit_end):
                    os.close(each)
                raise
            finally:
                for each in (child_input, child_exit):
                    os.close(each)
        pid = os.read(exit_end, PID.size) if _is_readable(exit_end, _START_SECONDS) else b""
        if len(pid) != PID.size:
            for each in (our_end, exit_end):
                os.close(each)
            raise OSError("the process that forks capture processes does not answer")
        return ForkedProcess(PID.unpack(pid)[0], os.fdopen(our_end, "wb"), exit_end)

    def close(self) -> None:
        """After the last capture process has ended."""
        with self._asking:
            if self._requests is not None:
                self._requests.close()
            if self._process is not None:
                try:
                    self._process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    self._process.kill()
                    self._process.wait()
            self._process = self._requests = None

    def _start(self) -> None:
        if self._requests is not None:
            self._requests.close()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidemill.capture.fork_server"], stdin=theirs.fileno()
            )


_current: CaptureForkServer | None = None


def current() -> CaptureForkServer | None:
    """The one of this process, if `keep_fork_server` has it."""
    return _current


@contextmanager
def keep_fork_server() -> Iterator[CaptureForkServer]:
    """Around everything that starts pipelines."""
    global _current
    server = _current = CaptureForkServer()
    server.begin()
    try:
        yield server
    finally:
        _current = None
        server.close()


def start_capture(said: int) -> ForkedProcess | subprocess.Popen[bytes]:
    """Forked where there is a fork server that answers, else started anew. `said` is for standard output and error."""
    server = current()
    if server is not None:
        try:
            return server.fork(said)
        except OSError as error:
            events.warn("capture.not_forked", error=str(error))
    return subprocess.Popen([sys.executable, "-m", "tidemill.capture"], stdin=subprocess.PIPE, stdout=said, stderr=said)


def _is_readable(descriptor: int, seconds: float | None) -> bool:
    """`poll`, because a server with many pipelines has descriptors beyond what `select` takes."""
    waits, deadline = select.poll(), None if seconds is None else time.monotonic() + seconds
    waits.register(descriptor, select.POLLIN)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    return bool(waits.poll(left))
