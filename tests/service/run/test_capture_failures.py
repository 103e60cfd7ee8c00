"""A capture process that gives up: what it captured is delivered, then the pipeline is failed with its reason."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.support.components import register
from tests.support.scripted import DOWN, REFUSES, UP, FailedCapture, NoCapture, ScriptedStream, Works
from tidemill import config
from tidemill.capture.status import CaptureStatus
from tidemill.errors import PositionLost, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogReader
from tidemill.service.run import pipeline_run, stream_groups
from tidemill.service.run.pipeline_run import PipelineRun
from tidemill.service.run.status import State


@pytest.fixture(autouse=True)
def _components(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def test_what_was_captured_before_capture_failed_is_delivered_and_then_the_pipeline_is_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: all}")
    run = works.run(monkeypatch, a=UP, b=UP, c=DOWN)
    assert works.checkpoint() is None
    run._capture = FailedCapture(works.pipeline)  # type: ignore[assignment]
    for _ in range(3):
        status = run.watch()
    assert (status.state, status.stage, status.error["what"], status.lag_events) == (
        State.FAILING, "failed", 'replication slot "orders" is gone', 10
    )  # fmt: skip
    ScriptedStream.outlook["c"] = UP
    run.watch()
    status = run.watch()
    assert (status.state, status.lag_events, works.checkpoint()) == (State.FAILED, 0, 10)
    assert isinstance(run.error, PositionLost)
    works.log.close()


def test_what_the_source_said_of_tables_stands_when_its_process_is_gone_or_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = {"code": "table-incomplete", "subject": "public.t", "what": "rows may be missing", "fix": "copy them"}
    alive = CaptureStatus(1, "cdc", lag_bytes=7, notices=(notice,), streaming_since=1.0)
    works = Works(tmp_path, "{mode: all}")
    run = works.run(monkeypatch, a=UP, b=UP, c=DOWN)
    for said, stage in ((alive, "cdc"), (None, "init"), (CaptureStatus(2, "setup"), "setup")):
        monkeypatch.setattr(NoCapture, "watch", lambda self, said=said: said)
        status = run.watch()
        assert (status.stage, status.notices) == (stage, (notice,))
    run._capture = FailedCapture(works.pipeline)  # type: ignore[assignment]
    for _ in range(2):
        status = run.watch()
        assert (status.state, status.stage, status.notices) == (State.FAILING, "failed", (notice,))
    assert status.lag_bytes is None
    ScriptedStream.outlook["c"] = UP
    run.watch()
    status = run.watch()
    assert (status.state, status.notices) == (State.FAILED, (notice,))
    works.log.close()


def test_what_the_source_no_longer_says_of_tables_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notice = {"code": "table-incomplete", "subject": "public.t", "what": "rows may be missing", "fix": "copy them"}
    works = Works(tmp_path, "{mode: all}")
    run = works.run(monkeypatch, a=UP, b=UP, c=UP)
    for said in ((notice,), ()):
        status = CaptureStatus(1, "cdc", notices=said, streaming_since=1.0)
        monkeypatch.setattr(NoCapture, "watch", lambda self, status=status: status)
        assert run.watch().notices == said
    works.log.close()


@pytest.mark.parametrize(
    ("policy", "outlook"), [("{mode: all}", (UP, UP, DOWN)), ("{mode: required}", (UP, DOWN, REFUSES))]
)
def test_a_pipeline_whose_capture_failed_does_not_wait_for_ever_for_a_sink_that_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, outlook: tuple[str, ...]
) -> None:
    works = Works(tmp_path, policy)
    run = works.run(monkeypatch, **dict(zip("abc", outlook, strict=True)))
    run._capture = FailedCapture(works.pipeline)  # type: ignore[assignment]
    assert run.watch().state is State.FAILING
    monkeypatch.setattr(stream_groups, "STANDSTILL_SECONDS", 0.0)
    assert run.watch().state is State.FAILED
    assert works.checkpoint() == (None if "all" in policy else 10)
    works.log.close()


def test_an_operator_can_stop_a_pipeline_that_still_delivers_after_its_capture_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: all}")
    run = works.run(monkeypatch, a=UP, b=UP, c=DOWN)
    run._capture = FailedCapture(works.pipeline)  # type: ignore[assignment]
    run.watch()
    run.stop()
    assert (run.status.state, run.status.lag_events, type(run.error)) == (State.FAILED, 10, PositionLost)
    works.log.close()


def test_a_stream_that_fails_too_does_not_hide_why_capture_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works = Works(tmp_path, "{mode: all}")
    run = works.run(monkeypatch, a=UP, b=UP, c=DOWN)
    run._capture = FailedCapture(works.pipeline)  # type: ignore[assignment]
    run.watch()
    ScriptedStream.outlook["c"] = REFUSES
    run.watch()
    assert (run.watch().state, type(run.error)) == (State.FAILED, PositionLost)
    assert "pipeline.rest_not_delivered" in [record.getMessage() for record in caplog.records]
    works.log.close()


def test_events_before_a_slot_that_was_dropped_arrive_before_the_pipeline_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres18: Postgres
) -> None:
    path = tmp_path / "orders.yaml"
    with postgres18.database("failing") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        source = f"type: postgres, config: {{id: p, dsn: '{dsn}', tables: [public.t]}}"
        path.write_text(
            f"metadata: {{name: orders}}\nspec:\n  source: {{{source}}}\n"
            f"  sinks: [{{type: bucket, config: {{id: a}}}}]\n  state_dir: {tmp_path}/state\n"
        )
        monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
        monkeypatch.setattr(ScriptedStream, "outlook", {"a": DOWN})
        (pipeline,) = config.load(path)
        run, log = PipelineRun(pipeline, None), LogReader(pipeline.log_uri)
        run.start()
        try:
            watch_until(run, lambda: run.status.stage == "cdc")
            db.execute("INSERT INTO t SELECT generate_series(1, 7)")
            watch_until(run, lambda: log.tail().offset == 7)
            (slot,) = db.execute(
                "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
            ).fetchone() or ("",)
            while True:  # capture connects again and again
                db.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [slot]
                )
                with contextlib.suppress(psycopg.errors.ObjectInUse):
                    db.execute("SELECT pg_drop_replication_slot(%s)", [slot])
                    break
            watch_until(run, lambda: run.status.state is State.FAILING)
            assert slot in run.status.error["what"]
            ScriptedStream.outlook["a"] = UP
            watch_until(run, lambda: run.status.state is State.FAILED)
        finally:
            run.stop()
    assert run.error is not None
    assert slot in run.error.what
    # Raised in the capture process, and here what it was there.
    assert isinstance(run.error, PositionLost)
    assert (type(run.error).__name__, run.error.code, is_retryable(run.error)) == ("SlotLost", "slot-lost", False)
    assert (run.status.error["code"], run.status.error["bases"]) == ("slot-lost", ["position-lost", "source-failed"])
    kept = pipeline.build_checkpoints().load("orders")
    assert kept is not None
    assert (kept.offset, run.status.lag_events) == (7, 0)


def watch_until(run: PipelineRun, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, run.status
        run.watch()
        time.sleep(0.05)
