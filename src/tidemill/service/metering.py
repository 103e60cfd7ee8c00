"""Feeds the metrics of one pipeline from what its parts report: receipts of batches, capture's status, its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from tidemill.capture.status import CaptureStatus
from tidemill.service.status import PipelineStatus
from tidemill.stream.report import BatchReport
from tidemill.telemetry.metrics import Metrics


class PipelineMeter:
    """Batches report from Spark's threads, status from the supervisor's."""

    def __init__(self, metrics: Metrics, pipeline: str) -> None:
        self._metrics, self._pipeline = metrics, pipeline
        self._counting = threading.Lock()
        self._captured = (0, 0)  # the capture process, and how many events it had written
        self._restarts = 0

    def count_batch(self, report: BatchReport) -> None:
        metrics, seen = self._metrics, set()
        for receipt in report.receipts:
            labels = (self._pipeline, receipt.sink)
            seen.add(receipt.sink)
            metrics.events.labels(*labels).inc(receipt.events)
            metrics.skipped.labels(*labels).inc(receipt.skipped)
            metrics.bytes.labels(*labels).inc(receipt.bytes)
            metrics.encode_seconds.labels(*labels).inc(receipt.encode_seconds)
            metrics.write_seconds.labels(*labels).inc(receipt.write_seconds)
            metrics.retries.labels(*labels).inc(receipt.retries)
        for sink in seen:
            metrics.batches.labels(self._pipeline, sink).inc()
            metrics.batch_seconds.labels(self._pipeline, sink).observe(report.seconds)
        for dead_letter in report.dead_letters:
            metrics.dead_letters.labels(self._pipeline, dead_letter.sink).inc()
        for dead_letter in report.dropped:
            metrics.dead_letters_dropped.labels(self._pipeline, dead_letter.sink).inc()

    def count_retry(self, sinks: Iterable[str]) -> None:
        """Their part of a batch is sent again, as a new job."""
        for sink in sinks:
            self._metrics.retries.labels(self._pipeline, sink).inc()

    def counts_retries(self, then: Callable[[Mapping[str, str]], None]) -> Callable[[Mapping[str, str]], None]:
        """`then`, which hears of an error per sink before each new try, with the count of them."""

        def count(errors: Mapping[str, str]) -> None:
            self.count_retry(errors)
            then(errors)

        return count

    def count_captured(self, said: CaptureStatus) -> None:
        """A new process counts from zero; what its predecessor wrote after it was last seen is not counted."""
        with self._counting:
            pid, events = self._captured
            new = said.events - events if said.pid == pid else said.events
            self._captured = said.pid, said.events
        self._metrics.captured.labels(self._pipeline).inc(max(0, new))

    def show(self, status: PipelineStatus) -> None:
        metrics = self._metrics
        for sink in status.sinks:
            metrics.lag_events.labels(self._pipeline, sink.id).set(sink.lag_events)
        metrics.lag_seconds.labels(self._pipeline).set(status.lag_seconds)
        if status.lag_bytes is None:
            metrics.lag_bytes.remove_by_labels({"pipeline": self._pipeline})
        else:
            metrics.lag_bytes.labels(self._pipeline).set(status.lag_bytes)
        with self._counting:
            new, self._restarts = status.capture_restarts - self._restarts, status.capture_restarts
        metrics.capture_restarts.labels(self._pipeline).inc(max(0, new))
