"""Feeds the metrics of one pipeline from what its parts report: receipts of batches, capture's status, its own."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

from tidemill.capture.status import CaptureStatus
from tidemill.config import Pipeline
from tidemill.errors import LeaseLost, TidemillError
from tidemill.model.barrier import Barrier
from tidemill.model.delivery import ProcessorCount
from tidemill.service.lease.leases import HeldLease
from tidemill.service.run.status import WAITING, PipelineStatus, State
from tidemill.stream.report import BatchReport
from tidemill.telemetry.metrics import Metrics


def show_lease(metrics: Metrics, lease: HeldLease, *, held: bool) -> None:
    """A pipeline that another server has shows no epoch here."""
    metrics.lease_held.labels(lease.pipeline).set(int(held))
    if held:
        metrics.lease_epoch.labels(lease.pipeline).set(lease.epoch)
        metrics.lease_takeovers.labels(lease.pipeline).inc(lease.predecessor is not None)
    else:
        metrics.lease_epoch.remove_by_labels({"pipeline": lease.pipeline})


def show_state(metrics: Metrics, pipeline: str, state: str) -> None:
    """One state at a time; none of a pipeline that another server has."""
    metrics.pipeline_state.remove_by_labels({"pipeline": pipeline})
    if state:
        metrics.pipeline_state.labels(pipeline, state).set(1)


_WINDOW_SECONDS, _LOOK_SECONDS = 60.0, 10.0
STAGES = ("capture", "process", "encode", "write", "deliver")


class Saturation:
    """How much of the last minute each stage was busy. For any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._spent: dict[str, deque[tuple[float, float]]] = {stage: deque() for stage in STAGES}
        self._guard = threading.Lock()

    def add(self, stage: str, seconds: float) -> None:
        with self._guard:
            self._spent[stage].append((self._clock(), seconds))
            self._forget(stage)

    def share(self, stage: str) -> float:
        with self._guard:
            self._forget(stage)
            spent = sum(seconds for _, seconds in self._spent[stage])
            return min(1.0, spent / max(1.0, min(_WINDOW_SECONDS, self._clock() - self._began)))

    def _forget(self, stage: str) -> None:
        while self._spent[stage] and self._clock() - self._spent[stage][0][0] > _WINDOW_SECONDS:
            self._spent[stage].popleft()


class DirectorySize:
    """Bytes of the files below a directory, when somebody asks, and not more often than every few seconds."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._looked = path, 0, 0.0

    def __call__(self) -> float:
        now = time.monotonic()
        if not self._looked or now - self._looked > _LOOK_SECONDS:
            self._looked, self._size = now, _size_below(self._path)
        return self._size


def _growth(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: max(0, count - before.get(name, 0)) for name, count in now.items()}


def _size_below(path: Path) -> int:
    """Files that are removed meanwhile count nothing."""
    size = 0
    for each in path.rglob("*"):
        with suppress(OSError):
            size += each.stat().st_size
    return size


class PipelineMeter:
    """Batches report from Spark's threads, status from the supervisor's."""

    def __init__(
        self, metrics: Metrics, pipeline: str, log_uri: str = "", source: tuple[str, str] | None = None
    ) -> None:
        """`source` is its id and its type."""
        self._metrics, self._pipeline = metrics, pipeline
        self._counting = threading.Lock()
        self._captured = CaptureStatus(0)  # as it was last seen
        self._restarts = 0
        self._tables: dict[str, int] = {}  # of that process, with how many events it had written of each
        self._table_bytes: dict[str, int] = {}  # the same in bytes
        self._error: tuple[str, str] = ("", "")
        self._state = ""
        self._saturation = Saturation()
        for stage in STAGES:
            share = partial(self._saturation.share, stage)
            metrics.saturation.labels(pipeline, stage).set_function(share)
        metrics.source_info.remove_by_labels({"pipeline": pipeline})
        if source is not None:
            metrics.source_info.labels(pipeline, *source).set(1)
        if log_uri and "://" not in log_uri:
            metrics.log_bytes.labels(pipeline).set_function(DirectorySize(Path(log_uri)))

    @classmethod
    def of(cls, pipeline: Pipeline, metrics: Metrics) -> Self:
        return cls(metrics, pipeline.name, pipeline.log_uri, (pipeline.source_id, pipeline.spec.source.type))

    def count_batch(self, report: BatchReport) -> None:
        metrics = self._metrics
        seen: dict[str, list[float]] = {}
        for receipt in report.receipts:
            labels = (self._pipeline, receipt.sink)
            work = seen.setdefault(receipt.sink, [0.0, 0.0])
            work[0] += receipt.encode_seconds
            work[1] += receipt.write_seconds
            metrics.events.labels(*labels).inc(receipt.events)
            metrics.skipped.labels(*labels).inc(receipt.skipped)
            metrics.bytes.labels(*labels).inc(receipt.bytes)
            metrics.retries.labels(*labels).inc(receipt.retries)
        for sink, (encoding, writing) in seen.items():
            metrics.batches.labels(self._pipeline, sink).inc()
            metrics.encode_seconds.labels(self._pipeline, sink).observe(encoding)
            metrics.write_seconds.labels(self._pipeline, sink).observe(writing)
            metrics.batch_seconds.labels(self._pipeline, sink).observe(report.seconds)
        metrics.delivery_seconds.labels(self._pipeline).observe(report.delivery_seconds)
        if report.barrier & Barrier.SCHEMA_CHANGE:
            metrics.schema_changes.labels(self._pipeline).inc()
        lanes = max(1, report.lanes)
        self._saturation.add("deliver", report.seconds)
        self._saturation.add("process", sum(each.seconds for each in report.processors) / lanes)
        self._saturation.add("encode", sum(each.encode_seconds for each in report.receipts) / lanes)
        self._saturation.add("write", sum(each.write_seconds for each in report.receipts) / lanes)
        self._count_processors(report)
        for dead_letter in report.dead_letters:
            metrics.dead_letters.labels(self._pipeline, dead_letter.sink).inc()
        for dead_letter in report.dropped:
            metrics.dead_letters_dropped.labels(self._pipeline, dead_letter.sink).inc()

    def _count_processors(self, report: BatchReport) -> None:
        counts: dict[str, ProcessorCount] = {}
        for each in report.processors:
            counts[each.processor] = counts.get(each.processor, ProcessorCount(each.processor)) + each
        for count in counts.values():
            labels = (self._pipeline, count.processor)
            self._metrics.processor_in.labels(*labels).inc(count.events_in)
            self._metrics.processor_out.labels(*labels).inc(count.events_out)
            self._metrics.processor_dead_letters.labels(*labels).inc(count.dead_letters)
            self._metrics.processor_skipped.labels(*labels).inc(count.skipped)
            self._metrics.processor_seconds.labels(*labels).observe(count.seconds)

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
            if said.pid != self._captured.pid:
                self._captured, self._tables, self._table_bytes = CaptureStatus(said.pid), {}, {}
            before, self._captured = self._captured, said
            tables, sizes = _growth(self._tables, said.tables), _growth(self._table_bytes, said.table_bytes)
            self._tables |= said.tables
            self._table_bytes |= said.table_bytes
        busy = said.busy_seconds - before.busy_seconds
        for counter, new in (
            (self._metrics.captured, said.events - before.events),
            (self._metrics.captured_bytes, said.bytes - before.bytes),
            (self._metrics.captured_appends, said.appends - before.appends),
            (self._metrics.capture_seconds, busy),
        ):
            counter.labels(self._pipeline).inc(max(0, new))
        for by_table, grown in ((self._metrics.table_captured, tables), (self._metrics.table_bytes, sizes)):
            for table, new in grown.items():
                by_table.labels(self._pipeline, table).inc(new)
        if busy > 0:
            self._saturation.add("capture", busy)
        if said.slot_bytes is not None:
            self._metrics.slot_bytes.labels(self._pipeline).set(said.slot_bytes)

    def counts_errors(self, then: Callable[[TidemillError], None]) -> Callable[[TidemillError], None]:
        """`then`, which hears of what ends the pipeline or a sink of it, with the count of them."""

        def count(error: TidemillError) -> None:
            self._metrics.errors.labels(self._pipeline, error.code).inc()
            then(error)

        return count

    def show(self, status: PipelineStatus) -> None:
        metrics = self._metrics
        state = "" if status.error.get("code") == LeaseLost.code else status.shown_state
        if state != self._state:
            self._state = state
            show_state(metrics, self._pipeline, state)
        for sink in status.sinks:
            metrics.lag_events.labels(self._pipeline, sink.id).set(sink.lag_events)
        metrics.lag_seconds.labels(self._pipeline).set(status.lag_seconds)
        metrics.waiting_for_approval.labels(self._pipeline).set(int(status.shown_state == WAITING))
        metrics.quarantined_events.labels(self._pipeline).set(sum(each.events for each in status.quarantined))
        if status.lag_bytes is None:
            metrics.lag_bytes.remove_by_labels({"pipeline": self._pipeline})
        else:
            metrics.lag_bytes.labels(self._pipeline).set(status.lag_bytes)
        self._show_tables(status)
        error = (status.error.get("code", ""), status.error.get("what", ""))
        with self._counting:
            is_new, self._error = error != self._error, error
        if is_new and error[0] and status.state is State.RUNNING:  # it is tried again; what ends it is counted as such
            self._metrics.errors.labels(self._pipeline, error[0]).inc()
        with self._counting:
            new, self._restarts = status.capture_restarts - self._restarts, status.capture_restarts
        metrics.capture_restarts.labels(self._pipeline).inc(max(0, new))

    def _show_tables(self, status: PipelineStatus) -> None:
        """Of the newest snapshot; what the one before it had is not shown any more."""
        metrics, mine = self._metrics, {"pipeline": self._pipeline}
        states = Counter(table.state for table in status.tables)
        if not states:
            return
        metrics.snapshot_tables.remove_by_labels(mine)
        for state, count in states.items():
            metrics.snapshot_tables.labels(self._pipeline, state).set(count)
        for table in status.tables:
            metrics.snapshot_rows.labels(self._pipeline, table.name).set(table.rows)
