"""The same pipeline on a standalone Spark cluster: a master, a worker, executors in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson

from tests.support.blocks import make_change
from tidemill.lab.servers.spark import Cluster
from tidemill.log import LogConfig, LogWriter
from tidemill.stream.batch.admission import ROWS_PER_LANE


def test_a_pipeline_runs_on_a_standalone_cluster_as_it_does_locally(tmp_path: Path) -> None:
    rows = ROWS_PER_LANE * 2
    log = LogWriter.open(str(tmp_path / "log"), LogConfig.model_validate({"fsync": False}))
    log.append(make_change(rows))
    log.close()
    with Cluster(directory=tmp_path / "cluster") as cluster, (tmp_path / "driver.log").open("wb") as output:
        command = [sys.executable, "-m", "tests.stream.driver", str(tmp_path), "2", str(rows), cluster.url]
        done = subprocess.run(command, stdout=output, stderr=output, timeout=300, check=False, env=dict(os.environ))
        assert done.returncode == 0, (tmp_path / "driver.log").read_text()[-3000:]
    notes = [orjson.loads(line) for line in (tmp_path / "s.jsonl").read_bytes().splitlines()]
    assert sorted(row[2] for note in notes for row in note["rows"]) == list(range(rows))
    assert sorted((note["lane"], note["lanes"]) for note in notes) == [(0, 2), (1, 2)]
    assert any((tmp_path / "cluster" / "work").glob("app-*/*/stderr")), "executors of the cluster did the work"
