"""Drift as events of a sink: each once it is reported, in order, again after a crash with the same bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tidemill import config
from tidemill.config.problem import DocumentError
from tidemill.contracts import StateStore
from tidemill.contracts.sensing_store import SensedBatch
from tidemill.service.run import run_sensing
from tidemill.service.run.run_sensing import RunSensing, send_drift

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source: {{type: postgres, config: {{id: shop, dsn: "postgresql://u@127.0.0.1/db", tables: [public.orders]}}}}
  sinks: [{{type: files, config: {{id: lake, path: {path}/events}}}}]
  schema_sensing:
    enabled: true
    drift: {{sink: {{type: files, config: {{id: {id}, path: {path}/{drift}}}}}}}
  state_dir: {path}/state
"""
TOLD = {
    "table": "public.orders", "kind": "undeclared_column", "subject": "note", "what": "column note is not declared",
    "events": 3, "offset": 41, "position": "0/19B6A28", "at": "2026-01-31T12:00:00.000+00:00",
}  # fmt: skip


def load(path: Path, **given: str) -> config.Pipeline:
    file = path / "orders.yaml"
    file.write_text(DOCUMENT.format(**{"path": path, "drift": "drift", "id": "drift"} | given))
    (pipeline,) = config.load(file)
    return pipeline


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_sensing, "_POLL_SECONDS", 0.02)


@pytest.fixture
def pipeline(tmp_path: Path) -> config.Pipeline:
    return load(tmp_path)


@pytest.fixture
def state(pipeline: config.Pipeline) -> Iterator[StateStore]:
    with closing(pipeline.build_state()) as made:
        yield made


def report(state: StateStore, offset: int, *subjects: str) -> None:
    """As the batch that ends at `offset` does."""
    drifted = [{**TOLD, "subject": subject} for subject in subjects]
    state.sensing.save("orders", SensedBatch(offset, "2026-01-31T12:00:00.000+00:00", drifted=drifted))


def delivered(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Events by file."""
    return {
        file.name: [json.loads(line) for line in file.read_text().splitlines()]
        for file in sorted((path / "drift" / "tidemill.drift").glob("*.jsonl"))
    }


def run(pipeline: config.Pipeline, state: StateStore, done: Callable[[], object]) -> None:
    sensing = RunSensing(pipeline, state)
    sensing.start()
    try:
        until(done)
    finally:
        sensing.close()


def test_each_drift_is_one_event_of_its_own_table_in_order(
    pipeline: config.Pipeline, state: StateStore, tmp_path: Path
) -> None:
    report(state, 7, "note", "more")
    run(pipeline, state, lambda: not state.sensing.drift_events("orders"))
    (first,), (second,) = delivered(tmp_path).values()
    assert [each["after"]["number"] for each in (first, second)] == [1, 2]
    assert first["after"] | {"what": ""} == {
        "number": 1, "pipeline": "orders", "table_name": "public.orders", "kind": "undeclared_column",
        "subject": "note", "what": "", "events": 3, "first_offset": 41, "first_position": "0/19B6A28",
        "reported_at": TOLD["at"],
    }  # fmt: skip
    assert (first["op"], first["table"], second["after"]["subject"]) == ("insert", "drift", "more")


def test_what_arrived_before_a_crash_and_was_not_noted_comes_again_and_changes_nothing(
    pipeline: config.Pipeline, state: StateStore, tmp_path: Path
) -> None:
    report(state, 7, "note", "more")
    spec = pipeline.spec.schema_sensing.drift.sink
    assert spec is not None
    with closing(pipeline.build_sink(spec)) as sink:
        send_drift(sink, pipeline, state.sensing.drift_events("orders")[0])
    before = delivered(tmp_path)
    report(state, 9, "third")
    run(pipeline, state, lambda: not state.sensing.drift_events("orders"))
    after = delivered(tmp_path)
    assert after.items() >= before.items()
    assert [event["after"]["number"] for (event,) in after.values()] == [1, 2, 3]


def test_a_sink_that_is_away_holds_up_nothing_and_gets_it_later(
    pipeline: config.Pipeline, state: StateStore, tmp_path: Path
) -> None:
    (tmp_path / "drift").write_text("no directory")
    report(state, 7, "note")
    sensing = RunSensing(pipeline, state)
    sensing.start()
    try:
        until(lambda: [notice["code"] for notice in sensing.notices()] == ["drift-not-delivered"])
        assert len(state.sensing.drift_events("orders")) == 1
        (tmp_path / "drift").unlink()
        until(lambda: not state.sensing.drift_events("orders") and not list(sensing.notices()))
    finally:
        sensing.close()
    assert len(delivered(tmp_path)) == 1


def test_the_sink_of_drift_has_a_name_and_a_place_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match='two sinks have the id "lake"'):
        load(tmp_path, id="lake")
    with pytest.raises(DocumentError, match=r'sink "drift" writes to .*/events/, which sink "lake" has'):
        load(tmp_path, drift="events")


def test_without_sensing_nothing_is_sent(tmp_path: Path, state: StateStore) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(file.read_text().replace("enabled: true", "enabled: false"))
    (pipeline,) = config.load(file)
    sensing = RunSensing(pipeline, state)
    assert (sensing.keeper, list(sensing.notices())) == (None, [])


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)
