from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.blocks import make_change, position
from tests.support.components import register
from tests.support.terminal import Terminal
from tidemill import config
from tidemill.contracts import LostRange
from tidemill.log import LogConfig, LogReader, LogWriter, Tail, acknowledge
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position
from tidemill.service.maintenance.moves import read_delivered

Make = Callable[..., config.Pipeline]


@pytest.fixture
def tidemill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    register(monkeypatch)
    return Terminal(capsys)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> config.Pipeline:
    """Stopped at offset 5 of 10; transactions end at 3, 5, 8 and 10."""
    register(monkeypatch)
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE + f"  state_dir: {tmp_path}/state\n  checkpoints: {{type: sqlite}}\n")
    (pipeline,) = config.load(path)
    writer = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}))
    writer.append(make_change(3, number=1))
    writer.append(make_change(2, 3, number=2))
    writer.append(make_change(2, number=4))
    writer.close()
    store = pipeline.build_checkpoints()
    store.save(pipeline.name, Checkpoint(3, position(1)), expect=0)
    store.save(pipeline.name, Checkpoint(5, position(2)), expect=1)
    store.close()
    acknowledge(pipeline.log_uri, Tail(5, position(2)))
    (pipeline.spark_path / "offsets").mkdir(parents=True)
    return pipeline


def test_show_and_history(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    (shown,) = tidemill("checkpoints", "show", pipeline.file, "--json").json["checkpoints"]
    assert (shown["pipeline"], shown["checkpoint"]["offset"]) == ("orders", 5)
    past = tidemill("checkpoints", "history", pipeline.file, "--json").json["checkpoints"]
    assert [c["offset"] for c in past] == [5, 3]
    assert "0/200" in tidemill("checkpoints", "show", pipeline.file, "-p", "orders").out
    assert len(tidemill("checkpoints", "history", pipeline.file, "--limit", 1).out.splitlines()) == 2


def test_show_without_a_checkpoint(tidemill: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    path.write_text(PIPELINE + f"  state_dir: {tmp_path}/nothing\n")
    assert "none" in tidemill("checkpoints", "show", path).out
    assert tidemill("checkpoints", "show", path, "--json").json["checkpoints"][0]["checkpoint"] is None


@pytest.mark.parametrize(("offset", "replayed", "skipped"), [(3, 2, 0), (0, 5, 0), (8, 0, 3), (10, 0, 5), (5, 0, 0)])
def test_set_moves_checkpoint_and_mark_and_clears_sparks_directory(
    tidemill: Terminal, pipeline: config.Pipeline, offset: int, replayed: int, skipped: int
) -> None:
    answer = tidemill("checkpoints", "set", pipeline.file, offset, "--force", "--note", "why", "--json")
    assert answer.code == 0, answer
    stored = answer.json["checkpoint"]
    there = LogReader(pipeline.log_uri).position_at(offset)
    assert (stored["offset"], stored["position"], stored["version"], stored["note"]) == (offset, there, 3, "why")
    assert (answer.json["replayed"], answer.json["skipped"]) == (replayed, skipped)
    assert read_delivered(pipeline.log_uri) == Tail(offset, there)
    assert not pipeline.spark_path.exists()


def test_set_says_what_it_would_do_and_waits_for_force(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    answer = tidemill("checkpoints", "set", pipeline.file, 3)
    assert answer.code == 1
    assert "2 events before offset 5 are delivered again" in answer.err
    assert "never delivered" in tidemill("checkpoints", "set", pipeline.file, 8).err
    assert pipeline.spark_path.exists()
    assert read_delivered(pipeline.log_uri) == Tail(5, position(2))


def test_set_refuses_the_middle_of_a_transaction_and_names_its_beginning(
    tidemill: Terminal, pipeline: config.Pipeline
) -> None:
    answer = tidemill("checkpoints", "set", pipeline.file, 7, "--force")
    assert answer.code == 1
    assert "begins at 5" in answer.err


def test_set_refuses_what_the_log_does_not_have(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    assert "it holds 0 to 10" in tidemill("checkpoints", "set", pipeline.file, 11, "--force").err
    assert tidemill("checkpoints", "set", pipeline.file, 3, "--position", "0/1", "--force").code == 2
    assert tidemill("checkpoints", "set", pipeline.file, "--force").code == 2
    assert tidemill("checkpoints", "set", pipeline.file, "--since", "yesterday", "--force").code == 2


def test_set_since_a_time(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    answer = tidemill("checkpoints", "set", pipeline.file, "--since", "2000-01-01T00:00:00Z", "--force", "--json")
    assert answer.json["checkpoint"]["offset"] == 0
    answer = tidemill("checkpoints", "set", pipeline.file, "--since", "2100-01-01", "--force", "--json")
    assert answer.json["checkpoint"]["offset"] == 10


def test_set_refuses_while_capture_runs(tidemill: Terminal, pipeline: config.Pipeline) -> None:
    writer = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}))
    try:
        answer = tidemill("checkpoints", "set", pipeline.file, 3, "--force")
    finally:
        writer.close()
    assert answer.code == 1
    assert "another process writes this log" in answer.err
    assert pipeline.spark_path.exists()


def test_an_empty_log_can_be_told_a_position_but_never_reuses_offsets(
    tidemill: Terminal, tmp_path: Path, pipeline: config.Pipeline
) -> None:
    Path(pipeline.log_uri).rename(tmp_path / "away")
    before = tidemill("checkpoints", "set", pipeline.file, 2, "--position", "0/ABC", "--force")
    assert "already name other events" in before.err
    answer = tidemill("checkpoints", "set", pipeline.file, "--position", "0/ABC", "--force", "--json")
    assert answer.json["checkpoint"]["offset"] == 5
    base = Tail(5, Position("0/ABC"))
    writer = LogWriter.open(pipeline.log_uri, LogConfig.model_validate({}), base=base)
    assert writer.tail == base
    writer.close()


def test_an_empty_log_never_reuses_offsets_that_a_sink_ahead_of_the_pipeline_has(
    tidemill: Terminal, tmp_path: Path, fanned: config.Pipeline
) -> None:
    tidemill("checkpoints", "set", fanned.file, 8, "--sink", "c", "--force")
    Path(fanned.log_uri).rename(tmp_path / "away")
    assert (
        "before 8 already name" in tidemill("checkpoints", "set", fanned.file, 5, "--position", "0/ABC", "--force").err
    )
    answer = tidemill("checkpoints", "set", fanned.file, "--position", "0/ABC", "--force", "--json")
    assert answer.json["checkpoint"]["offset"] == 8


@pytest.fixture
def fanned(pipeline: config.Pipeline) -> config.Pipeline:
    """The same with an optional sink c that stands at 3."""
    path = Path(pipeline.file)
    optional = "    - {type: bucket, config: {id: c, required: false}}\n"
    path.write_text(path.read_text().replace("  state_dir", f"{optional}  state_dir", 1))
    (fanned,) = config.load(path)
    store = fanned.build_checkpoints()
    store.save("orders:c", Checkpoint(3, position(1)), expect=0)
    store.close()
    fanned.spark_path_of("c").mkdir()
    return fanned


def test_show_tells_the_position_of_each_sink(tidemill: Terminal, fanned: config.Pipeline) -> None:
    (shown,) = tidemill("checkpoints", "show", fanned.file, "--json").json["checkpoints"]
    assert [(at["sink"], at["own"], at["checkpoint"]["offset"]) for at in shown["sinks"]] == [
        ("b", False, 5),
        ("c", True, 3),
    ]
    assert len(tidemill("checkpoints", "show", fanned.file).out.splitlines()) == 3
    sinks = tidemill("log", "stats", fanned.file, "--json").json["sinks"]
    assert [(at["sink"], at["undelivered_events"]) for at in sinks] == [("b", 5), ("c", 7)]


def test_set_moves_one_sink_and_leaves_the_pipeline_alone(tidemill: Terminal, fanned: config.Pipeline) -> None:
    answer = tidemill("checkpoints", "set", fanned.file, 8, "--sink", "c", "--force", "--json").json
    assert (answer["sink"], answer["checkpoint"]["offset"], answer["skipped"]) == ("c", 8, 5)
    assert not fanned.spark_path_of("c").exists()
    assert fanned.spark_path.exists()
    assert read_delivered(fanned.log_uri) == Tail(5, position(2))
    (shown,) = tidemill("checkpoints", "show", fanned.file, "--json").json["checkpoints"]
    assert shown["checkpoint"]["offset"] == 5
    past = tidemill("checkpoints", "history", fanned.file, "--sink", "c", "--json").json["checkpoints"]
    assert [each["offset"] for each in past] == [8, 3]


def test_a_sink_that_was_moved_has_lost_nothing_any_more_and_others_have(
    tidemill: Terminal, fanned: config.Pipeline
) -> None:
    with closing(fanned.build_state()) as state:
        for sink in ("c", "d"):
            state.add_lost_range("orders", sink, LostRange(0, 3, 3))
            state.save_spark_start("orders", 3, sink)
        tidemill("checkpoints", "set", fanned.file, 8, "--sink", "c", "--force", "--json")
        assert (state.lost_ranges("orders", "c"), state.spark_start("orders", "c")) == ([], None)
        assert (state.lost_ranges("orders", "d"), state.spark_start("orders", "d")) == ([LostRange(0, 3, 3)], 3)


def test_set_refuses_a_sink_that_has_no_position_of_its_own(tidemill: Terminal, fanned: config.Pipeline) -> None:
    assert "moves with the pipeline" in tidemill("checkpoints", "set", fanned.file, 3, "--sink", "b", "--force").err
    assert "There are: b, c" in tidemill("checkpoints", "set", fanned.file, 3, "--sink", "x", "--force").err
    path = Path(fanned.file)
    path.write_text(path.read_text() + "  commit_policy: {mode: quorum, quorum: 1}\n")
    answer = tidemill("checkpoints", "set", path, 3, "--force")
    assert answer.code == 2
    assert "--sink" in answer.err
