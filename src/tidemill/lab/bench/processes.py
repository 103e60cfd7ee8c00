"""CPU time and memory of the processes of a run, by the part they play."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_LOOK_SECONDS = 1.0


class ProcessSampler:
    """Samples this process and all below it until `stop`. Parts: capture, workers (Spark's Python), jvm, driver. New
    processes are looked for once a second: to walk through all of the machine's takes 7 ms, which a bench on two cores
    would notice. What the looking itself costs is not counted."""

    def __init__(self, interval: float = 0.1) -> None:
        self._interval = interval
        self._stop = threading.Event()
        self._parts: dict[int, str] = {}
        self._cpu: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._rss: dict[str, int] = defaultdict(int)
        self._known: list[psutil.Process] = []
        self._looked = -_LOOK_SECONDS
        self._looking = 0.0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> ProcessSampler:
        self._sample(first=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._looked = -_LOOK_SECONDS
        self._sample()

    def cpu_seconds(self) -> dict[str, float]:
        """Since `start`, or since the process began."""
        used: dict[str, float] = defaultdict(float)
        for pid, seconds in self._cpu.items():
            used[self._parts[pid]] += seconds - self._first.get(pid, 0.0)
        used["driver"] -= self._looking
        return dict(used)

    def peak_rss_mb(self) -> dict[str, float]:
        """Of the largest process of each part. Shared pages of forked workers count in each of them."""
        return {part: size / 1e6 for part, size in self._rss.items()}

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self._sample()
            self._looking = time.thread_time()

    def _sample(self, *, first: bool = False) -> None:
        me = psutil.Process()
        if time.monotonic() - self._looked >= _LOOK_SECONDS:
            self._known, self._looked = [me, *me.children(recursive=True)], time.monotonic()
        for process in self._known:
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if process.pid not in self._parts:
                    self._parts[process.pid] = _part(process, me)
                times = process.cpu_times()
                self._cpu[process.pid] = times.user + times.system
                if first:
                    self._first[process.pid] = self._cpu[process.pid]
                part = self._parts[process.pid]
                self._rss[part] = max(self._rss[part], process.memory_info().rss)


def children() -> list[int]:
    """Processes that this one started and nobody has waited for. Cheaper than a walk through all of the machine."""
    if not sys.platform.startswith("linux"):
        return []
    tasks = Path(f"/proc/{os.getpid()}/task")
    while True:
        # The children of a thread that ends go to another one, which may have been asked already.
        with suppress(FileNotFoundError, ProcessLookupError):
            return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


def sizes() -> dict[str, list[int]]:
    """PSS in bytes of this process and each below it, by part: a page that several share counts once in all. Those of
    servers that a bench started are left out."""
    found: dict[str, list[int]] = defaultdict(list)
    for part, process in _own_processes():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            found[part].append(process.memory_full_info().pss)
    return dict(found)


def cpu_seconds() -> dict[int, tuple[str, float]]:
    """User and system time since each process began, by process: its part and the seconds."""
    found = {}
    for part, process in _own_processes():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            times = process.cpu_times()
            found[process.pid] = (part, times.user + times.system)
    return found


def _own_processes() -> Iterator[tuple[str, psutil.Process]]:
    me = psutil.Process()
    for process in [me, *me.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if (part := _part(process, me)) not in ("broker", "postgres", "other"):
                yield part, process


def _part(process: psutil.Process, me: psutil.Process) -> str:
    if process.pid == me.pid:
        return "driver"
    command = " ".join(process.cmdline())
    for mark, part in (("tidemill.capture", "capture"), ("kafka.Kafka", "broker"), ("bin/postgres", "postgres")):
        if mark in command:
            return part
    if "java" in process.name():
        return "jvm"
    return "workers" if "daemon" in command or "pyspark" in command else "other"


def peak_rss_mb(pid: int) -> float:
    """The kernel's own high-water mark, which no sampling can miss."""
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6
