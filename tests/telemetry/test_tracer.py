"""When traces are exported, which of them, and what a collector that is gone costs."""

from __future__ import annotations

import logging
import subprocess
import sys
import time

import pytest

from tests.support.waiting import until
from tidemill.lab.servers.collector import collecting
from tidemill.telemetry.spans import LaneSpans, Span, new_id, root_id, trace_id, trace_text, unpack
from tidemill.telemetry.tracer import Tracer, is_wanted, open_tracer


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "TRACES_ENDPOINT"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


def opened(monkeypatch: pytest.MonkeyPatch, url: str) -> Tracer:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    tracer = open_tracer()
    assert tracer is not None
    return tracer


def span(name: str, trace: int, **given: object) -> Span:
    return Span(name, 1_000, 2_000, new_id(trace, name), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, False),
    ],
)
def test_traces_are_exported_where_the_standard_variables_ask_for_them(variables: dict[str, str], wanted: bool) -> None:
    assert is_wanted(variables) is wanted


def test_where_nobody_asks_nothing_of_opentelemetry_is_imported() -> None:
    code = (
        "import sys, tidemill.capture.__main__, tidemill.stream.loop, tidemill.stream.lane.deliver\n"
        "from tidemill.service.runtime import Runtime\n"
        "Runtime(spark=object()).close()\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_span_arrives_with_its_ids_parent_links_times_and_error(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, other = trace_id("orders", 0, 5), trace_id("orders", 10, 5)
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    with collecting() as collector:
        tracer = opened(monkeypatch, collector.url)
        root = Span("change", 1_000, 9_000, root_id(trace), attributes={"rows": 3})
        links = ((other, root_id(other)),)
        tracer.record(trace, [root, span("late", trace, parent=root.id, error="TM-3", links=links)])
        tracer.close()
        first, second = sorted(collector.spans(), key=lambda each: each.name)
    assert (first.service, first.name, first.trace, first.parent) == ("tidemill", "change", trace_text(trace), "")
    assert (first.id, first.start, first.end, first.attributes) == (
        f"{root.id:016x}",
        1_000,
        9_000,
        {"tidemill.rows": 3},
    )
    assert (second.parent, second.trace, second.failed) == (first.id, first.trace, "TM-3")
    assert second.links == ((trace_text(other), f"{root_id(other):016x}"),)


def test_two_processes_sample_the_same_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    one, two = (opened(monkeypatch, "http://127.0.0.1:1") for _ in range(2))
    traces = [trace_id("orders", base, 1_700_000_000_000 + base) for base in range(2_000)]
    sampled = [one.is_sampled(trace) for trace in traces]
    assert sampled == [two.is_sampled(trace) for trace in traces]
    assert 400 < sum(sampled) < 600
    for tracer in (one, two):
        tracer.close()


def test_a_collector_that_is_gone_is_one_warning_and_whoever_records_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    trace = trace_id("orders", 0, 5)

    def warnings() -> list[dict[str, object]]:
        names = [record for record in caplog.records if record.getMessage() == "telemetry.spans_not_exported"]
        return [record.__dict__["fields"] for record in names]

    with caplog.at_level(logging.INFO):
        tracer = opened(monkeypatch, "http://ann:secret@127.0.0.1:1/")
        for number in range(5_000):  # more than the queue holds
            tracer.record(trace, [span(f"s{number}", trace)])
        until(warnings)
        tracer.record(trace, [span("later", trace)])
        tracer.close()
    assert [fields["collector"] for fields in warnings()] == ["127.0.0.1:1"]
    assert not [record.name for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_wrong_variable_is_a_warning_and_no_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    with caplog.at_level(logging.WARNING, "tidemill"):
        assert open_tracer() is None
    (record,) = caplog.records
    assert record.getMessage() == "telemetry.traces_off"


def test_a_lanes_spans_come_home_below_the_attempt_that_sent_it() -> None:
    lane = LaneSpans(lane=1, lanes=2)
    lane.describe(tables=3)
    lane.add("sink.write", time.time_ns(), error="TM-9", sink="s")
    first, again = (unpack(lane.pack(), parent, 1) for parent in (7, 8))
    assert [(each.name, each.parent) for each in first] == [("lane.deliver", 7), ("sink.write", first[0].id)]
    assert (first[0].attributes, first[1].attributes) == ({"lane": 1, "lanes": 2, "tables": 3}, {"sink": "s"})
    assert first[1].error == "TM-9"
    assert first[0].start <= first[1].start <= first[1].end <= first[0].end
    assert not {each.id for each in first} & {each.id for each in again}
