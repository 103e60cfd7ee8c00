"""Snapshots of PostgreSQL and MySQL: into the log, to blackhole and to PostgreSQL, beside the server's own client that
throws the same rows away, with as many connections.

Runs take turns (discarded copy, log, blackhole, discarded copy, ...) and medians are compared. The clock of a run
starts when capture streams, and ends when the last row is in the log, or has its checkpoint. What takes long or is done
several times (PostgreSQL as the destination, verify, 1 to 4 tasks) is measured with the first fifth of the rows. The
first round is always whole; others are made while there is time. The trigger's mode is real time unless the caller says
otherwise.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from statistics import median
from typing import Any

from tidemill import config
from tidemill.capture.portions import QUIET_SECONDS
from tidemill.errors import SourceError
from tidemill.lab.bench import load
from tidemill.lab.bench.copied import CopiedServer, MysqlCopied, PostgresCopied
from tidemill.lab.bench.copy_latency import measure_latency
from tidemill.lab.bench.drain import LIMIT_SECONDS, drain
from tidemill.lab.bench.processes import ProcessSampler, peak_rss_mb
from tidemill.lab.bench.scratch import ScratchBench
from tidemill.log.reader import LogReader
from tidemill.service.run.capture_process import CaptureProcess
from tidemill.service.snapshot.driver import SnapshotDriver
from tidemill.service.snapshot.plan import begin_if_due
from tidemill.service.verify.audit import VerifyOptions, verify
from tidemill.stream.spark.session import create_session, warm_up

_TASKS = 4  # how far the figure goes
_BLACKHOLE = "{type: blackhole, config: {id: nowhere}}"
_LARGEST = ("capture", "workers")
_PART = 5
_LATENCY_SECONDS = 5.0
_REST_SECONDS = QUIET_SECONDS + 0.5  # a copy beside changes is slower, and what warms up the stream is a change


class SnapshotBench(ScratchBench):
    """Everything it started is gone when it is closed."""

    def __init__(
        self, *, kinds: Sequence[str], rows: int, wide_rows: int, rounds: int, connections: int, seconds: float,
        mode: str, say: Callable[[str], None],
    ) -> None:  # fmt: skip
        """No round begins that would probably end after `seconds`."""
        super().__init__()
        self.kinds, self.rows, self.wide_rows, self.rounds = tuple(kinds), rows, wide_rows, rounds
        self.connections, self.seconds, self.mode = connections, seconds, mode
        self.part = max(1, rows // _PART)
        self._began = time.monotonic()
        self._report = say

    def _start(self) -> None:
        self._say(f"filling: {self.rows:,} rows of 8 columns, {self.wide_rows:,} of 40")
        with ThreadPoolExecutor(len(self.kinds)) as beside:
            filled = [beside.submit(self._fill, kind) for kind in self.kinds]
            self._target = self._stack.enter_context(load.server())
            self._spark = create_session("tidemill bench", master=f"local[{max(_TASKS, self.connections) + 1}]")
            self._stack.callback(self._spark.stop)
            warm_up(self._spark)
            self._servers = dict(zip(self.kinds, [each.result() for each in filled], strict=True))

    def run(self, kind: str) -> dict[str, Any]:
        """Of one kind of server; keys of MySQL's begin with its name."""
        server = self._servers[kind]
        self._say(f"{server.title}: warming up")
        # With all rows: a virtual machine pays for memory that it has not used before, by far the most of what a page
        # of a new file costs.
        self._log(server, "bench", self.rows)
        result = self._narrow(server, last=kind == self.kinds[-1])
        result |= self._wide(server) | self._scale(server) | self._postgres(server, result["copy_rows_per_s"])
        result["peak_rss_mb"] = round(max(result["peak_rss_mb_by_part"].values()))
        if isinstance(server, PostgresCopied):
            result |= self._latency(server)
        return result if kind == "postgres" else {f"{kind}_{key}": value for key, value in result.items()}

    def _say(self, text: str) -> None:
        self._report(f"{time.monotonic() - self._began:5.0f} s  {text}")

    def _fill(self, kind: str) -> CopiedServer:
        server: CopiedServer = PostgresCopied(self._stack) if kind == "postgres" else MysqlCopied(self._stack)
        for table, rows in (("bench", self.rows), ("part", self.part), ("wide", self.wide_rows)):
            server.fill(table, rows)
        self._say(f"{server.title}: filled")
        return server

    def _narrow(self, server: CopiedServer, *, last: bool) -> dict[str, Any]:
        seconds: dict[str, list[float]] = {"copy": [], "log": [], "blackhole": []}
        largest: dict[str, float] = {}
        # What comes afterwards, of this server and of the next, takes its time too.
        deadline = self._began + self.seconds * (0.75 if last else 0.35)
        for number in range(self.rounds):
            began = time.monotonic()
            seconds["copy"].append(self._discard(server, "bench", self.rows))
            for kind, measure in (("log", self._log), ("blackhole", self._deliver)):
                took, memory = measure(server, "bench", self.rows)
                seconds[kind].append(took)
                _grow(largest, memory)
            rates = ", ".join(f"{kind} {self.rows / spent[-1]:,.0f}" for kind, spent in seconds.items())
            self._say(f"{server.title}: round {number + 1}, rows/s: {rates}")
            if time.monotonic() + (time.monotonic() - began) > deadline:
                break
        speed = {kind: self.rows / median(spent) for kind, spent in seconds.items()}
        return {
            "server": server.title,
            "rows": self.rows,
            "rounds": len(seconds["copy"]),
            "connections": self.connections,
            "mode": self.mode,
            "rows_per_s": round(speed["log"]),
            "copy_rows_per_s": round(speed["copy"]),
            "blackhole_rows_per_s": round(speed["blackhole"]),
            "ratio_copy_log": round(speed["log"] / speed["copy"], 3),
            "ratio_copy_blackhole": round(speed["blackhole"] / speed["copy"], 3),
            "peak_rss_mb_by_part": {part: round(size) for part, size in largest.items()},
            "seconds": {kind: [round(s, 2) for s in spent] for kind, spent in seconds.items()},
        }

    def _wide(self, server: CopiedServer) -> dict[str, Any]:
        copy = self._discard(server, "wide", self.wide_rows)
        log, memory = self._log(server, "wide", self.wide_rows)
        self._say(f"{server.title}: wide, rows/s: copy {self.wide_rows / copy:,.0f}, log {self.wide_rows / log:,.0f}")
        return {
            "wide_rows": self.wide_rows,
            "wide_rows_per_s": round(self.wide_rows / log),
            "wide_ratio_copy_log": round(copy / log, 3),
            "wide_peak_rss_mb": round(max(memory.values())),
        }

    def _scale(self, server: CopiedServer) -> dict[str, Any]:
        """Rows a second with 1 to 4 tasks, and of the discarded copy with as many connections."""
        found = {}
        for tasks in range(1, _TASKS + 1):
            copy = self._discard(server, "part", self.part, tasks)
            log, _ = self._log(server, "part", self.part, tasks)
            found[str(tasks)] = {"rows_per_s": round(self.part / log), "copy_rows_per_s": round(self.part / copy)}
            self._say(
                f"{server.title}: {tasks} tasks, rows/s: copy {self.part / copy:,.0f}, log {self.part / log:,.0f}"
            )
        return {"scale": found}

    def _postgres(self, server: CopiedServer, copy: int) -> dict[str, Any]:
        """To PostgreSQL, whose rows are then compared with the source's."""
        place = f"copy{self._counter}"
        self._target.query(f"CREATE DATABASE {place}")
        document = f"{{type: postgres, config: {{id: copy, dsn: '{self._target.dsn(place)}'}}}}"
        pipeline, slot = self._pipeline(server, "part", document)
        spent, _ = drain(pipeline, self._spark, self.part, rest_seconds=_REST_SECONDS)
        speed = self.part / spent
        self._say(f"{server.title}: to PostgreSQL, rows/s: {speed:,.0f}")
        compared = self._verify(server, pipeline)
        self._forget(server, pipeline, slot)
        self._target.query(f"DROP DATABASE {place} WITH (FORCE)")
        ratio = round(speed / copy, 3)
        return {"part_rows": self.part, "postgres_rows_per_s": round(speed), "ratio_copy_postgres": ratio} | compared

    def _latency(self, server: PostgresCopied) -> dict[str, Any]:
        pipeline, slot = self._pipeline(server, "bench", _BLACKHOLE, mode="never", more="retention_seconds: 3600, ")
        found = measure_latency(pipeline, self._spark, server.database, server.tables["bench"], _LATENCY_SECONDS)
        self._say(
            f"{server.title}: p50 {found['latency_p50_ms']} ms, {found['latency_during_p50_ms']} ms while copying"
        )
        self._forget(server, pipeline, slot)
        return found

    def _discard(self, server: CopiedServer, table: str, rows: int, connections: int | None = None) -> float:
        began = time.monotonic()
        server.discard(table, rows, connections or self.connections)
        return time.monotonic() - began

    def _log(
        self, server: CopiedServer, table: str, rows: int, tasks: int | None = None
    ) -> tuple[float, dict[str, float]]:
        """Seconds until the last row is in the log, without any stream; and the largest process of each part."""
        pipeline, slot = self._pipeline(server, table, _BLACKHOLE, tasks)
        capture = CaptureProcess(pipeline)
        watch = ProcessSampler()
        with closing(pipeline.build_state()) as state:
            begin_if_due(pipeline, state)
            driver = SnapshotDriver(pipeline, self._spark, state)
            try:
                capture.start()
                deadline = time.monotonic() + LIMIT_SECONDS
                while (status := capture.watch()) is None or not status.streaming_since:
                    _check(deadline, pipeline.name)
                log = LogReader(pipeline.log_uri)
                watch.start()
                began = time.monotonic()
                driver.start()
                while log.tail().offset < rows:
                    capture.watch()
                    _check(deadline, pipeline.name)
                spent = time.monotonic() - began
                watch.stop()
                assert capture.pid is not None
                memory = watch.peak_rss_mb() | {"capture": peak_rss_mb(capture.pid)}
            finally:
                driver.stop()
                capture.stop()
        self._forget(server, pipeline, slot)
        return spent, {part: size for part, size in memory.items() if part in _LARGEST}

    def _deliver(self, server: CopiedServer, table: str, rows: int) -> tuple[float, dict[str, float]]:
        """Seconds until everything is delivered to blackhole, and memory."""
        pipeline, slot = self._pipeline(server, table, _BLACKHOLE)
        spent, fact = drain(pipeline, self._spark, rows, rest_seconds=_REST_SECONDS)
        memory = {part: size for part, size in fact["rss"].items() if part in _LARGEST}
        self._forget(server, pipeline, slot)
        return spent, memory | {"capture": fact["capture_hwm"]}

    def _verify(self, server: CopiedServer, pipeline: config.Pipeline) -> dict[str, float]:
        began = time.monotonic()
        (verdict,) = verify(pipeline, options=VerifyOptions(wait_seconds=10))
        spent = time.monotonic() - began
        if not verdict.is_equal:
            raise SourceError(f"the copy differs: {verdict.error or len(verdict.keys)}", where=pipeline.name)
        began = time.monotonic()
        server.digest("part")
        plain = time.monotonic() - began
        self._say(f"{server.title}: verify {spent:.1f} s, count and checksum in SQL of one side {plain:.1f} s")
        return {"verify_seconds": round(spent, 2), "sql_digest_seconds": round(plain, 2)}

    def _forget(self, server: CopiedServer, pipeline: config.Pipeline, slot: str) -> None:
        server.forget(slot)
        shutil.rmtree(pipeline.state_path)

    def _pipeline(
        self, server: CopiedServer, table: str, sink: str, tasks: int | None = None, *, mode: str = "always",
        more: str = "",
    ) -> tuple[config.Pipeline, str]:  # fmt: skip
        """Its log holds nothing back: what is measured is the copy."""
        self._counter += 1
        slot = f"bench_{self._counter}"
        document = self._scratch / "bench.yaml"
        document.write_text(f"""
metadata: {{name: bench-{self._counter}}}
spec:
  source:
    type: {server.kind}
    config:
      id: bench-{self._counter}
      tables: [{server.tables[table]}]
      snapshot: {{mode: {mode}, max_connections: {tasks or self.connections}}}
      {server.source(slot).replace(", ", f"{chr(10)}      ")}
  sinks: [{sink}]
  trigger: {{mode: {self.mode}}}
  state_dir: {self._scratch / "state"}
  log: {{{more}max_bytes: 200000000000}}
""")
        return config.load(document)[0], slot


def _check(deadline: float, pipeline: str) -> None:
    if time.monotonic() > deadline:
        raise SourceError("the bench run did not finish", where=pipeline)
    time.sleep(0.02)


def _grow(largest: dict[str, float], memory: dict[str, float]) -> None:
    for part, size in memory.items():
        largest[part] = max(largest.get(part, 0.0), size)
