"""Commit policies in every mix, with scripted streams: real ledger, log and checkpoints, no Spark, no database."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import orjson
import psycopg
import pytest

from tests.config.conftest import PIPELINE
from tests.support.blocks import make_change
from tests.support.components import register
from tidemill import config
from tidemill.capture.status import CaptureStatus
from tidemill.cli.run_view import LineView
from tidemill.dlq import DeadLetters
from tidemill.errors import CheckpointConflict, PositionLost, Refused, TidemillError, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.delivery import Checkpoint, Receipt
from tidemill.service import pipeline_run, stream_group
from tidemill.service.lag import Lag
from tidemill.service.pipeline_run import PipelineRun
from tidemill.service.spark_session import slots
from tidemill.service.status import PipelineStatus, SinkStatus, State
from tidemill.stream.ledger import Ledger
from tidemill.stream.policy import SinkGroup
from tidemill.stream.report import BatchReport

Outlook = dict[str, str]
"""What each sink does: `up`, `down` (fails, worth a retry), `refuses`."""


class ScriptedStream:
    """A stream whose every look at `running` is a batch: delivered, tried in vain, or refused, as its sinks are."""

    outlook: ClassVar[Outlook] = {}
    follows: ClassVar[bool] = False
    said: ClassVar[str] = ""

    def __init__(
        self, group: SinkGroup, ledger: Ledger, source_id: str, log_uri: str,
        sinks: Sequence[tuple[str, dict[str, Any]]], *, on_batch: Callable[[BatchReport], None],
        on_retry: Callable[[Mapping[str, str]], None], **settings: Any,
    ) -> None:  # fmt: skip
        assert [settings["id"] for _, settings in sinks] == list(group.sinks)
        self._group, self._ledger, self._log = group, ledger, LogReader(log_uri)
        self._on_batch, self._on_retry = on_batch, on_retry
        type(self).follows = settings["follower"] is not None
        self._error: TidemillError | None = None

    def start(self) -> None:
        self.checkpoint: Checkpoint = self._ledger.begin(self._group)

    @property
    def running(self) -> bool:
        states = {sink: self.outlook[sink] for sink in self._group.sinks}
        tail = self._log.tail()
        if self.checkpoint.offset == tail.offset:
            return True
        if "refuses" in states.values():
            self._error = Refused("never", fix="Mend it.")
            return False
        if "conflict" in states.values():
            self._error = CheckpointConflict("two of us")
            return False
        if "down" in states.values():
            self._on_retry({sink: "is down" for sink, state in states.items() if state == "down"})
            return True
        start, self.checkpoint = self.checkpoint.offset, self._ledger.advance(self._group, tail.offset, tail.position)
        events = tail.offset - start
        receipts = tuple(Receipt(sink, 0, events=events, notices=self.said) for sink in self._group.sinks)
        self._on_batch(BatchReport(0, start, tail.offset, tail.position, 1, 0.1, 0, receipts, group=self._group.key))
        return True

    def await_end(self, timeout: float) -> bool:
        assert self._error is not None
        raise self._error

    def ask_to_stop(self) -> None:
        pass

    def stop(self, timeout: float) -> None:
        pass


class NoCapture:
    restarts = 0

    def __init__(self, pipeline: config.Pipeline, said: Path | None = None) -> None:
        pass

    def watch(self) -> None:
        return None

    def stop(self) -> None:
        pass


class Works:
    """A pipeline with the sinks a (required), b and c (optional), and ten events in its log."""

    def __init__(self, directory: Path, policy: str) -> None:
        path = directory / "orders.yaml"
        base = PIPELINE.replace(
            "    - {type: bucket, config: {id: b}}\n",
            "    - {type: bucket, config: {id: a}}\n"
            "    - {type: bucket, config: {id: b, required: false}}\n"
            "    - {type: bucket, config: {id: c, required: false}}\n",
        )
        path.write_text(f"{base}  commit_policy: {policy}\n  state_dir: {directory}/state\n")
        (self.pipeline,) = config.load(path)
        self.log = LogWriter.open(self.pipeline.log_uri, LogConfig.model_validate({"fsync": False}))
        self.number = 0
        self.write()

    def write(self) -> None:
        self.number += 1
        self.log.append(make_change(10, number=self.number))

    def run(self, monkeypatch: pytest.MonkeyPatch, **outlook: str) -> PipelineRun:
        monkeypatch.setattr(pipeline_run, "StreamLoop", ScriptedStream)
        monkeypatch.setattr(pipeline_run, "CaptureProcess", NoCapture)
        monkeypatch.setattr(ScriptedStream, "outlook", outlook)
        run = PipelineRun(self.pipeline, None)
        run.start_stream()
        for _ in range(3):
            run.watch()
        return run

    def checkpoint(self) -> int | None:
        kept = self.pipeline.build_checkpoints().load(self.pipeline.name)
        return kept.offset if kept else None


def test_metrics_follow_the_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a="up", b="down", c="up")

    def value(name: str, sink: str) -> float | None:
        return run.metrics.registry.get_sample_value(f"tidemill_{name}", {"pipeline": "orders", "sink": sink})

    assert [value("events_total", sink) for sink in "abc"] == [10, None, 10]
    assert [value("lag_events", sink) for sink in "abc"] == [0, 10, 0]
    assert (value("retries_total", "a"), (value("retries_total", "b") or 0) >= 1) == (0, True)
    run.stop()
    works.log.close()


@pytest.fixture(autouse=True)
def _components(monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)


def sinks(status: PipelineStatus) -> dict[str, SinkStatus]:
    return {sink.id: sink for sink in status.sinks}


UP, DOWN, REFUSES = "up", "down", "refuses"

#    policy,                     what a, b, c do,          pipeline,      checkpoint, positions of a, b, c
MIXES = [
    ("{mode: all}",              (UP, UP, UP),             "running", 10, (10, 10, 10)),
    ("{mode: all}",              (UP, UP, DOWN),           "running", None, (0, 0, 0)),
    ("{mode: all}",              (UP, REFUSES, UP),        "failed", None, (0, 0, 0)),
    ("{mode: required}",         (UP, UP, UP),             "running", 10, (10, 10, 10)),
    ("{mode: required}",         (UP, DOWN, UP),           "running", 10, (10, 0, 10)),
    ("{mode: required}",         (UP, DOWN, DOWN),         "running", 10, (10, 0, 0)),
    ("{mode: required}",         (UP, REFUSES, UP),        "running", 10, (10, 0, 10)),
    ("{mode: required}",         (UP, REFUSES, REFUSES),   "running", 10, (10, 0, 0)),
    ("{mode: required}",         (DOWN, UP, UP),           "running", None, (0, 10, 10)),
    ("{mode: required}",         (REFUSES, UP, UP),        "failed", None, (0, 0, 0)),
    ("{mode: quorum, quorum: 1}", (DOWN, UP, DOWN),        "running", 10, (0, 10, 0)),
    ("{mode: quorum, quorum: 1}", (REFUSES, REFUSES, UP),  "running", 10, (0, 0, 10)),
    ("{mode: quorum, quorum: 2}", (DOWN, UP, UP),          "running", 10, (0, 10, 10)),
    ("{mode: quorum, quorum: 2}", (UP, DOWN, DOWN),        "running", None, (10, 0, 0)),
    ("{mode: quorum, quorum: 2}", (REFUSES, UP, UP),       "running", 10, (0, 10, 10)),
    ("{mode: quorum, quorum: 2}", (REFUSES, DOWN, UP),     "running", None, (0, 0, 10)),
    ("{mode: quorum, quorum: 2}", (REFUSES, REFUSES, UP),  "failed", None, (0, 0, 0)),
    ("{mode: quorum, quorum: 3}", (UP, UP, DOWN),          "running", None, (10, 10, 0)),
    ("{mode: quorum, quorum: 3}", (UP, UP, UP),            "running", 10, (10, 10, 10)),
]  # fmt: skip
STATE = {UP: "ok", DOWN: "failing", REFUSES: "failed"}


@pytest.mark.parametrize(("policy", "outlook", "state", "checkpoint", "positions"), MIXES)
def test_commit_policies_hold_in_every_mix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, outlook: tuple[str, ...], state: str,
    checkpoint: int | None, positions: tuple[int, ...],
) -> None:  # fmt: skip
    works = Works(tmp_path, policy)
    run = works.run(monkeypatch, **dict(zip("abc", outlook, strict=True)))
    status = run.status
    assert (status.state, works.checkpoint()) == (state, checkpoint)
    if state == "running":
        found = sinks(status)
        assert tuple(found[name].offset for name in "abc") == positions
        assert tuple(found[name].lag_events for name in "abc") == tuple(10 - offset for offset in positions)
        if "all" not in policy:
            assert [found[name].state for name in "abc"] == [STATE[does] for does in outlook]
        assert status.lag_events == 10 - (checkpoint or 0)
        assert status.events == (checkpoint or 0)
    run.stop()
    works.log.close()


def test_an_optional_sink_that_comes_back_catches_up_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=DOWN, c=UP)
    works.write()
    behind = sinks(run.watch())["b"]
    assert (behind.state, behind.error, behind.lag_events, behind.waited_for) == ("failing", "is down", 20, False)
    ScriptedStream.outlook["b"] = UP
    run.watch()
    caught_up = sinks(run.watch())["b"]
    assert (caught_up.state, caught_up.error, caught_up.lag_events, caught_up.events) == ("ok", "", 0, 20)
    assert run.drained()
    run.stop()
    works.log.close()


def test_an_optional_sink_that_refuses_is_an_error_event_and_begins_again_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=REFUSES, c=UP)
    works.write()
    run.watch()
    status = run.watch()
    assert sinks(status)["b"].state == "failed"
    assert "Mend it." in sinks(status)["b"].error
    assert works.checkpoint() == 20
    assert not status.error
    (event,) = [record for record in caplog.records if record.getMessage() == "stream.sink_failed"]
    assert event.levelno == logging.ERROR
    run.stop()
    assert run.status.state is State.STOPPED
    again = works.run(monkeypatch, a=UP, b=UP, c=UP)
    assert sinks(again.status)["b"].offset == 20
    assert sinks(again.status)["b"].events == 20
    again.stop()
    works.log.close()


def test_a_sink_is_failing_only_while_it_lacks_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works(tmp_path, "{mode: all}")
    run = works.run(monkeypatch, a=DOWN, b=DOWN, c=UP)
    assert [sink.state for sink in run.status.sinks] == ["failing", "failing", "ok"]
    ScriptedStream.outlook["a"] = UP
    run.watch()
    assert [(sink.state, sink.error) for sink in run.watch().sinks] == [("ok", ""), ("failing", "is down"), ("ok", "")]
    run.stop()
    works.log.close()


def test_trouble_is_over_when_the_stream_runs_again_and_nothing_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=UP, c=UP)
    monkeypatch.setattr(stream_group, "_SETTLED_SECONDS", 3600.0)
    group = run._groups[works.pipeline.name]
    group.last_error = {"what": "the log could not be read"}
    group.on_retry({"a": "the log could not be read"})
    status = run.watch()
    assert (status.error["what"], sinks(status)["a"].state) == ("the log could not be read", "failing")
    monkeypatch.setattr(stream_group, "_SETTLED_SECONDS", 0.0)
    run.watch()
    status = run.watch()
    assert (status.error, sinks(status)["a"].state) == ({}, "ok")
    run.stop()
    works.log.close()


def test_several_sinks_that_hang_share_the_time_that_a_stop_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=DOWN, c=UP)
    clock, waited = [0.0], []

    def hang(stream: ScriptedStream, timeout: float) -> None:
        waited.append((stream._group.sinks[0], timeout))
        clock[0] += timeout

    monkeypatch.setattr(ScriptedStream, "stop", hang)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    run.stop(60)
    monkeypatch.undo()
    assert waited == [("a", 60.0), ("b", 0.0), ("c", 0.0)]
    works.log.close()


def test_a_drain_does_not_wait_for_a_sink_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=DOWN, c=UP)
    assert run.drained()
    ScriptedStream.outlook["a"] = DOWN
    works.write()
    run.watch()
    assert not run.drained()
    run.stop()
    works.log.close()


def test_another_process_that_moves_an_optional_position_stops_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b="conflict", c=UP)
    assert (run.status.state, type(run.error)) == (State.FAILED, CheckpointConflict)
    works.log.close()


@pytest.mark.parametrize(("sink", "state"), [("a", State.FAILED), ("b", State.RUNNING)])
def test_an_error_that_nobody_expected_is_a_failure_and_none_of_its_words_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sink: str, state: State
) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=UP, c=UP)

    def stumble() -> None:
        raise KeyError("a row's value")

    monkeypatch.setattr(run._groups[run._policy.group_of(sink).key], "watch", stumble)
    run.watch()
    status = run.watch()
    assert status.state is state
    monkeypatch.setattr(stream_group, "_SETTLED_SECONDS", 0.0)
    words = status.error["what"] if sink == "a" else sinks(status)["b"].error
    assert sink == "a" or sinks(run.watch())["b"].state == "failed", "though it has every event"
    assert "builtins.KeyError" in words
    assert "a row's value" not in str(status)
    run.stop()
    works.log.close()


def test_the_line_of_a_run_shows_a_sink_that_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a=UP, b=DOWN, c=UP)
    LineView(0, as_json=False).show([run.status])
    assert "a:ok b:failing(-10ev) c:ok" in capsys.readouterr().out
    run.stop()
    works.log.close()


@pytest.mark.parametrize(
    ("master", "beside", "given"),
    [("local[*]", 0, "local[*]"), ("local[2]", 3, "local[2]"), ("spark://h:1", 1, "spark://h:1")],
)
def test_a_master_that_somebody_chose_stays_as_it_is(master: str, beside: int, given: str) -> None:
    assert slots(master, beside) == (given, {})


def test_sinks_that_move_by_themselves_get_slots_beside_those_for_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert slots("local[*]", 2) == (f"local[{cores + 2}]", {"spark.default.parallelism": str(cores)})


class FailedCapture(NoCapture):
    """Gave up for good."""

    stops = 0

    def watch(self) -> None:
        raise PositionLost('replication slot "orders" is gone', where="source", fix="Run tidemill resync.")

    def stop(self) -> None:
        type(self).stops += 1


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
    monkeypatch.setattr(pipeline_run, "_STANDSTILL_SECONDS", 0.0)
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


def test_letters_are_followed_also_after_dead_letters_were_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: all}")
    follows = []
    for _ in range(2):
        works.run(monkeypatch, a=UP, b=UP, c=UP).stop()
        follows.append(ScriptedStream.follows)
        DeadLetters(works.pipeline.dlq_path).count()
    assert follows == [False, True], "at first there never were any"
    works.log.close()


def test_the_lag_is_the_age_of_the_oldest_event_that_waits_also_before_the_first_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Works(tmp_path, "{mode: all}")
    reader = LogReader(works.pipeline.log_uri)
    oldest = reader.read(reader.refs(0, 1)[0]).batch.column("commit_time")[0].as_py().timestamp()
    before = time.time()
    waiting = works.run(monkeypatch, a=DOWN, b=DOWN, c=DOWN).status
    assert waiting.lag_events == 10
    assert before - oldest <= waiting.lag_seconds <= time.time() - oldest


def test_nothing_waits_nothing_lags(tmp_path: Path) -> None:
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    log.append(make_change(10))
    lag = Lag(LogReader(str(tmp_path / "log")))
    assert lag.seconds(10, 10) == 0.0
    assert lag.seconds(3, 10) > 0.0
    log.close()


def test_what_a_sink_says_of_rows_left_behind_stands_in_the_status_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notice = {"code": "rows-left-behind", "subject": "public.t", "what": "rows keep NULL", "fix": "copy them"}
    works = Works(tmp_path, "{mode: all}")
    monkeypatch.setattr(ScriptedStream, "said", orjson.dumps({"public.t": [notice]}).decode())
    first = works.run(monkeypatch, a=UP, b=UP, c=UP)
    assert notice in first.status.notices
    first.stop()
    monkeypatch.setattr(ScriptedStream, "said", "")
    again = works.run(monkeypatch, a=UP, b=UP, c=UP)
    assert notice in again.status.notices
    monkeypatch.setattr(ScriptedStream, "said", orjson.dumps({"public.t": []}).decode())
    works.write()
    again.watch()
    again.watch()
    assert again.status.notices == ()
    again.stop()
