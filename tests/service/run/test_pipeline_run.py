"""Commit policies in every mix, with scripted streams: real ledger, log and checkpoints, no Spark, no database."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from tests.support.blocks import make_change
from tests.support.components import register
from tests.support.scripted import DOWN, REFUSES, UP, ScriptedStream, Works
from tidemill.cli.run_view import LineView
from tidemill.dlq import DeadLetters
from tidemill.errors import CheckpointConflict
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.block import COMMIT_TIME, META, Block
from tidemill.service.run import stream_group
from tidemill.service.run.lag import Lag
from tidemill.service.run.status import PipelineStatus, SinkStatus, State


def test_metrics_follow_the_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    works = Works(tmp_path, "{mode: required}")
    run = works.run(monkeypatch, a="up", b="down", c="up")

    def value(name: str, sink: str) -> float | None:
        return works.metrics.registry.get_sample_value(f"tidemill_{name}", {"pipeline": "orders", "sink": sink})

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


def test_an_event_without_a_commit_lags_since_the_log_has_it(tmp_path: Path) -> None:
    """PostgreSQL's messages outside of a transaction: anybody may write them."""
    change = make_change(3)
    at = META.get_field_index("commit_time")
    blocks = tuple(
        Block(block.table, block.batch.set_column(at, META.field(at), pa.nulls(block.rows, COMMIT_TIME)))
        for block in change.blocks
    )
    with closing(LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))) as log:
        log.append(replace(change, blocks=blocks))
        assert 0.0 <= Lag(LogReader(str(tmp_path / "log"))).seconds(0, 3) < 3600


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
