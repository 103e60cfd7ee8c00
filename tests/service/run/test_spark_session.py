"""Which session the pipelines of a process get."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.conftest import PIPELINE
from tests.support.components import register
from tidemill import config
from tidemill.service.run.spark_session import choose_master, slots
from tidemill.stream.spark.settings import AMPLE_SLOTS

CORES = len(os.sched_getaffinity(0))
FEW_THREADS = {"spark.default.parallelism": str(CORES), "spark.rpc.netty.dispatcher.numThreads": str(max(2, CORES))}

STANDING = """
import os, sys
from pathlib import Path
from tidemill import config
from tidemill.service.run.spark_session import begin_java
from tidemill.stream.spark.session import create_session, warm_up

java = begin_java(config.load(Path(sys.argv[1])))
spark = create_session("t", java=java)
warm_up(spark)
tasks = spark.sparkContext.parallelize(range(1), 1)
print(len({tasks.map(lambda _: os.getpid()).first() for _ in range(4)}), "worker")
threads = spark.sparkContext._jvm.java.lang.Thread.activeCount()
print("few threads" if threads < 500 else f"{threads} threads")
spark.stop()
"""


@pytest.mark.parametrize("master", ["local[2]", "spark://h:1"])
def test_a_master_that_somebody_chose_stays_as_it_is(master: str) -> None:
    assert slots(master, 3, ample=True) == (master, {})


def test_sinks_that_move_by_themselves_get_slots_beside_those_for_the_cores() -> None:
    assert slots("local[*]") == ("local[*]", {})
    assert slots("local[*]", 2) == (f"local[{CORES + 2}]", FEW_THREADS)


@pytest.mark.parametrize(("mode", "expected"), [("real_time", f"local[{AMPLE_SLOTS}]"), ("micro_batch", "local[*]")])
def test_where_lanes_stand_there_is_a_slot_for_each_that_ever_will(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, expected: str
) -> None:
    register(monkeypatch)
    (tmp_path / "p.yaml").write_text(f"{PIPELINE}  trigger: {{mode: {mode}}}\n")
    master, conf = choose_master(config.load(tmp_path / "p.yaml"))
    assert master == expected
    assert conf == (FEW_THREADS if mode == "real_time" else {}), "lanes and threads follow the cores"


@pytest.mark.slow  # the program starts Spark
def test_a_lane_stands_in_the_same_worker_in_every_epoch_and_slots_are_no_threads(tmp_path: Path) -> None:
    """Of workers that take turns each would keep what its largest batch took."""
    (tmp_path / "p.yaml").write_text(f"""
metadata: {{name: p}}
spec:
  source: {{type: sqlite, config: {{id: s, path: {tmp_path}/s.db}}}}
  sinks: [{{type: blackhole, config: {{id: b}}}}]
  trigger: {{mode: real_time}}
  state_dir: {tmp_path}/state
""")
    ended = subprocess.run(
        [sys.executable, "-c", STANDING, tmp_path / "p.yaml"], capture_output=True, text=True, timeout=180
    )
    assert ended.stdout.splitlines() == ["1 worker", "few threads"], ended.stderr[-3000:]
