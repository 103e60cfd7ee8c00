"""Which session the pipelines of a process get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tidemill import config
from tidemill.service.run.spark_session import choose_master, slots
from tidemill.stream.spark.settings import AMPLE_SLOTS

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize("master", ["local[2]", "spark://h:1"])
def test_a_master_that_somebody_chose_stays_as_it_is(master: str) -> None:
    assert slots(master, 3, ample=True) == (master, {})


def test_sinks_that_move_by_themselves_get_slots_beside_those_for_the_cores() -> None:
    assert slots("local[*]") == ("local[*]", {})
    assert slots("local[*]", 2) == (f"local[{CORES + 2}]", {"spark.default.parallelism": str(CORES)})


@pytest.mark.parametrize(("mode", "expected"), [("real_time", f"local[{AMPLE_SLOTS}]"), ("micro_batch", "local[*]")])
def test_where_lanes_stand_there_is_a_slot_for_each_that_ever_will(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, expected: str
) -> None:
    register(monkeypatch)
    (tmp_path / "p.yaml").write_text(f"{PIPELINE}  trigger: {{mode: {mode}}}\n")
    master, conf = choose_master(config.load(tmp_path / "p.yaml"))
    assert master == expected
    assert conf == ({"spark.default.parallelism": str(CORES)} if mode == "real_time" else {}), "lanes follow the cores"
