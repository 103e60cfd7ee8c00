"""The benches run and answer what they promise; how fast anything is, no test says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill import registry
from tidemill.errors import ConfigError
from tidemill.lab.bench.baselines import BASELINES
from tidemill.lab.bench.formats import FormatsBench
from tidemill.lab.bench.material import TABLE, Material
from tidemill.lab.bench.sinks import SinksBench

#: Sinks that are not measured, each with its reason.
WITHOUT = {"blackhole": "sends nothing: `bench sinks` measures encoding for itself", "stdout": "a terminal's speed"}


def test_every_sink_is_measured_or_has_a_reason() -> None:
    assert set(registry.names("sinks")) == {name.partition(":")[0] for name in BASELINES} | WITHOUT.keys()


def test_the_prepared_log_has_every_event_once_in_batches_of_the_right_size(tmp_path: Path) -> None:
    material = Material.make(tmp_path, 45_000)
    deliveries = material.deliveries(20_000, pipeline="p")
    assert (deliveries[0].start, deliveries[0].end) == (0, 1000)
    assert max(d.end - d.start for d in deliveries) <= 20_000
    offsets = [int(o) for d in deliveries for block in d for o in block.offsets()]
    assert offsets == list(range(45_000))
    assert {block.table.name for block in material.blocks()} == {TABLE.name}


@pytest.mark.parametrize("names", [("files",), ("files", "redis"), ("http", "http:event", "http:threads")])
def test_the_bench_of_sinks_answers_with_its_documented_keys(names: tuple[str, ...]) -> None:
    said: list[str] = []
    result = SinksBench(rows=3000, rounds=1, only=names, say=said.append).run()
    assert result["sinks"].keys() == set(names)
    for measured in result["sinks"].values():
        assert measured["rows_per_s"] > 0
        assert measured["ratio_plain_loop"] > 0
        assert measured["encode_us_per_row"] > 0
    formats = set(registry.names("formats")) if len(names) > 1 else set()
    assert result["formats"].keys() == formats
    assert all(form["us_per_row"] > 0 for form in result["formats"].values())
    assert said


def test_the_bench_of_formats_compares_encoders_that_write_the_same_events() -> None:
    result = FormatsBench(rows=2000, rounds=1, say=print).run()
    assert result["formats"].keys() == {"avro", "protobuf"}
    for measured in result["formats"].values():
        assert measured["same_events"]
        assert measured["us_per_row"] > 0
        assert measured["library_us_per_row"] > 0
    assert result["dictionaries_us_per_row"] > 0


def test_the_bench_of_pgstream_also_pulls_and_acks() -> None:
    result = SinksBench(rows=3000, rounds=1, only=("pgstream",), say=print).run()
    measured = result["sinks"]["pgstream"]
    assert measured["pull_batch"] == 1000
    assert measured["pull_messages_per_s"] > 0
    assert measured["plain_pull_messages_per_s"] > 0
    assert measured["pull_ratio_plain_loop"] > 0
    assert "SKIP LOCKED" in measured["pull_plain_loop"]


def test_a_sink_that_is_not_measured_is_named() -> None:
    with pytest.raises(ConfigError, match="blackhole"):
        SinksBench(rows=1000, rounds=1, only=("blackhole",), say=print)
