"""The numbers of normal work, in a Prometheus registry: docs/reference/metrics.md lists them all.

`service/metering.py` feeds it from receipts and status. A registry belongs to whoever runs pipelines and makes it;
several pipelines share one, told apart by their labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_PREFIX = "tidemill_"
_SINK = ("pipeline", "sink")
_PIPELINE = ("pipeline",)

# A tiny batch takes about 0.1 s, one that waits for a sink up to ten minutes before the stream starts anew.
_BATCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)

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
        self.encode_seconds = counter("encode_seconds", _SINK, "Time in which workers encoded events.")
        self.write_seconds = counter("write_seconds", _SINK, "Time in which workers waited for the destination.")
        self.retries = counter("retries", _SINK, "Tries beyond the first: in a worker, or as a new job of its lanes.")
        self.dead_letters = counter("dead_letters", _SINK, "Events that the sink never takes, kept as dead letters.")
        self.dead_letters_dropped = counter(
            "dead_letters_dropped", _SINK, "Dead letters that had to go for newer ones."
        )
        self.lag_events = gauge("lag_events", _SINK, "Events in the log that wait for the sink.")
        self.lag_seconds = gauge("lag_seconds", _PIPELINE, "Time since the commit of the oldest event that waits.")
        self.lag_bytes = gauge(
            "lag_bytes", _PIPELINE, "Bytes of the source's own log that capture has not read; absent if nobody knows."
        )
        self.captured = counter("captured_events", _PIPELINE, "Events that capture has written to the log.")
        self.capture_restarts = counter(
            "capture_restarts", _PIPELINE, "Starts of a new capture process for a killed one."
        )

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def forget(self, pipeline: str) -> None:
        """The pipeline is gone: its last values are nobody's any more."""
        for metric in self._made:
            metric.remove_by_labels({"pipeline": pipeline})

    def _counter(self, name: str, labels: tuple[str, ...], about: str) -> Counter:
        made = Counter(_PREFIX + name, about, labels, registry=self.registry)
        return self._listed(made, f"{name}_total", labels, about)

    def _gauge(self, name: str, labels: tuple[str, ...], about: str) -> Gauge:
        return self._listed(Gauge(_PREFIX + name, about, labels, registry=self.registry), name, labels, about)

    def _histogram(self, name: str, labels: tuple[str, ...], about: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(_PREFIX + name, about, labels, buckets=buckets, registry=self.registry)
        return self._listed(made, name, labels, about)

    def _listed(self, made: Kind, name: str, labels: tuple[str, ...], about: str) -> Kind:
        self._made.append(made)
        self.catalog.append(MetricEntry(_PREFIX + name, type(made).__name__.lower(), labels, about))
        return made
