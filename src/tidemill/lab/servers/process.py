"""A server that is one child process with a folder and a port of its own on 127.0.0.1; gone when it is closed."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tidemill.errors import EnvironmentProblem

_FIRST_PORT = 10_000  # of private servers; well-known ones lie below


class ServerProcess:
    """A subclass says with which command it starts and how to see that it serves.

    `start` after `stop` or `kill` goes on with the same folder and the same port. `close` ends it and removes the
    folder, unless it was given one.
    """

    name = "server"
    start_seconds = 30.0

    def __init__(self, directory: Path | None = None) -> None:
        self._keep = directory is not None
        self.directory = directory or Path(tempfile.mkdtemp(prefix=f"tidemill-{self.name}-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def instructions(self) -> bytes:
        """For its standard input, which stays open until it is stopped; not in argv, where others can read it."""
        return b""

    def answers(self) -> bool:
        """Whether it serves; by default whether something listens."""
        return listens(self.port)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Does nothing if it already runs."""
        if self.running:
            return self
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port = self.port or free_port()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.directory, stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once; its log says why
            self._process.stdin.write(self.instructions())
            self._process.stdin.flush()
        deadline = time.monotonic() + self.start_seconds
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                tail = self.log.read_text(errors="replace").strip().splitlines()[-5:]
                raise EnvironmentProblem(f"{self.name} did not start", where=str(self.log), fix="\n".join(tail))
            time.sleep(0.02)
        return self

    def stop(self, *, kill: bool = False) -> None:
        """Returns when the process is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()

    def kill(self) -> None:
        """As a crash would have it."""
        self.stop(kill=True)

    def close(self) -> None:
        self.stop(kill=not self._keep)
        if not self._keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_port() -> int:
    """One that was free a moment ago."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different.

    They lie below those that the kernel gives to outgoing connections: a client anywhere on the machine could else take
    the port before the server does, or while the server restarts.
    """
    below = _first_outgoing_port()
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        while len(ports) < count:
            listener = stack.enter_context(socket.socket())
            try:
                listener.bind(("127.0.0.1", random.randrange(_FIRST_PORT, below) if below > 2 * _FIRST_PORT else 0))
            except OSError:  # somebody has it
                continue
            ports.append(int(listener.getsockname()[1]))
        return ports


def _first_outgoing_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return 0  # another system: the kernel chooses


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def speaks(port: int, greeting: bytes, answer: bytes, *, address: str = "127.0.0.1") -> bool:
    """Whether what listens there answers a greeting as it should: an open port is not yet a server that serves."""
    try:
        with socket.create_connection((address, port), 1) as connection:
            connection.settimeout(2)
            connection.sendall(greeting)
            return connection.recv(len(answer)).startswith(answer)
    except OSError:
        return False


def greets(port: int, greeting: bytes) -> bool:
    """Whether what listens there speaks first, and so."""
    return speaks(port, b"", greeting)
