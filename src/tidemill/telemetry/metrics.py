"""The numbers of normal work, in a Prometheus registry: docs/reference/metrics.md lists them all.

`service/run/metering.py` feeds it from receipts and status. A registry belongs to whoever runs pipelines and makes it;
several pipelines share one, told apart by their labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_PREFIX = "tidemill_"
_SINK = ("pipeline", "sink")
_PIPELINE = ("pipeline",)
_PROCESSOR = ("pipeline", "processor")
_TABLE = ("pipeline", "table")
_STAGE = ("pipeline", "stage")

# A tiny batch takes about 0.1 s, one that waits for a sink up to ten minutes before the stream starts anew.
_BATCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
_WORK_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)  # a lane's share of it may be next to nothing

Kind = TypeVar("Kind", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """One metric as users meet it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    about: str


class Metrics:
    """A metric is an attribute. `catalog` says what there is; any thread may feed them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._made: list[Counter | Gauge | Histogram] = []
        self.catalog: list[MetricEntry] = []
        counter, gauge = self._counter, self._gauge
        self.events = counter("events", _SINK, "Events that the sink has taken.")
        self.skipped = counter("skipped_events", _SINK, "Events of a replay that the sink had already.")
        self.bytes = counter("bytes", _SINK, "Bytes that the sink has taken, as its receipts count them.")
        self.batches = counter("batches", _SINK, "Batches that the sink has taken wholly.")
        self.batch_seconds = self._histogram(
            "batch_seconds", _SINK, "Time from a batch's begin to its checkpoint, retries included.", _BATCH_SECONDS
        )
        self.delivery_seconds = self._histogram(
            "spark_delivery_seconds", _PIPELINE, "Time of a batch in Spark, until its last sink had it.", _BATCH_SECONDS
        )
        self.encode_seconds = self._histogram(
            "encode_seconds", _SINK, "Time in which workers encoded a batch's events, of all lanes.", _WORK_SECONDS
        )
        self.write_seconds = self._histogram(
            "write_seconds", _SINK, "Time in which workers waited for the destination with a batch, of all lanes.",
            _WORK_SECONDS,
        )  # fmt: skip
        self.retries = counter("retries", _SINK, "Tries beyond the first: in a worker, or as a new job of its lanes.")
        self.dead_letters = counter("dead_letters", _SINK, "Events that the sink never takes, kept as dead letters.")
        self.dead_letters_dropped = counter(
            "dead_letters_dropped", _SINK, "Dead letters that had to go for newer ones."
        )
        self.processor_in = counter("processor_events_in", _PROCESSOR, "Events that the processor was given.")
        self.processor_out = counter("processor_events_out", _PROCESSOR, "Events that the processor returned.")
        self.processor_dead_letters = counter(
            "processor_dead_letters", _PROCESSOR, "Events that it failed on and that became dead letters."
        )
        self.processor_skipped = counter(
            "processor_skipped_events", _PROCESSOR, "Events that it failed on and that on_error: skip dropped."
        )
        self.processor_seconds = self._histogram(
            "processor_seconds", _PROCESSOR, "Time in which workers ran the processor over a batch, of all lanes.",
            _WORK_SECONDS,
        )  # fmt: skip
        self.lag_events = gauge("lag_events", _SINK, "Events in the log that wait for the sink.")
        self.lag_seconds = gauge("lag_seconds", _PIPELINE, "Time since the commit of the oldest event that waits.")
        self.lag_bytes = gauge(
            "lag_bytes", _PIPELINE, "Bytes of the source's own log that capture has not read; absent if nobody knows."
        )
        self.waiting_for_approval = gauge(
            "waiting_for_approval", _PIPELINE, "1 while it stands at a schema change that an operator must decide on."
        )
        self.quarantined_events = gauge(
            "quarantined_events", _PIPELINE, "Events in the log of tables that wait in quarantine at a schema change."
        )
        self.pipeline_state = gauge(
            "pipeline_state", ("pipeline", "state"), "1 for the state that it is in: running, paused, failed and so on."
        )
        self.source_info = gauge(
            "source_info", ("pipeline", "source", "type"), "1: which source the pipeline captures, to join by."
        )
        self.captured = counter("captured_events", _PIPELINE, "Events that capture has written to the log.")
        self.captured_bytes = counter("captured_bytes", _PIPELINE, "Bytes that capture has written to the log.")
        self.captured_appends = counter(
            "captured_appends", _PIPELINE, "Appends, of whole transactions, that capture has written to the log."
        )
        self.capture_seconds = counter(
            "capture_seconds", _PIPELINE, "Time in which capture read, decoded and wrote changes."
        )
        self.table_captured = counter(
            "table_events", _TABLE, "Changes of the table in the log, without rows of snapshots."
        )
        self.table_bytes = counter("table_bytes", _TABLE, "Bytes of those changes in the log.")
        self.errors = counter(
            "errors", ("pipeline", "code"), "Errors that stopped a part of it, also those that are tried again."
        )
        self.schema_changes = counter(
            "schema_changes", _PIPELINE, "Batches at which the structure of a table changed, per group of sinks."
        )
        self.snapshot_rows = gauge("snapshot_rows", _TABLE, "Rows of the table that the newest snapshot has copied.")
        self.snapshot_tables = gauge(
            "snapshot_tables", ("pipeline", "state"), "Tables of the newest snapshot, by how far they are."
        )
        self.log_bytes = gauge("log_bytes", _PIPELINE, "Size of its log on the disk; absent if it is in S3.")
        self.slot_bytes = gauge(
            "slot_bytes", _PIPELINE, "WAL that PostgreSQL keeps for the replication slot; absent for other sources."
        )
        self.saturation = gauge(
            "stage_saturation", _STAGE,
            "Share of the last minute in which the stage was busy, 0 to 1: the highest is the one to scale. capture; "
            "process, encode, write: of all lanes; deliver: the batches, all of that and Spark.",
        )  # fmt: skip
        self.capture_restarts = counter(
            "capture_restarts", _PIPELINE, "Starts of a new capture process for a killed one."
        )
        about = "Time in which the process stood still for two seconds or more: it had no CPU, or was stopped."
        self.stalled_seconds = Counter(_PREFIX + "stalled_seconds", about, registry=self.registry)
        self.catalog.append(MetricEntry(_PREFIX + "stalled_seconds_total", "counter", (), about))
        self.lease_held = gauge("lease_held", _PIPELINE, "1 while this server has the pipeline's lease, else 0.")
        self.lease_epoch = gauge("lease_epoch", _PIPELINE, "Fencing number of the lease that this server has.")
        self.lease_takeovers = counter(
            "lease_takeovers", _PIPELINE, "Leases taken from a server that did not give them back."
        )

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def forget(self, pipeline: str, *, counters: bool = True) -> None:
        """The pipeline is gone: its last values are nobody's any more. Without `counters` it comes back with another
        document, and what it has counted goes on: a counter never goes backwards."""
        for metric in self._made:
            if counters or isinstance(metric, Gauge):
                metric.remove_by_labels({"pipeline": pipeline})

    def _counter(self, name: str, labels: tuple[str, ...], about: str) -> Counter:
        made = Counter(_PREFIX + name, about, labels, registry=self.registry)
        return self._find_kind(made, f"{name}_total", labels, about)

    def _gauge(self, name: str, labels: tuple[str, ...], about: str) -> Gauge:
        return self._find_kind(Gauge(_PREFIX + name, about, labels, registry=self.registry), name, labels, about)

    def _histogram(self, name: str, labels: tuple[str, ...], about: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(_PREFIX + name, about, labels, buckets=buckets, registry=self.registry)
        return self._find_kind(made, name, labels, about)

    def _find_kind(self, made: Kind, name: str, labels: tuple[str, ...], about: str) -> Kind:
        self._made.append(made)
        self.catalog.append(MetricEntry(_PREFIX + name, type(made).__name__.lower(), labels, about))
        return made
