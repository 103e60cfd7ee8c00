"""What reports and status say, as metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.blocks import make_change
from tidemill.capture.effort import Effort
from tidemill.capture.status import CaptureStatus
from tidemill.dlq import DeadLetterRecord
from tidemill.errors import ConfigError, ErrorData, LeaseLost, SourceError, TidemillError, to_data
from tidemill.log import LogConfig, LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.delivery import ProcessorCount, Receipt
from tidemill.model.position import Position
from tidemill.service.run.metering import PipelineMeter, Saturation
from tidemill.service.run.status import PipelineStatus, SinkStatus, State
from tidemill.service.snapshot.status import TableStatus
from tidemill.stream.report import BatchReport
from tidemill.telemetry.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def meter(metrics: Metrics) -> PipelineMeter:
    return PipelineMeter(metrics, "orders")


REPORT = BatchReport(0, 0, 7, Position("1"), 1, 0.3, 0, ())


def value(metrics: Metrics, name: str, sink: str = "", **more: str) -> float | None:
    labels = {"pipeline": "orders"} | ({"sink": sink} if sink else {}) | more
    return metrics.registry.get_sample_value(f"tidemill_{name}", labels)


def test_a_batch_counts_for_each_of_its_sinks_over_all_lanes(metrics: Metrics, meter: PipelineMeter) -> None:
    receipts = (
        Receipt("lake", 0, events=3, bytes=30, write_seconds=0.5, retries=2),
        Receipt("lake", 1, events=4, bytes=40, skipped=1, encode_seconds=0.25),
        Receipt("topic", 0, events=7, bytes=99),
    )
    for _ in range(2):
        meter.count_batch(BatchReport(0, 0, 7, Position("1"), 2, 0.3, 0, receipts))
    counted = ("events", "bytes", "skipped_events", "batches", "retries")
    assert [value(metrics, f"{name}_total", "lake") for name in counted] == [14, 140, 2, 2, 4]
    for kind, seconds in (("write", 1.0), ("encode", 0.5)):
        found = [value(metrics, f"{kind}_seconds_{part}", "lake") for part in ("count", "sum")]
        assert found == [2, seconds], "one of each batch, over its lanes"
    assert [value(metrics, f"{name}_total", "topic") for name in ("events", "bytes", "batches")] == [14, 198, 2]
    assert (value(metrics, "batch_seconds_count", "lake"), value(metrics, "batch_seconds_sum", "lake")) == (2, 0.6)


def test_retries_and_dead_letters_count_for_the_sink_that_caused_them(metrics: Metrics, meter: PipelineMeter) -> None:
    meter.count_retry(["lake"])
    one, two = (DeadLetterRecord("lake", "src", "public.t", "insert", n, "0/1", 0, "id", "no", b"") for n in (1, 2))
    report = BatchReport(0, 0, 7, Position("1"), 1, 0.3, 0, (), dead_letters=(one, two), dropped=(one,))
    meter.count_batch(report)
    counted = ("retries", "dead_letters", "dead_letters_dropped")
    assert [value(metrics, f"{name}_total", "lake") for name in counted] == [1, 2, 1]


def test_processors_count_what_they_did(metrics: Metrics, meter: PipelineMeter) -> None:
    one = ProcessorCount("paid", events_in=3, events_out=1, dead_letters=1, skipped=1, seconds=0.125)
    other = ProcessorCount("paid", events_in=4, events_out=3, skipped=1, seconds=0.375)  # of another lane
    meter.count_batch(BatchReport(0, 0, 7, Position("1"), 2, 0.3, 0, (), processors=(one, other)))
    labels = {"pipeline": "orders", "processor": "paid"}
    whole = ("events_in_total", "events_out_total", "dead_letters_total", "skipped_events_total")
    counted = (*whole, "seconds_count", "seconds_sum")
    found = [metrics.registry.get_sample_value(f"tidemill_processor_{name}", labels) for name in counted]
    assert found == [7, 4, 1, 2, 1, 0.5]


def test_a_pipelines_source_is_named_and_the_one_before_is_forgotten(metrics: Metrics) -> None:
    """A document that is changed may name another one."""
    PipelineMeter(metrics, "orders", source=("shop", "postgres"))
    PipelineMeter(metrics, "orders", source=("store", "mysql"))
    assert value(metrics, "source_info", source="store", type="mysql") == 1
    assert value(metrics, "source_info", source="shop", type="postgres") is None


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


def test_a_pipeline_is_in_one_state_and_in_none_where_another_server_has_it(
    metrics: Metrics, meter: PipelineMeter
) -> None:
    for status, state in (
        (PipelineStatus("orders", State.RUNNING), "running"), (PipelineStatus("orders", State.PAUSED), "paused"),
        (PipelineStatus("orders", State.RUNNING, stage="waiting_for_approval"), "waiting_for_approval"),
        (PipelineStatus("orders", State.STOPPING, drains=True), "draining"),
    ):  # fmt: skip
        meter.show(status)
        ((sample,),) = (each.samples for each in metrics.pipeline_state.collect())
        assert (sample.labels, sample.value) == ({"pipeline": "orders", "state": state}, 1)
    meter.show(PipelineStatus("orders", State.FAILED, error=to_data(LeaseLost("another server has it"))))
    assert [each.samples for each in metrics.pipeline_state.collect()] == [[]]


def test_an_error_counts_once_by_its_code_however_long_it_lasts(metrics: Metrics, meter: PipelineMeter) -> None:
    heard: list[TidemillError] = []
    lost = to_data(SourceError("the server is away"))
    for error in (lost, lost, ErrorData(), lost):
        meter.show(PipelineStatus("orders", State.RUNNING, error=error))
    final = ConfigError("the table is gone")
    meter.counts_errors(heard.append)(final)
    meter.show(PipelineStatus("orders", State.FAILED, error=to_data(final)))
    assert value(metrics, "errors_total", code="source-failed") == 2
    assert value(metrics, "errors_total", code="config-invalid") == 1
    assert heard == [final]


def test_tables_snapshots_schema_changes_and_the_slot_are_shown(
    metrics: Metrics, meter: PipelineMeter, tmp_path: Path
) -> None:
    meter.count_captured(CaptureStatus(1, tables={"a": 3, "b": 1}, table_bytes={"a": 300, "b": 100}, slot_bytes=4096))
    meter.count_captured(CaptureStatus(1, tables={"a": 5}, table_bytes={"a": 450}))
    meter.count_captured(CaptureStatus(1, tables={"a": 5, "b": 2}))
    meter.count_captured(CaptureStatus(2, tables={"a": 1}))
    assert value(metrics, "table_events_total", table="a") == 6
    assert value(metrics, "table_events_total", table="b") == 2, "one that was not named for a while goes on"
    assert value(metrics, "table_bytes_total", table="a") == 450
    assert value(metrics, "table_bytes_total", table="b") == 100
    assert value(metrics, "slot_bytes") == 4096
    copied = (TableStatus("a", "copying", 7), TableStatus("b", "done", 2))
    meter.show(PipelineStatus("orders", State.RUNNING, tables=copied))
    meter.show(PipelineStatus("orders", State.RUNNING, tables=(TableStatus("a", "done", 9),)))
    assert value(metrics, "snapshot_rows", table="a") == 9
    assert value(metrics, "snapshot_tables", state="done") == 1
    assert value(metrics, "snapshot_tables", state="copying") is None
    meter.count_batch(replace(REPORT, barrier=Barrier.SCHEMA_CHANGE))
    meter.count_batch(REPORT)
    assert value(metrics, "schema_changes_total") == 1
    (tmp_path / "log" / "below").mkdir(parents=True)
    (tmp_path / "log" / "below" / "segment").write_bytes(bytes(100))
    PipelineMeter(metrics, "users", str(tmp_path / "log"))
    assert metrics.registry.get_sample_value("tidemill_log_bytes", {"pipeline": "users"}) >= 100  # type: ignore[operator]


def test_the_stage_that_is_busy_is_the_one_to_scale() -> None:
    now = [0.0]
    busy = Saturation(clock=lambda: now[0])
    now[0] = 10.0
    busy.add("write", 9.0)
    busy.add("encode", 1.0)
    assert (busy.share("write"), busy.share("encode"), busy.share("capture")) == (0.9, 0.1, 0.0)
    now[0] = 60.0
    assert busy.share("write") == 0.15
    now[0] = 71.0
    assert busy.share("write") == 0.0, "it is long ago"
    busy.add("write", 100.0)
    assert busy.share("write") == 1.0


def test_what_capture_writes_is_counted_over_all_its_processes(metrics: Metrics, meter: PipelineMeter) -> None:
    for pid, times in ((1, 1), (1, 2), (1, 2), (2, 0), (2, 1)):
        said = CaptureStatus(pid, events=10 * times, appends=times, bytes=100 * times, busy_seconds=0.5 * times)
        meter.count_captured(said)
    counted = ("captured_events", "captured_appends", "captured_bytes", "capture_seconds")
    assert [value(metrics, f"{name}_total") for name in counted] == [30, 3, 300, 1.5]


def test_an_append_counts_with_its_bytes_and_events_by_table(tmp_path: Path) -> None:
    effort = Effort()
    log = LogWriter.open(str(tmp_path), LogConfig.model_validate({"fsync": False}))
    entries = [log.append(make_change(10)) for _ in range(2)]
    log.close()
    for entry in entries:
        effort.note(entry)
    assert (effort.appends, effort.bytes) == (2, sum(ref.size for entry in entries for ref in entry.blocks))
    events, sizes = effort.busiest()
    assert sum(events.values()) == 20
    assert events.keys() == sizes.keys()
    assert 0 < sum(sizes.values()) <= effort.bytes


def test_capture_is_idle_while_nothing_comes_and_while_it_is_held_back() -> None:
    effort = Effort()
    with effort.turn():
        effort.idle(1000.0)
    assert effort.busy_seconds == 0.0
    with effort.turn():
        pass
    assert effort.busy_seconds > 0.0
