"""How `tidemill run` shows what needs words: whole, at any width, with the way out."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tidemill.cli import run_view
from tidemill.cli.snapshot_view import RowRates
from tidemill.service.run.status import PipelineStatus, SinkState, SinkStatus, State
from tidemill.service.snapshot.status import TableStatus

FIX = "Copy the table yourself, then: tidemill recover orders.yaml --table public.items"
NOTICE = {"code": "table-incomplete", "subject": "public.items", "what": "rows may be missing", "fix": FIX}
STATUS = PipelineStatus("orders", State.RUNNING, stage="cdc", sinks=(SinkStatus("lake"),), lanes_stand=True)


def screen(status: PipelineStatus, width: int = 80, rates: RowRates | None = None) -> str:
    output = io.StringIO()
    Console(file=output, width=width).print(run_view._table([status], rates or RowRates()))
    return " ".join(output.getvalue().split())


def test_a_notice_stands_below_the_table_with_its_code_and_the_whole_way_out() -> None:
    shown = screen(replace(STATUS, notices=(NOTICE,)))
    assert f"orders: table-incomplete public.items: rows may be missing. {FIX}" in shown


def test_of_many_notices_the_first_are_shown_and_the_others_counted() -> None:
    many = tuple(NOTICE | {"subject": f"public.t{number}"} for number in range(5))
    shown = screen(replace(STATUS, notices=many))
    assert "public.t2" in shown
    assert "public.t3" not in shown
    assert "and 2 more" in shown


def test_a_copy_shows_how_fast_it_goes_and_that_it_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, rates = iter((0.0, 2.0, 3.0)), RowRates()
    monkeypatch.setattr("tidemill.cli.snapshot_view.time.monotonic", lambda: next(clock))
    table = TableStatus("public.items", "copying", 100, 500)
    assert "20% public.items copying, 100 rows" in screen(replace(STATUS, tables=(table,)), rates=rates)
    shown = screen(replace(STATUS, tables=(replace(table, rows=300),)), rates=rates)
    assert "60% public.items copying, 300 rows, 100 rows/s, 2 s left" in shown
    assert "public.items paused" in screen(replace(STATUS, tables=(replace(table, state="paused"),)), rates=rates)


def test_a_sink_that_fails_says_so_and_why() -> None:
    failing = SinkStatus("events", SinkState.FAILING, waited_for=False, lag_events=6, error="no broker answers\nmore")
    shown = screen(replace(STATUS, sinks=(failing,)))
    assert "events failing(-6ev)" in screen(replace(STATUS, sinks=(failing,)), width=140)
    assert "sink events is failing: no broker answers" in shown


def test_lines_tell_a_notice_once_with_its_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_view.LineView(0, as_json=False)
    lines.show([replace(STATUS, notices=(NOTICE,))])
    lines.show([replace(STATUS, notices=(NOTICE,))])
    assert capsys.readouterr().out.count(FIX) == 1


def test_until_the_lanes_stand_a_pipeline_is_starting(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_view.LineView(60, as_json=False)
    lines.show([replace(STATUS, lanes_stand=False)])
    lines.show([STATUS])
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("orders running starting ")
    assert second.startswith("orders running cdc ")
    assert "running starting" in screen(replace(STATUS, lanes_stand=False), width=140)


def test_a_stop_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    stopping = replace(STATUS, state=State.STOPPING, lag_events=1234, events=5678)
    run_view.LineView(0, as_json=False).show([stopping])
    assert "orders stopping: 1,234 events left to deliver; 5,678 delivered in this run" in capsys.readouterr().out
    assert "1,234 events left to deliver" in screen(stopping)
    assert "everything is delivered (5,678 events in this run)" in screen(replace(stopping, lag_events=0))
    stopped = replace(stopping, state=State.STOPPED)
    assert "5,678 events delivered in this run, 1,234 left for the next" in screen(stopped)
    assert "5,678 events delivered in this run, none left" in screen(replace(stopped, lag_events=0))


def test_what_is_said_to_people_is_not_said_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    run_view.LineView(0, as_json=True).say("Spark is starting")
    assert capsys.readouterr().out == ""
    run_view.LineView(0, as_json=False).say("Spark is starting")
    assert capsys.readouterr().out == "Spark is starting\n"
