"""Advice names the pipeline's file, so that it can be pasted, or says that there has to be one first."""

from __future__ import annotations

import shlex
from pathlib import Path

from tidemill import config
from tidemill.config.advice import fill_in, fill_in_data
from tidemill.config.pipeline import resolve_all
from tidemill.config.posted import document_of

LOST = 'Run "tidemill recover FILE --snapshot", or "tidemill recover FILE --accept-gap".'
SPEC = {
    "source": {"type": "postgres", "config": {"id": "shop", "dsn": "postgresql://cdc@db/shop", "tables": ["a.b"]}},
    "sinks": [{"type": "blackhole", "config": {"id": "hole"}}],
}


def test_advice_names_the_file_of_the_pipeline_as_a_shell_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "my orders.yaml"
    file.write_text(str({"metadata": {"name": "orders"}, "spec": SPEC}))
    (pipeline,) = config.load(file)
    command = fill_in("tidemill checkpoints set FILE 118 --sink lake", pipeline)
    assert shlex.split(command) == [
        "tidemill", "checkpoints", "set", str(file), "--pipeline", "orders", "118", "--sink", "lake",
    ]  # fmt: skip
    assert "FILE" not in fill_in(LOST, pipeline)
    assert fill_in("Set profile=FILE.", pipeline) == "Set profile=FILE."
    assert fill_in_data({"code": "x"}, pipeline) == {"code": "x"}


def test_advice_for_a_pipeline_of_the_api_asks_the_server_or_says_that_its_document_has_to_be_written_first(
    tmp_path: Path,
) -> None:
    posted = {"metadata": {"name": "orders"}, "spec": {**SPEC, "state_dir": str(tmp_path)}}
    (pipeline,) = resolve_all([document_of(posted, "pipeline orders (API)", {})])
    assert fill_in(LOST, pipeline) == (
        'Run "tidemill pipelines recover orders --snapshot", or "tidemill pipelines recover orders --accept-gap".'
    )
    moved = 'Run "tidemill checkpoints set FILE 118".'
    advice = fill_in(moved, pipeline)
    assert advice.startswith(moved)
    assert (
        f"FILE has to be written first, because this pipeline came from none: its document, with state_dir: {tmp_path}"
        in advice
    )
    assert fill_in(advice, pipeline) == advice, "capture and the run both fill it in"
    assert fill_in("Grant it.", pipeline) == "Grant it."


def test_advice_for_a_pipeline_of_the_environment_names_no_file() -> None:
    variables = {
        "TIDEMILL__METADATA__NAME": "orders", "TIDEMILL__SPEC__SOURCE__TYPE": "postgres",
        "TIDEMILL__SPEC__SOURCE__CONFIG__ID": "shop", "TIDEMILL__SPEC__SOURCE__CONFIG__TABLES": "a.b",
        "TIDEMILL__SPEC__SOURCE__CONFIG__DSN": "postgresql://cdc@db/shop",
        "TIDEMILL__SPEC__SINKS__0__TYPE": "blackhole", "TIDEMILL__SPEC__SINKS__0__CONFIG__ID": "hole",
        "TIDEMILL__SPEC__STATE_URI": "postgresql://cdc:secret@db/state",
    }  # fmt: skip
    advice = fill_in(LOST, config.load_environment(variables))
    assert advice.endswith("and the state_uri that it has now.")
    assert "secret" not in advice
