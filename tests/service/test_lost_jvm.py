"""Spark's Java process dies under a running pipeline: the pipeline fails with its reason, and a new start goes on where
it was, in a new one. In a process of its own, because it takes the session of the whole process with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import psycopg
import pytest

from tests.cli.test_run import document, lines_of
from tidemill.lab.servers.postgres import Postgres

_SECONDS = 240
_SCRIPT = """
import sys, time
import orjson, psutil
from tests.cli.test_run import lines_of
from tidemill import config
from tidemill.service.runtime import Runtime
from tidemill.service.run.status import State
from pathlib import Path

(pipeline,), sink = config.load(Path(sys.argv[1])), Path(sys.argv[2])

def until(condition):
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, runtime.status(name)
        time.sleep(0.05)

def jvm():
    (found,) = [each for each in psutil.Process().children() if each.name() == "java"]
    return found

with Runtime() as runtime:
    name = runtime.add(pipeline)
    runtime.start(name)
    until(lambda: runtime.status(name).stage == "cdc")
    print("insert 1 100", flush=True); input()
    until(lambda: len(lines_of(sink)) == 100)
    first = jvm()
    first.kill()
    until(lambda: runtime.status(name).state is State.FAILED)
    error = runtime.error(name)
    print("insert 101 200", flush=True); input()
    runtime.start(name)
    until(lambda: len(lines_of(sink)) == 200)
    second = jvm()
    runtime.drain(name)
    status = runtime.status(name)
    print(orjson.dumps([error.code, error.fix, first.pid != second.pid, status.state, status.lag_events]).decode())
"""


@pytest.mark.slow
def test_a_pipeline_whose_jvm_died_starts_again_and_every_event_arrives_once(
    tmp_path: Path, postgres18: Postgres
) -> None:
    with postgres18.database("lost_jvm") as dsn, psycopg.connect(dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path, sink = document(tmp_path, dsn, "public.t"), tmp_path / "orders-files"
        command = [sys.executable, "-c", _SCRIPT, str(path), str(sink)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if not line.startswith("insert"):
                        break
                    _, first, last = line.split()
                    db.execute("INSERT INTO t SELECT generate_series(%s::int, %s::int)", (first, last))
                    process.stdin.write("\n")
                    process.stdin.flush()
                code = process.wait(_SECONDS)
            finally:
                process.kill()
        assert code == 0
    error, fix, another, state, lag = orjson.loads(line)
    assert error == "spark-lost"
    assert "start the pipeline again" in fix
    assert another, "it went on in the process that was killed"
    assert (state, lag) == ("stopped", 0)
    assert sorted(int(event["after"]["id"]) for event in lines_of(sink)) == list(range(1, 201))  # type: ignore[index]
