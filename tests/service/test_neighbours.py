"""Pipelines beside each other on one real Spark session: events are neither lost nor repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.support.waiting import until
from tidemill import config
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.run.status import State
from tidemill.service.runtime import Runtime

DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source:
    type: postgres
    config: {{id: {name}, dsn: "{dsn}", tables: [public.{name}]}}
  sinks: [{sink}]
  trigger: {{mode: {mode}}}
  pause: {{capture: {captures}}}
  state_dir: {directory}/state
"""


class RealRuntime:
    """Real pipelines, one per table, over the one Spark session of the run."""

    def __init__(self, directory: Path, dsn: str, runtime: Runtime) -> None:
        self.directory, self.dsn, self.runtime = directory, dsn, runtime
        self.database = psycopg.connect(dsn, autocommit=True)

    def add(self, name: str, sink: str, mode: str = "micro_batch", captures: str = "false") -> str:
        self.database.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")
        path = self.directory / f"{name}.yaml"
        given = {"name": name, "dsn": self.dsn, "sink": sink, "mode": mode, "captures": captures}
        path.write_text(DOCUMENT.format(**given, directory=self.directory))
        (pipeline,) = config.load(path)
        return self.runtime.add(pipeline)

    def insert(self, name: str, first: int, last: int) -> None:
        self.database.execute(f"INSERT INTO {name} SELECT generate_series({first}, {last})")

    def captures(self, name: str) -> None:
        until(lambda: self.runtime.status(name).stage == "cdc")

    def printed(self, name: str = "out") -> list[int]:
        """By a sink that repeats what is delivered twice."""
        file = self.directory / f"{name}.jsonl"
        whole = file.read_bytes().rpartition(b"\n")[0] if file.exists() else b""
        return [orjson.loads(line)["after"]["id"] for line in whole.splitlines()]


@pytest.fixture
def real(tmp_path: Path, spark: Any, postgres18: Postgres) -> Iterator[RealRuntime]:
    with postgres18.database("runtime") as dsn, Runtime(spark=spark) as runtime:
        real = RealRuntime(tmp_path, dsn, runtime)
        yield real
        real.database.close()
        runtime.close()  # before its slots go with the database


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_pauses_lose_nothing_and_repeat_nothing_while_a_neighbour_fails_and_starts_again(
    real: RealRuntime, mode: str
) -> None:
    runtime, directory = real.runtime, real.directory
    whole = real.add("whole", f"{{type: stdout, config: {{id: out, path: {directory}/out.jsonl}}}}", mode)
    held = real.add("held", f"{{type: stdout, config: {{id: held, path: {directory}/held.jsonl}}}}", captures="true")
    broken = real.add("broken", f"{{type: files, config: {{id: files, path: {directory}/files}}}}")
    owner = directory / "files" / "_tidemill" / "owner.json"
    owner.parent.mkdir(parents=True)
    owner.write_bytes(orjson.dumps({"pipeline": "somebody else's", "sink": "files"}))
    runtime.start(whole, held, broken)
    for name in (whole, held, broken):
        real.captures(name)
    real.insert(whole, 1, 500)
    real.insert(held, 1, 500)
    real.insert(broken, 1, 5)
    until(lambda: runtime.status(broken).state is State.FAILED)
    assert 'sink "files" refused' in str(runtime.error(broken))
    owner.unlink()
    until(lambda: runtime.status(whole).events == 500)

    until(lambda: runtime.status(held).events == 500)

    runtime.pause(whole, held)
    real.insert(whole, 501, 600)  # while nothing runs
    real.insert(held, 501, 600)  # while it captures all the same
    until(lambda: runtime.status(held).lag_events == 100 and runtime.status(held).log_bytes > 0)
    assert (runtime.status(held).state, len(real.printed("held"))) == (State.PAUSED, 500)
    runtime.start(broken)
    runtime.resume(whole, held)
    real.captures(whole)
    real.insert(whole, 601, 900)
    runtime.pause(whole)  # wherever it is
    runtime.resume(whole)
    real.captures(whole)
    real.insert(whole, 901, 1000)
    until(lambda: len(real.printed()) >= 1000)
    until(lambda: len(real.printed("held")) >= 600)
    until(lambda: runtime.status(broken).events == 5)
    runtime.drain(whole, held, broken)
    assert sorted(real.printed()) == list(range(1, 1001))
    assert sorted(real.printed("held")) == list(range(1, 601))
    assert {status.state for status in runtime.statuses()} == {State.STOPPED}
