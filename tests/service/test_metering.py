"""What reports and status say, as metrics."""

from __future__ import annotations

import pytest

from tidemill.capture.status import CaptureStatus
from tidemill.dlq import DeadLetterRecord
from tidemill.model.delivery import Receipt
from tidemill.model.position import Position
from tidemill.service.metering import PipelineMeter
from tidemill.service.status import PipelineStatus, SinkStatus, State
from tidemill.stream.report import BatchReport
from tidemill.telemetry.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def meter(metrics: Metrics) -> PipelineMeter:
    return PipelineMeter(metrics, "orders")


def value(metrics: Metrics, name: str, sink: str = "") -> float | None:
    labels = {"pipeline": "orders"} | ({"sink": sink} if sink else {})
    return metrics.registry.get_sample_value(f"tidemill_{name}", labels)


def test_a_batch_counts_for_each_of_its_sinks_over_all_lanes(metrics: Metrics, meter: PipelineMeter) -> None:
    receipts = (
        Receipt("lake", 0, events=3, bytes=30, write_seconds=0.5, retries=2),
        Receipt("lake", 1, events=4, bytes=40, skipped=1, encode_seconds=0.25),
        Receipt("topic", 0, events=7, bytes=99),
    )
    for _ in range(2):
        meter.count_batch(BatchReport(0, 0, 7, Position("1"), 2, 0.3, 0, receipts))
    counted = ("events", "bytes", "skipped_events", "batches", "write_seconds", "encode_seconds", "retries")
    assert [value(metrics, f"{name}_total", "lake") for name in counted] == [14, 140, 2, 2, 1.0, 0.5, 4]
    assert [value(metrics, f"{name}_total", "topic") for name in ("events", "bytes", "batches")] == [14, 198, 2]
    assert (value(metrics, "batch_seconds_count", "lake"), value(metrics, "batch_seconds_sum", "lake")) == (2, 0.6)


def test_retries_and_dead_letters_count_for_the_sink_that_caused_them(metrics: Metrics, meter: PipelineMeter) -> None:
    meter.count_retry(["lake"])
    one, two = (DeadLetterRecord("lake", "src", "public.t", "insert", n, "0/1", 0, "id", "no", b"") for n in (1, 2))
    report = BatchReport(0, 0, 7, Position("1"), 1, 0.3, 0, (), dead_letters=(one, two), dropped=(one,))
    meter.count_batch(report)
    counted = ("retries", "dead_letters", "dead_letters_dropped")
    assert [value(metrics, f"{name}_total", "lake") for name in counted] == [1, 2, 1]


def test_captured_events_go_on_counting_over_a_restart_of_capture(metrics: Metrics, meter: PipelineMeter) -> None:
    for pid, events in ((7, 10), (7, 10), (7, 25), (8, 0), (8, 5)):
        meter.count_captured(CaptureStatus(pid, events=events))
    assert value(metrics, "captured_events_total") == 30


def test_lag_is_what_the_status_says_now_and_unknown_bytes_are_absent(metrics: Metrics, meter: PipelineMeter) -> None:
    sinks = (SinkStatus("lake", lag_events=5), SinkStatus("topic", lag_events=0))
    status = PipelineStatus("orders", State.RUNNING, lag_bytes=100, lag_seconds=1.5, capture_restarts=2, sinks=sinks)
    meter.show(status)
    meter.show(status)
    assert [value(metrics, "lag_events", sink) for sink in ("lake", "topic")] == [5, 0]
    assert [value(metrics, name) for name in ("lag_seconds", "lag_bytes")] == [1.5, 100]
    assert value(metrics, "capture_restarts_total") == 2
    meter.show(PipelineStatus("orders", State.FAILED))
    assert value(metrics, "lag_bytes") is None
