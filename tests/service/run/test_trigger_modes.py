"""Who stands and who takes turns, where a session has few slots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.components import register
from tidemill import config
from tidemill.config import Pipeline
from tidemill.errors import EnvironmentProblem
from tidemill.service.run.spark_session import choose_master
from tidemill.service.run.trigger_modes import choose_triggers, report_turns, standing_lanes
from tidemill.stream.spark.settings import AMPLE_SLOTS

Load = Callable[..., Pipeline]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    register(monkeypatch)

    def load(name: str, trigger: str = "", more: str = "") -> Pipeline:
        document = (
            f"metadata: {{name: {name}}}\nspec:\n"
            f'  source: {{type: pond, config: {{id: {name}, dsn: "pond://127.0.0.1/lake"}}}}\n'
            "  sinks:\n  - {type: bucket, config: {id: main}}\n"
            "  - {type: barrel, config: {id: beside, litres: 1, required: false}}\n"
            f"  state_dir: {tmp_path}\n{more}\n"
        )
        if trigger:
            document += f"  trigger: {{mode: {trigger}}}\n"
        (tmp_path / f"{name}.yaml").write_text(document)
        return config.load(tmp_path / f"{name}.yaml")[0]

    return load


def modes(pipelines: list[Pipeline], master: str, held: int = 0) -> list[str]:
    triggers = choose_triggers(pipelines, master, held)
    return [triggers[pipeline.name].mode for pipeline in pipelines]


def test_who_names_no_mode_is_in_real_time(load: Load) -> None:
    pipeline = load("a")
    assert pipeline.spec.trigger.real_time
    assert standing_lanes(pipeline) == 2, "a lane for each group of sinks"
    assert choose_master([pipeline])[0] == f"local[{AMPLE_SLOTS}]"
    assert modes([pipeline], f"local[{AMPLE_SLOTS}]") == modes([pipeline], "spark://host:7077") == ["real_time"]


@pytest.mark.parametrize(
    ("master", "held", "expected"),
    [
        ("local[1]", 0, ["micro_batch", "micro_batch"]),
        ("local[2]", 0, ["micro_batch", "micro_batch"]),
        ("local[3]", 0, ["real_time", "micro_batch"]),
        ("local[5]", 0, ["real_time", "real_time"]),
        ("local[5]", 2, ["real_time", "micro_batch"]),
    ],
)
def test_who_names_no_mode_takes_turns_where_the_session_has_no_slot(
    load: Load, master: str, held: int, expected: list[str]
) -> None:
    assert modes([load("a"), load("b")], master, held) == expected


def test_who_asks_for_real_time_comes_before_who_names_no_mode(load: Load) -> None:
    assert modes([load("a"), load("b", "real_time")], "local[3]") == ["micro_batch", "real_time"]


def test_who_asks_for_real_time_gets_it_or_an_error(load: Load) -> None:
    pipelines = [load("a", "real_time"), load("b", "once")]
    with pytest.raises(EnvironmentProblem, match="would hold 4 of Spark's 4 slots") as raised:
        choose_triggers(pipelines, "local[4]")
    assert "local[5]" in raised.value.fix
    assert "a, b" in raised.value.where


def test_a_session_that_starts_tasks_twice_has_no_standing_ones(load: Load) -> None:
    twice = load("a", more='  spark: {conf: {spark.speculation: "true"}}')
    assert modes([twice], "local[*]") == ["micro_batch"]
    assert modes([load("b"), twice], "local[64]") == ["micro_batch", "micro_batch"], "they share the session"


def test_a_pipeline_that_takes_turns_says_why(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    pipelines = [load("a"), load("b", "micro_batch")]
    with caplog.at_level("INFO", logger="tidemill"):
        report_turns(pipelines, choose_triggers(pipelines, "local[1]"), "local[1]")
    (record,) = [each for each in caplog.records if each.getMessage() == "stream.no_real_time"]
    fields = record.__dict__["fields"]
    assert (fields["pipeline"], fields["reason"]) == ("a", "Spark has no slot to spare")
    assert "spark.master" in fields["fix"]
