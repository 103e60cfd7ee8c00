"""What a run leaves in the state store: changes of state at once, the rest now and then, and never at its cost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.contracts import StateStore
from tidemill.errors import StateError
from tidemill.service.run_record import RunRecord
from tidemill.service.status import PipelineStatus, SinkStatus, State
from tidemill.state import open_store

RUNNING = PipelineStatus("orders", State.RUNNING, sinks=(SinkStatus("lake", lost=3),))


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateStore]:
    store = open_store(str(tmp_path / "state.sqlite"))
    yield store
    store.close()


def test_every_change_of_state_is_kept_with_who_when_and_why(state: StateStore) -> None:
    record = RunRecord(state, "orders", actor="ada@mill")
    record.note(RUNNING)
    record.note(replace(RUNNING, state=State.FAILED, error={"what": "the slot is gone", "where": "", "fix": ""}))
    newest, first = state.transitions("orders")
    assert (newest.state, newest.actor, newest.reason) == ("failed", "ada@mill", "the slot is gone")
    assert (first.state, first.reason) == ("running", "")
    assert newest.at >= first.at


def test_the_last_status_is_kept_as_fields(state: StateStore) -> None:
    RunRecord(state, "orders").note(RUNNING)
    found = state.last_status("orders")
    assert found is not None
    assert found.fields["state"] == "running"
    assert found.fields["sinks"][0]["lost"] == 3
    assert set(found.fields) == set(PipelineStatus.__slots__)


def test_a_status_is_written_about_once_a_second_and_a_change_of_state_at_once(
    state: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("tidemill.service.run_record.time.monotonic", lambda: clock[0])
    record = RunRecord(state, "orders")

    def events() -> int:
        found = state.last_status("orders")
        assert found is not None
        return int(found.fields["events"])

    record.note(RUNNING)
    record.note(replace(RUNNING, events=1))
    assert events() == 0
    clock[0] += 1.1
    record.note(replace(RUNNING, events=2))
    assert events() == 2
    record.note(replace(RUNNING, events=3, state=State.STOPPING))
    record.note(replace(RUNNING, events=4, state=State.STOPPED))
    assert events() == 4
    assert [step.state for step in state.transitions("orders")] == ["stopped", "stopping", "running"]


def test_a_store_that_is_away_stops_nothing_and_gets_the_history_later(
    state: StateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record = RunRecord(state, "orders")

    def away(*_: object) -> None:
        raise StateError("the state store cannot be used: disk full")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "tidemill"):
        patched.setattr(type(state), "record", away)
        record.note(RUNNING)
        record.note(replace(RUNNING, state=State.STOPPING))
    assert [r.getMessage() for r in caplog.records].count("pipeline.status_not_written") == 1
    record.note(replace(RUNNING, state=State.STOPPED))
    assert [step.state for step in state.transitions("orders")] == ["stopped", "stopping", "running"]
