"""`wire_format:` of a pipeline: the default of its sinks, and a condition."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.config.test_pipeline import only
from tidemill import config

Write = Callable[..., Path]
SOURCE = """\
metadata: {name: orders}
spec:
  source: {type: pond, config: {id: p, dsn: "pond://lake"}}
  wire_format: %s
  sinks:
"""


def formats(file: Path) -> list[str | None]:
    (pipeline,) = config.load(file)
    return [getattr(sink.config, "format", None) for sink in pipeline.spec.sinks]


def test_it_is_the_format_of_every_sink_that_sends_events(write: Write) -> None:
    sinks = """\
    - {type: files, config: {id: a, path: x}}
    - {type: kafka, config: {id: b, brokers: "h:1", topic: t, format: avro}}
    - {type: bucket, config: {id: c}}
"""
    assert formats(write(sinks, base=SOURCE % "avro")) == ["avro", "avro", None]


def test_a_sink_that_does_not_take_it_is_refused_with_its_line_and_its_formats(write: Write) -> None:
    problem = only(write("    - type: stdout\n      config: {id: s}\n", base=SOURCE % "parquet"))
    assert (problem.line, problem.path) == (6, ("spec", "sinks", 0, "type"))
    assert 'the sink "stdout" does not take wire_format parquet' in problem.what
    assert "It takes json." in problem.fix


def test_a_sink_with_another_format_is_refused(write: Write) -> None:
    problem = only(write("    - type: files\n      config: {id: s, path: x, format: json}\n", base=SOURCE % "arrow"))
    assert problem.path == ("spec", "sinks", 0, "config", "format")
    assert "wire_format is arrow, not json" in problem.what


@pytest.mark.parametrize("name", ["xml", "Avro"])
def test_a_format_that_there_is_not_is_refused(write: Write, name: str) -> None:
    problem = only(write("    - {type: bucket, config: {id: s}}\n", base=SOURCE % name))
    assert problem.path == ("spec", "wire_format")
    assert "avro" in problem.fix
