"""The process that holds a lease, as another one on the same machine sees it: is it there, and how is it ended.

A frozen process (SIGSTOP, a debugger) keeps its file locks while its leases go to others. Nothing that it does after it
wakes up may meet what its successor does, and a lock that it holds cannot be taken away. So the successor ends it: a
dead process writes nothing.
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import orjson

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class LeaseProcess:
    """`machine` is the boot of a kernel and the process namespace: where both are ours, `pid` means the same to us.
    `started` tells a process from a later one of the same number."""

    host: str
    pid: int
    machine: str
    started: str

    @classmethod
    def own(cls) -> LeaseProcess:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> LeaseProcess:
        """A process of this machine that is there now."""
        return cls(socket.gethostname(), pid, _machine(), _start_time(pid))

    @classmethod
    def read(cls, text: str) -> LeaseProcess | None:
        """None for what an unknown version has written."""
        try:
            return cls(**orjson.loads(text))
        except (orjson.JSONDecodeError, TypeError):
            return None

    def write(self) -> str:
        return orjson.dumps(asdict(self)).decode()

    def __str__(self) -> str:
        return f"{self.host} pid {self.pid}"

    @property
    def is_here(self) -> bool:
        return bool(self.machine) and self.machine == _machine()

    @property
    def is_gone(self) -> bool:
        """Certainly; of a process elsewhere nobody knows."""
        return self.is_here and _start_time(self.pid) != self.started

    def end(self) -> bool:
        """Kills it with the processes that it started, which may be frozen too. False if it is elsewhere, or not ours
        to end."""
        if not self.is_here or self.pid == os.getpid():
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if _start_time(self.pid) != self.started:  # looked at while the handle keeps the number from being reused
                return True
            for child in reversed(_descendants(self.pid)):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        finally:
            os.close(handle)
        return True


def _machine() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold spaces: state, parent, …; none if there is no such process."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start_time(pid: int) -> str:
    """In ticks since the machine's start; empty if it is not there, or only waits to be reaped."""
    found = _stat(pid)
    return found[19] if found and found[0] not in "ZX" else ""


def _descendants(pid: int) -> list[int]:
    """Parents before their children."""
    parents = {int(each.name): _stat(int(each.name))[1:2] for each in _PROC.iterdir() if each.name.isdigit()}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == [str(each)]]
    return found[1:]
