"""What a run leaves in the state store: changes of state, at once, and never at its cost."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidemill.contracts import StateStore
from tidemill.errors import StateError
from tidemill.service.cause import Cause
from tidemill.service.run.record import RunRecord
from tidemill.service.run.status import PipelineStatus, SinkStatus, State
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


def test_what_is_shown_as_the_state_is_kept_too(state: StateStore) -> None:
    """With why: a schema change that waits, and a stop that delivers the rest."""
    record = RunRecord(state, "orders", actor="ada@mill")
    record.cause = Cause("bob", "an upgrade")
    record.note(RUNNING)
    waits = {"code": "ddl-waiting", "subject": "public.orders", "what": "schema change 3 waits", "fix": ""}
    record.note(replace(RUNNING, stage="waiting_for_approval", notices=(waits,)))
    record.note(replace(RUNNING, events=1))
    record.note(replace(RUNNING, state=State.STOPPING, drains=True))
    record.note(replace(RUNNING, state=State.STOPPED, drains=True))
    assert [(each.state, each.actor, each.reason) for each in reversed(state.transitions("orders"))] == [
        ("running", "bob", "an upgrade"),
        ("waiting_for_approval", "ada@mill", "schema change 3 waits"),
        ("running", "ada@mill", "the schema change was decided on"),
        ("draining", "bob", "an upgrade"),
        ("stopped", "bob", "an upgrade"),
    ]


def test_a_status_without_a_change_of_state_writes_nothing(state: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    record = RunRecord(state, "orders")
    record.note(RUNNING)
    monkeypatch.setattr(type(state), "record", None)
    record.note(replace(RUNNING, events=1))


def test_a_store_that_is_away_stops_nothing_and_gets_the_history_later(
    state: StateStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr("tidemill.service.run.record.time.monotonic", lambda: clock[0])
    record = RunRecord(state, "orders")

    def away(*_: object) -> None:
        raise StateError("the state store cannot be used: disk full")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "tidemill"):
        patched.setattr(type(state), "record", away)
        record.note(RUNNING)
        record.note(replace(RUNNING, state=State.STOPPING))
    assert [r.getMessage() for r in caplog.records].count("pipeline.status_not_written") == 1
    clock[0] += 1.1
    record.note(replace(RUNNING, state=State.STOPPING, events=1))
    assert [step.state for step in state.transitions("orders")] == ["stopping", "running"]
    record.note(replace(RUNNING, state=State.STOPPED))
    assert [step.state for step in state.transitions("orders")] == ["stopped", "stopping", "running"]
