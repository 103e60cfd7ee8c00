"""What pipelines hold and use over time: memory under load and over restarts, and memory, CPU and writes at rest.

All pipelines run in one Spark session. The first one gets rows, from a SQLite file or a PostgreSQL; the others, from
SQLite files, wait for changes that never come. Memory is PSS: a page that several processes share counts once. CPU is
user and system time, which depends less on what else the machine does than time by the clock.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill import config
from tidemill.errors import DeliveryError
from tidemill.lab.bench.processes import cpu_seconds, sizes
from tidemill.lab.bench.soak_load import AT_ONCE, PostgresLoad, SoakLoad, SqliteLoad
from tidemill.lab.servers.kafka import local_kafka
from tidemill.service.run.capture_fork_server import keep_fork_server
from tidemill.service.run.spark_session import begin_java
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime
from tidemill.telemetry import events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINKS = ("blackhole", "files", "kafka")
MODES = ("real_time", "micro_batch")
SOURCES = ("sqlite", "postgres")
_LIMIT_SECONDS = 900.0
_LOOK_SECONDS = 0.1


class SoakBench:
    def __init__(
        self, *, pipelines: int, mode: str, sink: str, minutes: float, restarts: int, rest_seconds: float, rows: int,
        say: Callable[[str], None], source: str = "sqlite",
    ) -> None:  # fmt: skip
        """`rows` are written before each restart, and again and again for `minutes`: as fast as they are delivered."""
        self._pipelines, self._mode, self._sink, self._say = pipelines, mode, sink, say
        self._source = source
        self._minutes, self._restarts, self._rest_seconds, self._rows = minutes, restarts, rest_seconds, rows
        self._samples: list[dict[str, Any]] = []
        self._written = 0

    def run(self, spark: SparkSession | None = None) -> dict[str, Any]:
        """In a session of its own, or in the one that is given."""
        with ExitStack() as stack:
            self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-")))
            if spark is None:
                events.configure(stream=stack.enter_context((self._folder / "events.log").open("w")))
            loaded = self._documents(stack)
            if self._pipelines > 1:
                stack.enter_context(keep_fork_server())  # as `serve`, where many pipelines run
            java = begin_java(loaded) if spark is None else None  # as `run`
            self._runtime = stack.enter_context(Runtime(spark=spark, java=java))
            self._names = [self._runtime.add(pipeline) for pipeline in loaded]
            self._begin = time.monotonic()
            before = cpu_seconds()
            self._runtime.start(*self._names)
            self._until(self._all_stand, "not every pipeline streams")  # rows that come before would not be captured
            self._deliver(AT_ONCE)
            started = _difference(cpu_seconds(), before)
            self._sample("started")
            end = time.monotonic() + 60 * self._minutes
            while time.monotonic() < end:
                self._deliver(self._rows)
                self._sample("load")
            for _ in range(self._restarts):
                self._runtime.restart(self._names[0])
                self._deliver(self._rows)
                self._sample("restart")
            return {
                "pipelines": self._pipelines, "mode": self._mode, "source": self._source, "sink": self._sink,
                "rows": self._written, "start_cpu_seconds": started, "rest": self._rest(), "samples": self._samples,
            }  # fmt: skip

    def _documents(self, stack: ExitStack) -> list[config.Pipeline]:
        settings = {"blackhole": "", "files": f"directory: {self._folder / 'out'}", "kafka": ""}
        if self._sink == "files":
            (self._folder / "out").mkdir()
        if self._sink == "kafka":
            broker = local_kafka(self._folder / "kafka", Path(".services/kafka").absolute())
            stack.callback(broker.stop)
            settings["kafka"] = f"brokers: '{broker.bootstrap}', topic: soak"
        loaded = []
        for number in range(self._pipelines):
            name = f"soak-{number:04}"
            load: SoakLoad
            if self._source == "postgres" and not number:
                load = PostgresLoad(stack, name)
            else:
                load = SqliteLoad(self._folder / f"{name}.db", name)
            if not number:
                self._load = load
            sink = self._sink if not number else "blackhole"
            document = self._folder / f"{name}.yaml"
            document.write_text(f"""
metadata: {{name: {name}}}
spec:
  source: {load.source}
  sinks: [{{type: {sink}, config: {{id: out-{number:04}, {settings[sink]}}}}}]
  trigger: {{mode: {self._mode}}}
  state_dir: {self._folder / "state"}
""")
            loaded += config.load(document)
        self._state = self._folder / "state"
        return loaded

    # ---------------------------------------------------------------- phases

    def _deliver(self, rows: int) -> None:
        """Returns when the first pipeline's sink has them."""
        self._written = self._load.write(rows)
        self._until(self._is_delivered, "the rows were not delivered")

    def _is_delivered(self) -> bool:
        return self._runtime.status(self._names[0]).sinks[0].offset >= self._written

    def _all_stand(self) -> bool:
        return all(each.stage == "cdc" and each.lanes_stand for each in self._runtime.statuses())

    def _rest(self) -> dict[str, Any]:
        """CPU by part while nothing happens, and the files under the state directory that were written all the same."""
        if not self._rest_seconds:
            return {}
        self._until(self._is_quiet, "files of the state directory do not come to rest")
        before, files, began = cpu_seconds(), self._files(), time.monotonic()
        time.sleep(self._rest_seconds)
        seconds = time.monotonic() - began
        used = _difference(cpu_seconds(), before)
        after = self._files()
        self._sample("rest")
        return {
            "seconds": round(seconds, 1), "cpu_seconds": used,
            "cpu_percent": round(100 * sum(used.values()) / seconds, 2),
            "written": sorted(name for name in files | after if files.get(name) != after.get(name)),
        }  # fmt: skip

    def _is_quiet(self) -> bool:
        before = self._files()
        time.sleep(1.0)
        return before == self._files()

    def _files(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path in self._state.rglob("*"):
            if path.is_file():
                seen = path.stat()
                found[str(path.relative_to(self._state))] = (seen.st_mtime_ns, seen.st_size)
        return found

    def _sample(self, phase: str) -> None:
        parts = sizes()
        sample = {"at": round(time.monotonic() - self._begin, 1), "phase": phase, "rows": self._written}
        sample |= {"mb": {part: round(sum(each) / 1e6, 1) for part, each in parts.items()}}
        sample |= {"processes": {part: len(each) for part, each in parts.items()}}
        sample |= {"largest_worker_mb": round(max(parts.get("workers", [0])) / 1e6, 1)}
        sample |= {"total_mb": round(sum(map(sum, parts.values())) / 1e6, 1)}
        self._samples.append(sample)
        self._say(f"  {sample['at']:>7} s  {phase:<8} {sample['total_mb']:>8} MB  largest worker "
                  f"{sample['largest_worker_mb']} MB")  # fmt: skip

    def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _LIMIT_SECONDS
        while not condition():
            for status in self._runtime.statuses():
                if status.state is State.FAILED:
                    raise self._runtime.error(status.name) or DeliveryError(otherwise, where=status.name)
            if time.monotonic() > deadline:
                raise DeliveryError(f"the bench stopped: {otherwise}", where="tidemill bench soak")
            time.sleep(_LOOK_SECONDS)


def _difference(after: dict[int, tuple[str, float]], before: dict[int, tuple[str, float]]) -> dict[str, float]:
    """By part; what a process that has ended meanwhile used is not known."""
    used: dict[str, float] = {}
    for pid, (part, seconds) in after.items():
        used[part] = used.get(part, 0.0) + seconds - before.get(pid, ("", 0.0))[1]
    return {part: round(seconds, 2) for part, seconds in used.items()}
