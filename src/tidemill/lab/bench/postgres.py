"""PostgreSQL to blackhole and to Kafka, beside `pg_recvlogical` that throws the same WAL away.

Every run drains the same backlog through a replication slot of its own. Runs alternate (baseline, blackhole, Kafka,
baseline, ...) and medians are compared, so that a slow minute of the machine hits all of them. Clocks of a pipeline
run start when capture begins to stream and end when the last batch has its checkpoint; Spark is warm by then, as it is
in a pipeline that runs for days. The first of the trigger's modes is what the result is about; of others it has the
speed, under the same keys with the mode before them.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tidemill import config
from tidemill.lab.bench import load
from tidemill.lab.bench.drain import LIMIT_SECONDS, drain
from tidemill.lab.bench.scratch import ScratchBench
from tidemill.lab.servers.kafka import Broker, Mock, local_kafka
from tidemill.log.reader import LogReader
from tidemill.service.run.spark_session import slots
from tidemill.stream.report import BatchReport
from tidemill.stream.spark.session import create_session, warm_up

_BLACKHOLE = "{type: blackhole, config: {id: nowhere}}"
_PARTS = ("capture", "workers", "jvm", "driver", "broker")


class Bench(ScratchBench):
    """One server, one Spark session, many runs. Everything it started is gone when it is closed."""

    def __init__(
        self, *, rows: int, rounds: int, kafka: bool, modes: Sequence[str], say: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.rows, self.rounds, self.kafka, self._say = rows - rows % 1000, rounds, kafka, say
        self.mode = modes[0]
        sinks = ("blackhole", *(("kafka",) if kafka else ()))
        self._runs = {f"{mode}_{sink}" if mode != self.mode else sink: (mode, sink) for mode in modes for sink in sinks}

    def _start(self) -> None:
        self._database = self._stack.enter_context(load.server())
        self._broker: Broker | Mock | None = None
        if self.kafka:
            self._broker = local_kafka(self._scratch / "kafka", Path(".services/kafka").absolute())
            self._stack.callback(self._broker.stop)
        master, conf = slots("local[*]", ample=True)
        self._spark = create_session("tidemill bench", master=master, conf=conf)
        self._stack.callback(self._spark.stop)
        warm_up(self._spark)

    def run(self, *, large: int, latency_seconds: float) -> dict[str, Any]:
        kinds = ["baseline", *self._runs]
        named = {kind: [f"{kind}_{i}" for i in range(self.rounds)] for kind in kinds}
        load.prepare(self._database, ["warm", *(slot for names in named.values() for slot in names)])
        self._say(f"making {self.rows:,} row changes")
        self._end = load.change(self._database, self.rows)
        self._say("warming up")
        self._drain("warm", _BLACKHOLE)
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        facts: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for i in range(self.rounds):
            for kind in kinds:
                if kind == "baseline":
                    seconds[kind].append(self._baseline(named[kind][i]))
                else:
                    mode, sink = self._runs[kind]
                    spent, fact = self._drain(named[kind][i], self._sink(sink, f"{kind}_{i}"), mode=mode)
                    seconds[kind].append(spent)
                    facts[kind].append(fact)
                self._say(f"  round {i + 1} {kind:<21} {self.rows / seconds[kind][-1]:>10,.0f} rows/s")
        result = self._summary(seconds, facts)
        if large:
            self._say(f"one transaction of {large:,} rows")
            result |= self._large(large)
        if latency_seconds:
            self._say(f"1,000 events/s for {latency_seconds:.0f} s")
            result |= self._latency(latency_seconds)
        return result

    def _sink(self, kind: str, topic: str) -> str:
        if kind == "blackhole":
            return _BLACKHOLE
        assert self._broker is not None
        return f"{{type: kafka, config: {{id: kafka, brokers: '{self._broker.bootstrap}', topic: {topic}}}}}"

    def _baseline(self, slot: str) -> float:
        """The database's own client: the same plugin, publication and protocol, straight to /dev/null."""
        command = [
            str(self._database.bin_dir / "pg_recvlogical"), "--dbname", self._database.dsn(), "--slot", slot, "--start",
            "--file", "/dev/null", "--no-loop", "--endpos", self._end, "--fsync-interval", "0",
            "--option", "proto_version=4", "--option", f"publication_names={load.PUBLICATION}",
        ]  # fmt: skip
        began = time.monotonic()
        subprocess.run(command, check=True, capture_output=True, timeout=LIMIT_SECONDS)
        return time.monotonic() - began

    def _drain(
        self, slot: str, sink: str, events_expected: int | None = None, mode: str = "", more: str = ""
    ) -> tuple[float, dict[str, Any]]:
        return drain(self._pipeline(slot, sink, mode or self.mode, more), self._spark, events_expected or self.rows)

    def _pipeline(self, slot: str, sink: str, mode: str, more: str) -> config.Pipeline:
        self._counter += 1
        document = self._scratch / f"{slot}.yaml"
        document.write_text(f"""
metadata: {{name: {slot.replace("_", "-")}-{self._counter}}}
spec:
  source:
    type: postgres
    config: {{id: bench, dsn: "{self._database.dsn()}", tables: [public.bench], slot: {slot}, publication: bench}}
  sinks: [{sink}]
  trigger: {{mode: {mode}}}
  state_dir: {self._scratch / "state"}
  {more}
""")
        return config.load(document)[0]

    def _summary(self, seconds: dict[str, list[float]], facts: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
        speed = {kind: self.rows / median(values) for kind, values in seconds.items()}
        black = facts["blackhole"]

        def micros(part: str, kind: str = "blackhole") -> float:
            return round(median(f["cpu"].get(part, 0.0) for f in facts[kind]) / self.rows * 1e6, 3)

        return {
            "mode": self.mode,
            "rows": self.rows,
            "rounds": self.rounds,
            "server": f"PostgreSQL {self._database.version}",
            "baseline_rows_per_s": round(speed["baseline"]),
            "blackhole_rows_per_s": round(speed["blackhole"]),
            "kafka_rows_per_s": round(speed["kafka"]) if "kafka" in speed else None,
            "ratio_blackhole": round(speed["blackhole"] / speed["baseline"], 3),
            "ratio_kafka": round(speed["kafka"] / speed["baseline"], 3) if "kafka" in speed else None,
            **{f"{kind}_rows_per_s": round(speed[kind]) for kind, (mode, _) in self._runs.items() if mode != self.mode},
            "capture_us_per_row": micros("capture"),
            "worker_us_per_row": micros("workers"),
            "jvm_us_per_row": micros("jvm"),
            "driver_us_per_row": micros("driver"),
            "kafka_us_per_row": {part: micros(part, "kafka") for part in _PARTS} if self.kafka else None,
            "capture_peak_rss_mb": round(max(f["capture_hwm"] for f in black)),
            "peak_rss_mb": {part: round(max(f["rss"].get(part, 0) for f in black)) for part in black[0]["rss"]},
            "batches": [f["batches"] for f in black],
            "kafka": {Broker: "broker", Mock: "mock"}.get(type(self._broker)) if self._broker else None,
            "latency_p50_ms": None,
            "latency_p99_ms": None,
            "seconds": {kind: [round(s, 2) for s in values] for kind, values in seconds.items()},
        }

    def _large(self, rows: int) -> dict[str, Any]:
        """Capture's memory while a transaction passes that is larger than it."""
        self._database.query("SELECT pg_create_logical_replication_slot('large', 'pgoutput')")
        load.large_transaction(self._database, rows)
        spent, fact = self._drain("large", _BLACKHOLE, events_expected=rows)
        return {
            "large_transaction_rows": rows,
            "large_transaction_rows_per_s": round(rows / spent),
            "capture_peak_rss_mb": round(fact["capture_hwm"]),
        }

    def _latency(self, seconds: float) -> dict[str, Any]:
        """From the server's commit clock to the end of the batch that delivered the event, checkpoint included, in real
        time."""
        self._database.query("SELECT pg_create_logical_replication_slot('latency', 'pgoutput')")
        with load.client(self._database.dsn(), 1000, seconds + 10):
            expected, more = int(1000 * (seconds + 9)), "log: {retention_seconds: 3600}"
            _, fact = self._drain("latency", _BLACKHOLE, events_expected=expected, mode="real_time", more=more)
        waits = _waits(fact["log"], fact["reports"], skip_events=10_000)
        return {
            "latency_p50_ms": round(float(np.percentile(waits, 50)), 1),
            "latency_p99_ms": round(float(np.percentile(waits, 99)), 1),
            "latency_events": len(waits),
        }


def _waits(log_uri: str, reports: list[tuple[float, BatchReport]], skip_events: int) -> np.ndarray[Any, Any]:
    """Milliseconds from commit to delivery of each event, without the first ones (they met a cold start)."""
    log = LogReader(log_uri)
    waits = []
    for arrived, report in reports:
        if report.start < skip_events:
            continue
        for ref in log.refs(report.start, report.end):
            commit = log.read(ref).column("commit_time").to_numpy(zero_copy_only=False).astype("datetime64[us]")  # type: ignore[union-attr]
            waits.append(arrived * 1000 - commit.astype(np.int64) / 1000)
    return np.concatenate(waits)
