"""The registry: what it is called, what the page says of it, and that a pipeline can leave it."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tidemill.telemetry.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def touch(metrics: Metrics, pipeline: str) -> None:
    for metric in metrics._made:
        labels = [pipeline, "lake", "files"][: len(metric._labelnames)]
        metric.labels(*labels)


def test_the_page_lists_every_metric_by_the_name_that_prometheus_reads() -> None:
    metrics = Metrics()
    touch(metrics, "orders")
    listed = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.M))
    read = {
        sample.name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    assert read == listed == {entry.name for entry in metrics.catalog}


def test_names_have_their_unit_and_one_prefix() -> None:
    states = (
        "_lease_held",
        "_lease_epoch",
        "_pipeline_state",
        "_waiting_for_approval",
        "_stage_saturation",
        "_rows",
        "_tables",
        "_source_info",
    )  # they and numbers have no unit
    units = ("_events", "_bytes", "_seconds", "_total", *states)
    names = [entry.name for entry in Metrics().catalog]
    assert [name for name in names if not (name.startswith("tidemill_") and name.endswith(units))] == []


def test_a_pipeline_that_is_gone_leaves_no_values() -> None:
    metrics = Metrics()
    touch(metrics, "orders")
    touch(metrics, "users")
    metrics.forget("orders")
    assert 'pipeline="users"' in metrics.text().decode()
    assert "orders" not in metrics.text().decode()


def test_two_registries_do_not_know_each_other() -> None:
    one, two = Metrics(), Metrics()
    one.events.labels("orders", "lake").inc(3)
    assert "lake" not in two.text().decode()
