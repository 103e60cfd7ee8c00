"""What is there is delivered, rows and changes, also while others go on writing; then the run ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.config.conftest import PIPELINE
from tests.crash.actors import wait_for
from tests.support.components import register
from tidemill import config
from tidemill.errors import ConfigError
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.run.once import check_ends, find_undelivered
from tidemill.service.run.status import PipelineStatus, SinkStatus, State
from tidemill.service.runtime import Runtime

DOCUMENT = """
metadata: {name: once}
spec:
  state_dir: STATE
  source: {type: postgres, config: {id: once, dsn: "DSN", tables: [public.orders], slot: run_once, snapshot: {}}}
  sinks: [{type: files, config: {id: lake, path: "LAKE"}}]
  trigger: {mode: once}
"""


def test_a_pipeline_that_runs_once_delivers_what_was_there_while_others_write_and_ends(
    tmp_path: Path, spark: Any, postgres18: Postgres
) -> None:
    lake, stop = tmp_path / "lake", threading.Event()

    def run_once() -> None:
        with Runtime(spark=spark) as runtime:
            name = runtime.add(pipeline)
            runtime.start(name)
            wait_for(lambda: runtime.completed(name), 180, lambda: str(runtime.status(name)))
            runtime.settle(name)
            assert runtime.status(name).state is State.STOPPED
            assert find_undelivered(runtime.statuses()) == []

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as db:
            for n in range(10_000, 1_000_000):
                if stop.wait(0.02):
                    return
                db.execute("INSERT INTO orders VALUES (%s)", [n])

    def delivered() -> list[int]:
        lines = [line for file in lake.rglob("*.jsonl*") for line in file.read_bytes().splitlines()]
        return sorted({orjson.loads(line)["after"]["id"] for line in lines})

    with postgres18.database("run_once") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        db.execute("INSERT INTO orders SELECT generate_series(1, 500)")
        file = tmp_path / "once.yaml"
        file.write_text(
            DOCUMENT.replace("STATE", str(tmp_path / "state")).replace("DSN", dsn).replace("LAKE", str(lake))
        )
        [pipeline] = config.load(file)
        busy = threading.Thread(target=write)
        busy.start()
        run_once()
        stop.set()
        busy.join()
        assert delivered()[:500] == list(range(1, 501)), "the rows that were there"
        db.execute("INSERT INTO orders SELECT generate_series(501, 600)")
        run_once()
        assert delivered() == [row for (row,) in db.execute("SELECT id FROM orders ORDER BY id").fetchall()]


def test_a_run_that_did_not_deliver_says_so() -> None:
    sink = SinkStatus("lake", error="the disk is full")
    left = PipelineStatus("orders", State.STOPPED, caught_up=True, lag_events=7, sinks=(sink,))
    [error] = find_undelivered([left])
    assert "7 events" in error.what
    assert error.where == "lake: the disk is full"
    [stopped] = find_undelivered([PipelineStatus("orders", State.STOPPED)])
    assert "it was stopped" in stopped.what
    assert find_undelivered([PipelineStatus("orders", State.STOPPED, caught_up=True)]) == []
    assert find_undelivered([PipelineStatus("orders", State.FAILED)]) == [], "its own error is shown"


def test_a_source_that_does_not_know_its_end_is_refused_wherever_a_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    file = tmp_path / "pond.yaml"
    for more, where, once in (("", "pond.yaml", True), ("  trigger: {mode: once}\n", "pond.yaml: spec.trigger", False)):
        file.write_text(PIPELINE + more)
        pipelines = config.load(file)
        with pytest.raises(ConfigError, match="cannot say where it ends") as refused:
            check_ends(pipelines, once=once)
        assert refused.value.where.endswith(where)
    file.write_text(PIPELINE)
    check_ends(config.load(file))
