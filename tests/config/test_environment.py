"""Every field by a variable: over a file, or without one; and what is wrong names the variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import Terminal
from tidemill import config
from tidemill.config.environment import path_of, variable_of
from tidemill.config.spec import PipelineDocument

FILE = """
metadata: {name: orders}
spec:
  source: {type: postgres, config: {id: shop, dsn: "postgresql://cdc@db/shop", tables: [public.orders]}}
  sinks:
    - {type: blackhole, config: {id: hole}}
"""
ALONE = {
    "TIDEMILL__METADATA__NAME": "orders",
    "TIDEMILL__METADATA__LABELS": '{"team": "shop"}',
    "TIDEMILL__SPEC__SOURCE__TYPE": "postgres",
    "TIDEMILL__SPEC__SOURCE__CONFIG__ID": "7",
    "TIDEMILL__SPEC__SOURCE__CONFIG__DSN": "postgresql://cdc:pass@db/shop",
    "TIDEMILL__SPEC__SOURCE__CONFIG__TABLES": "public.orders, public.users",
    "TIDEMILL__SPEC__SINKS__0__TYPE": "blackhole",
    "TIDEMILL__SPEC__SINKS__0__CONFIG__ID": "hole",
    "TIDEMILL__SPEC__BATCH__MAX_EVENTS": "1000",
    "TIDEMILL__SPEC__BATCH__RESPECT_SOURCE_TX": "false",
    "TIDEMILL__SPEC__SPARK__CONF": '{"spark.ui.enabled": "true"}',
}


def test_a_pipeline_is_given_by_variables_alone() -> None:
    pipeline = config.load_environment(ALONE)
    source: Any = pipeline.spec.source.config
    assert (pipeline.name, dict(pipeline.labels), source.id) == ("orders", {"team": "shop"}, "7")
    assert list(source.tables) == ["public.orders", "public.users"]
    assert (pipeline.spec.batch.max_events, pipeline.spec.batch.respect_source_tx) == (1000, False)
    assert pipeline.spec.spark.conf == {"spark.ui.enabled": "true"}
    assert pipeline.origins["spec.batch.max_events"] == "TIDEMILL__SPEC__BATCH__MAX_EVENTS"


def test_a_variable_wins_over_the_file_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(FILE)
    variables = {
        "TIDEMILL__SPEC__SOURCE__CONFIG__TABLES": '["public.a,b"]', "TIDEMILL__SPEC__SINKS__0__CONFIG__ID": "other",
        "TIDEMILL__SPEC__SINKS__1": '{"type": "blackhole", "config": {"id": "more"}}', "UNRELATED": "x",
    }  # fmt: skip
    [pipeline] = config.load(file, variables)
    source: Any = pipeline.spec.source.config
    assert list(source.tables) == ["public.a,b"]
    assert [sink.config.id for sink in pipeline.spec.sinks] == ["other", "more"]
    assert pipeline.origins["spec.source.type"] == f"{file}:4"
    assert pipeline.origins["spec.sinks[0].config.id"] == "TIDEMILL__SPEC__SINKS__0__CONFIG__ID"
    assert pipeline.origins["spec.sinks[1].type"] == "TIDEMILL__SPEC__SINKS__1"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TIDEMILL__SPEC__BATCH__MAX_EVENTS", "many", "whole number"),
        ("TIDEMILL__SPEC__BATCH__MAX_EVENT", "5", "max_events"),
        ("TIDEMILL__SPEC__SINKS__3__TYPE", "blackhole", "would leave a gap"),
        ("TIDEMILL__SPEC__SINKS__FIRST", "x", "a list wants a number"),
        ("TIDEMILL__SPEC____BATCH", "x", "is missing"),
    ],
)
def test_what_is_wrong_names_the_variable(tmp_path: Path, name: str, value: str, said: str) -> None:
    file = tmp_path / "orders.yaml"
    file.write_text(FILE)
    with pytest.raises(config.DocumentError) as raised:
        config.load(file, {name: value})
    [problem] = raised.value.problems
    assert problem.file == name
    assert said in problem.what + problem.fix


def test_a_name_and_its_path_belong_together() -> None:
    path = ("spec", "sinks", 0, "config", "path")
    assert variable_of(path) == "TIDEMILL__SPEC__SINKS__0__CONFIG__PATH"
    assert path_of(variable_of(path)) == path
    assert "spec" in PipelineDocument.model_fields


def test_validate_shows_where_each_value_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    tidemill = Terminal(capsys)
    assert "# spec.batch.max_events: TIDEMILL__SPEC__BATCH__MAX_EVENTS" in tidemill("validate", "--env").out
    answer = tidemill("validate", "--env", "--json")
    assert '"spec.source.config.id": "TIDEMILL__SPEC__SOURCE__CONFIG__ID"' in answer.out
    assert "cdc:pass" not in answer.out
    assert tidemill("run").code == 2
    assert tidemill("validate", "--env", "orders.yaml").code == 2
