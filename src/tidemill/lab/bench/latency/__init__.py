"""From PostgreSQL's commit to the checkpoint that covers it, hop by hop, at given rates and into given sinks.

    commit -> logged      WAL sender, socket, decoding, the block on disk
    logged -> taken       its index record on disk, noticed by the driver, admitted, and pinned
    taken -> delivered    to the lane, encoded, written, acknowledged by the sink, and back
    delivered -> saved    the checkpoint on disk, and what follows from it

A tenth of the appends is traced besides, and these hops are told step by step (`lab/bench/latency/steps.py`).

The first clock is the server's at commit, the others are those of this machine, where the server runs too. All events
of a batch share its later hops. Percentiles are over events. On a cluster (`lab/bench/latency/place.py`) the log is on
S3, and a block counts as logged before its index record is put: that request belongs to the second hop. What the
machine takes without a pipeline, for a durable write and for a delivery to the same broker, is told beside it
(`lab/bench/latency/alone.py`).
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tidemill import config
from tidemill.errors import ConfigError, DeliveryError
from tidemill.lab.bench import load
from tidemill.lab.bench.drain import LIMIT_SECONDS, Observed, prime
from tidemill.lab.bench.latency.alone import time_deliveries, time_writes
from tidemill.lab.bench.latency.place import BenchPlace
from tidemill.lab.bench.processes import ProcessSampler
from tidemill.lab.servers.kafka import local_kafka
from tidemill.lab.servers.valkey import Valkey
from tidemill.log.entry import BlockRef
from tidemill.log.reader import LogReader
from tidemill.service.run.status import State
from tidemill.stream.report import BatchReport
from tidemill.stream.spark.session import create_session, warm_up
from tidemill.telemetry import events
from tidemill.telemetry.tracer import open_tracer

if TYPE_CHECKING:
    from tidemill.lab.servers.collector import Collector

SINKS = ("blackhole", "kafka", "postgres", "redis")
CLUSTER_SINKS = ("blackhole", "kafka")
HOPS = ("commit_to_logged", "logged_to_taken", "taken_to_delivered", "delivered_to_saved", "total")
PARTS = ("encode", "write", "way")
"""Of `taken_to_delivered`, of the slowest receipt: encoding, sending until the sink has answered, and the rest, which
is the way to the lane and back and reading the log there."""
_PERCENTILES = {"p50": 50.0, "p99": 99.0, "p99_9": 99.9}
_WARM_SECONDS = 4.0
# To look at all processes takes milliseconds, in the process whose latency is measured.
_SAMPLE_SECONDS = 5.0
_WATCH_SECONDS = 0.1  # as the supervisor does
_TRACED = 0.1  # of the appends: of them all, a batch would take a fraction of a millisecond longer
_EXPORT_MILLISECONDS = 200
_ALONE_SECONDS = 5.0


class LatencyBench:
    """One server, one Spark session, a pipeline per sink and mode; everything is gone afterwards."""

    def __init__(
        self, *, sinks: Sequence[str] = (), modes: Sequence[str], rates: Sequence[int], seconds: float,
        say: Callable[[str], None], cluster: bool = False, at_once: int | None = None,
    ) -> None:  # fmt: skip
        """`at_once`: events of one commit, so that they come in bursts; a hundredth of the rate by default."""
        known = CLUSTER_SINKS if cluster else SINKS
        if unknown := [sink for sink in sinks if sink not in known]:
            raise ConfigError(f"no latency is measured to {', '.join(unknown)}", fix=f"Choose of: {', '.join(known)}.")
        self._sinks, self._cluster = sinks or known, cluster
        self._modes, self._rates, self._seconds, self._say = modes, rates, seconds, say
        self._at_once = at_once
        self._bootstrap = ""  # of the Kafka, where there is one

    def run(self) -> dict[str, Any]:
        with ExitStack() as stack:
            self._scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemill-bench-")))
            events.configure(stream=stack.enter_context((self._scratch / "events.log").open("w")))
            self._database = stack.enter_context(load.server())
            self._place = BenchPlace.cluster(stack) if self._cluster else BenchPlace()
            settings = {sink: self._settings(sink, stack) for sink in self._sinks}
            spark = create_session("tidemill bench", master=self._place.master, conf=self._place.conf)
            stack.callback(spark.stop)
            warm_up(spark)
            load.prepare(self._database, [])
            self._collector = stack.enter_context(_tracing(self._say))
            if (tracer := open_tracer()) is not None:
                stack.callback(tracer.close)
            self._tracer = tracer
            measured = []
            for mode in self._modes:
                for sink in self._sinks:
                    measured += self._measure(spark, mode, sink, settings[sink])
            return {
                "server": f"PostgreSQL {self._database.version}",
                "place": self._place.label,
                "seconds": self._seconds,
                "at_once": self._at_once,
                "measured": measured,
                "alone": [self._alone(rate) for rate in self._rates],
            }

    def _settings(self, sink: str, stack: ExitStack) -> str:
        match sink:
            case "kafka":
                cache = Path(".services/kafka").absolute()
                broker = local_kafka(self._scratch / "kafka", cache, address=self._place.address)
                stack.callback(broker.stop)
                self._bootstrap = broker.bootstrap
                return f"brokers: '{broker.bootstrap}', topic: latency"
            case "postgres":
                copy = stack.enter_context(self._database.database("copy"))
                return f"dsn: '{copy}'"
            case "redis":
                server = stack.enter_context(Valkey())
                return f"uri: '{server.uri}', stream: latency, maxlen: 100000"
            case _:
                return ""

    def _measure(self, spark: Any, mode: str, sink: str, settings: str) -> list[dict[str, Any]]:
        slot = f"{mode}_{sink}"
        document = self._scratch / f"{slot}.yaml"
        log = {"retention_seconds": 3600, "uri": self._place.log_uri(slot)}
        document.write_text(f"""
metadata: {{name: {slot.replace("_", "-")}}}
spec:
  source:
    type: postgres
    config: {{id: bench, dsn: "{self._database.dsn()}", tables: [public.bench], slot: {slot}, publication: bench}}
  sinks: [{{type: {sink}, config: {{id: out, {settings}}}}}]
  trigger: {{mode: {mode}}}
  log: {json.dumps({name: value for name, value in log.items() if value})}
  state_dir: {self._scratch / "state"}
""")
        pipeline = config.load(document)[0]
        reports: list[tuple[float, BatchReport]] = []
        run = Observed(pipeline, spark, lambda report: reports.append((time.time(), report)), self._tracer)
        found = []
        try:
            prime(pipeline.log_uri)
            self._await(run, lambda: bool(reports), watch=run.start_stream)  # no capture yet
            load.make_slot(self._database, slot)  # not before: it would have what others were offered
            run.start()
            for rate in self._rates:
                self._offer(run, rate, _WARM_SECONDS)  # a broker that nobody wrote to compiles what it does more often
                reports.clear()
                since = time.time_ns()
                self._say(f"{mode}, {sink}: {rate:,} events/s for {self._seconds:.0f} s")
                watch = ProcessSampler(interval=_SAMPLE_SECONDS).start()
                self._offer(run, rate, self._seconds)
                watch.stop()
                fact = {"mode": mode, "sink": sink, "rate": rate, "batches": len(reports)}
                fact |= summary(pipeline.log_uri, reports) | {"cpu_seconds": watch.cpu_seconds()}
                found.append(fact | {"steps": self._steps(since)})
        finally:
            run.stop()
        return found

    def _offer(self, run: Observed, rate: int, seconds: float) -> None:
        """Returns when the last of these events has its checkpoint."""
        at_once = self._events_at_once(rate)
        due = run.delivered + load.count(rate, seconds, at_once)
        with load.client(self._database.dsn(), rate, seconds, at_once) as client:
            self._await(run, lambda: bool(client.exitcode) or run.delivered >= due)
            if client.exitcode:
                raise DeliveryError("the load did not come to its end", where=run.pipeline.name)

    def _events_at_once(self, rate: int) -> int:
        return self._at_once or max(1, rate // 100)

    def _alone(self, rate: int) -> dict[str, Any]:
        """Nothing of a pipeline runs any more."""
        at_once, seconds = self._events_at_once(rate), min(self._seconds, _ALONE_SECONDS)
        often = rate / at_once
        found: dict[str, Any] = {"rate": rate, "write": _percentiles(time_writes(self._scratch, often, seconds))}
        if self._bootstrap:
            waits = time_deliveries(self._bootstrap, "alone", at_once, often, seconds)
            found["kafka"] = _percentiles(waits)
        return found

    def _steps(self, since: int) -> dict[str, Any]:
        """Of batches that began after that time; empty without the library that exports traces."""
        if self._collector is None:
            return {}
        from tidemill.lab.bench.latency.steps import steps_of

        time.sleep(5 * _EXPORT_MILLISECONDS / 1000)  # what is on its way arrives
        steps = steps_of(span for span in self._collector.spans() if span.start >= since)
        return {step: _percentiles(waits) for step, waits in steps.items() if waits}

    def _await(self, run: Observed, done: Callable[[], bool], watch: Callable[[], object] | None = None) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not done():
            (watch or run.watch)()
            if run.status.state is State.FAILED or time.monotonic() > deadline:
                raise run.error or DeliveryError("the bench run did not finish", where=run.pipeline.name)
            time.sleep(_WATCH_SECONDS)


def rows_of(result: dict[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """For people: the columns' names, and a row for each rate into each sink."""
    columns = (*HOPS, *PARTS)
    return ["mode", "sink", "events/s", *(each.replace("_", " ") for each in columns)], [
        (
            one["mode"],
            one["sink"],
            f"{one['rate']:,}",
            *(f"{one[each]['p50']} / {one[each]['p99']}" for each in columns),
        )
        for one in result["measured"]
    ]


def alone_rows(result: dict[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """What the machine takes by itself."""
    columns = ("write", "kafka")
    return ["events/s", "one fdatasync", "a plain producer"], [
        (f"{one['rate']:,}", *(f"{one[each]['p50']} / {one[each]['p99']}" if each in one else "" for each in columns))
        for one in result["alone"]
    ]


def steps_rows(result: dict[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The same of the steps, where they were traced."""
    from tidemill.lab.bench.latency.steps import STEPS

    traced = [one for one in result["measured"] if one["steps"]]
    return ["mode", "sink", "events/s", *STEPS], [
        (
            one["mode"], one["sink"], f"{one['rate']:,}",
            *(f"{one['steps'][step]['p50']} / {one['steps'][step]['p99']}" for step in STEPS),
        )
        for one in traced
    ]  # fmt: skip


def summary(
    log_uri: str, reports: Sequence[tuple[float, BatchReport]], *, skip: Callable[[BlockRef], bool] = lambda ref: False
) -> dict[str, Any]:
    """Milliseconds: percentiles of every hop over the events of these batches, but those of blocks to `skip`."""
    log = LogReader(log_uri)
    hops: dict[str, list[Any]] = {hop: [] for hop in (*HOPS, *PARTS)}
    for saved_at, report in reports:
        taken, saved = (saved_at - report.seconds) * 1000, saved_at * 1000
        delivered = taken + report.delivery_seconds * 1000
        slowest = max(report.receipts, key=lambda each: each.encode_seconds + each.write_seconds, default=None)
        encode, write = (slowest.encode_seconds * 1000, slowest.write_seconds * 1000) if slowest else (0.0, 0.0)
        for entry in log.entries(report.start):
            if entry.base >= report.end:
                break
            for ref in entry.refs(report.start, report.end):
                if skip(ref):
                    continue
                times = log.read(ref).column("commit_time").to_numpy(zero_copy_only=False)  # type: ignore[union-attr]
                commit = times.astype("datetime64[us]").astype(np.int64) / 1000
                same = np.ones(len(commit))
                hops["commit_to_logged"].append(entry.written_at - commit)
                hops["logged_to_taken"].append((taken - entry.written_at) * same)
                hops["taken_to_delivered"].append((delivered - taken) * same)
                hops["encode"].append(encode * same)
                hops["write"].append(write * same)
                hops["way"].append((delivered - taken - encode - write) * same)
                hops["delivered_to_saved"].append((saved - delivered) * same)
                hops["total"].append(saved - commit)
    found: dict[str, Any] = {"events": sum(len(some) for some in hops["total"])}
    return found | {hop: _percentiles(np.concatenate(parts or [np.zeros(1)])) for hop, parts in hops.items()}


def _percentiles(waits: Any) -> dict[str, float]:
    return {name: round(float(np.percentile(waits, at)), 2) for name, at in _PERCENTILES.items()}


@contextmanager
def _tracing(say: Callable[[str], None]) -> Iterator[Collector | None]:
    """This process and those that it starts export traces to a collector here. Without the library: none."""
    if find_spec("opentelemetry") is None:
        say("Steps are not told: `pip install tidemill[otel]` for them.")
        yield None
        return
    from tidemill.lab.servers.collector import collecting

    with collecting() as collector:
        ours = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_SAMPLER": "traceidratio",
            "OTEL_TRACES_SAMPLER_ARG": str(_TRACED), "OTEL_BSP_SCHEDULE_DELAY": str(_EXPORT_MILLISECONDS),
        }  # fmt: skip
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield collector
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
