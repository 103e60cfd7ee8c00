"""What is there is delivered, rows and changes, also while others go on writing; then the run ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import orjson
import psycopg

from tests.crash.actors import wait_for
from tidemill import config
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.run.once import find_undelivered
from tidemill.service.run.status import PipelineStatus, SinkStatus, State
from tidemill.service.runtime import Runtime

DOCUMENT = """
metadata: {name: once}
spec:
  state_dir: STATE
  source: {type: postgres, config: {id: once, dsn: "DSN", tables: [public.orders], slot: run_once, snapshot: {}}}
  sinks: [{type: files, config: {id: lake, path: "LAKE"}}]
"""


def test_a_run_catches_up_with_what_was_there_while_others_write(
    tmp_path: Path, spark: Any, postgres18: Postgres
) -> None:
    lake, stop = tmp_path / "lake", threading.Event()

    def run_once() -> None:
        with Runtime(spark=spark) as runtime:
            name = runtime.add(pipeline)
            runtime.start(name, once=True)
            wait_for(lambda: runtime.status(name).caught_up, 180, lambda: str(runtime.status(name)))
            runtime.drain(name, seconds=120)
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
