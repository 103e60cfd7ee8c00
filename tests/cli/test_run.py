"""`tidemill run` as a user meets it: a process, its lines, its signals, its exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path

import orjson
import psutil
import psycopg
import pytest

from tidemill.lab.servers.http_receiver import Receiver, ScriptedResponse
from tidemill.lab.servers.postgres import Postgres
from tidemill.service.run.status import PipelineStatus

PATIENCE = 240.0
EVENT = re.compile(r"\d\d:\d\d:\d\d (INFO   |WARNING|ERROR  ) (pipeline|stream|capture|snapshot)\.\w+")

DOCUMENT = """
metadata: {{name: {name}}}
spec:
  source:
    type: postgres
    config: {{id: test, dsn: "{dsn}", tables: [{table}]}}
  sinks: [{{type: files, config: {{id: files, path: {files}}}}}]
  batch: {{max_inflight: 2}}
  state_dir: {state}
"""


def document(directory: Path, dsn: str, table: str, name: str = "orders") -> Path:
    path = directory / f"{name}.yaml"
    files, state = directory / f"{name}-files", directory / "state"
    path.write_text(DOCUMENT.format(name=name, dsn=dsn, table=table, files=files, state=state))
    return path


@pytest.fixture
def postgres18_dsn(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database("run") as dsn:
        yield dsn


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    program = str(Path(sys.executable).with_name("tidemill"))
    command = [program, "run", "--json", "--interval", "0.5", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def until(process: subprocess.Popen[bytes], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def lines_of(path: Path) -> list[dict[str, object]]:
    return [orjson.loads(line) for file in sorted(path.glob("*/*.jsonl")) for line in file.read_bytes().splitlines()]


def test_a_run_delivers_until_it_is_interrupted_and_then_drains(postgres18_dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres18_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        path = document(tmp_path, postgres18_dsn, "public.t")
        path.write_text(path.read_text() + "  spark: {conf: {spark.ssl.keyPassword: hunter2}}\n")
        with running(path) as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            db.execute("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 500) g")
            until(process, lambda: len(lines_of(tmp_path / "orders-files")) == 500)
            lines = []
            for each in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it ended since, and a zombie has no command line
                    lines.append(each.cmdline())
            assert not [line for line in lines if "hunter2" in " ".join(line)], "a secret is in the process list"
            with running(path) as second:
                refusal = orjson.loads(second.communicate(timeout=PATIENCE)[0])["error"]
            assert (second.returncode, refusal["kind"]) == (1, "AlreadyRunning")
            assert f"pid {process.pid} on " in refusal["what"]
            db.execute("UPDATE t SET v = 'y'")
            time.sleep(0.3)  # captured, perhaps not delivered
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE)
    statuses = [orjson.loads(line) for line in out.splitlines()]
    assert process.returncode == 0
    assert set(statuses[-1]) == {each.name for each in fields(PipelineStatus)}
    # Only our own events; what Java and its children say is in a file.
    assert [line for line in error.decode().splitlines() if not EVENT.match(line)] == []
    assert b"jdk.incubator.vector" in (tmp_path / "state" / "orders" / "spark.log").read_bytes()
    position = statuses[-1]["began"]
    assert f"pipeline.began pipeline=orders position={position}" in error.decode()
    assert (position.count("/"), statuses[-1]["resumed"]) == (1, False)
    state = tmp_path / "state"
    assert [str(place) for place in (state, *state.rglob("*")) if place.stat().st_mode & 0o077] == []
    usual = 0o666 & ~os.umask(os.umask(0o022))
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "orders-files").glob("*/*.jsonl")} == {usual}
    assert statuses[-1]["state"] == "stopped"
    assert statuses[-1]["lag_events"] == 0
    assert {"cdc"} <= {status["stage"] for status in statuses}
    events = lines_of(tmp_path / "orders-files")
    assert len({event["event_id"] for event in events}) == len(events) == statuses[-1]["events"]


def test_a_run_that_cannot_be_set_up_ends_with_the_reason_and_code_3(postgres18_dsn: str, tmp_path: Path) -> None:
    """Every line is an object: statuses, and the error last."""
    away = postgres18_dsn.rpartition("/")[0] + "/nosuch"
    with running(document(tmp_path, away, "public.t")) as process:
        out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3, error.decode()[-2000:]
    *statuses, answer = [orjson.loads(line) for line in out.splitlines()]
    assert {status["name"] for status in statuses} == {"orders"}
    assert "nosuch" in answer["error"]["what"]
    assert answer["error"]["fix"]
    assert [line for line in error.decode().splitlines() if not EVENT.match(line)] == []


def test_a_sink_that_refuses_ends_the_run_with_its_name_and_reason(postgres18_dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres18_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path = document(tmp_path, postgres18_dsn, "public.t")
        owner = tmp_path / "orders-files" / "_tidemill" / "owner.json"
        owner.parent.mkdir(parents=True)
        owner.write_bytes(orjson.dumps({"pipeline": "somebody else's", "sink": "files"}))
        with running(path) as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            db.execute("INSERT INTO t VALUES (1)")
            out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, error.decode()[-2000:]
    answer = orjson.loads(out.splitlines()[-1])["error"]
    assert 'sink "files" refused' in answer["what"]
    assert answer["fix"]


def test_a_sink_that_nobody_waits_for_is_shown_as_failing_and_holds_up_nothing(
    postgres18_dsn: str, tmp_path: Path
) -> None:
    """With a single slot for both: a sink that is down must not keep it."""
    with psycopg.connect(postgres18_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path = document(tmp_path, postgres18_dsn, "public.t")
        away = "brokers: '127.0.0.1:9', topic: t, delivery_timeout_seconds: 0.5, required: false"
        kafka = f"{{type: kafka, config: {{id: away, {away}}}}}"
        text = path.read_text().replace("sinks: [", f"sinks: [{kafka}, ")
        path.write_text(text + "  spark: {master: 'local[1]'}\n")
        with running(path) as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            for number in range(1, 4):
                db.execute(
                    "INSERT INTO t SELECT g FROM generate_series(%s::int, %s) g", (number * 100, number * 100 + 9)
                )
                until(process, lambda: len(lines_of(tmp_path / "orders-files")) == number * 10)  # noqa: B023
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, error.decode()[-2000:]
    last = orjson.loads(out.splitlines()[-1])
    sinks = {sink["id"]: sink for sink in last["sinks"]}
    assert (last["state"], last["events"], last["lag_events"]) == ("stopped", 30, 0)
    assert (sinks["files"]["state"], sinks["files"]["lag_events"], sinks["files"]["waited_for"]) == ("ok", 0, True)
    assert (sinks["away"]["state"], sinks["away"]["lag_events"], sinks["away"]["waited_for"]) == ("failing", 30, False)
    assert "127.0.0.1:9" in sinks["away"]["error"]


def test_a_killed_jvm_ends_the_run_with_its_reason_and_a_fix(postgres18_dsn: str, tmp_path: Path) -> None:
    with psycopg.connect(postgres18_dsn, autocommit=True) as db:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        with running(document(tmp_path, postgres18_dsn, "public.t")) as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            db.execute("INSERT INTO t VALUES (1)")
            until(process, lambda: lines_of(tmp_path / "orders-files"))
            (jvm,) = [p for p in psutil.Process(process.pid).children() if p.name() == "java"]
            assert "-XX:+ExitOnOutOfMemoryError" in jvm.cmdline()  # a lack of memory is such an end, too
            jvm.kill()
            out, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    answer = orjson.loads(out.splitlines()[-1])["error"]
    assert answer["kind"] == "SparkLost"
    assert "start the pipeline again" in answer["fix"]


def test_a_second_interrupt_ends_a_drain_at_once_and_the_next_run_delivers_the_rest(
    postgres18_dsn: str, tmp_path: Path
) -> None:
    refuse = ScriptedResponse(status=503)
    with psycopg.connect(postgres18_dsn, autocommit=True) as db, Receiver(lambda request: refuse) as receiver:
        db.execute("CREATE TABLE t (id int PRIMARY KEY)")
        path = document(tmp_path, postgres18_dsn, "public.t")
        http = f"{{type: http, config: {{id: hook, url: '{receiver.url}'}}}}"
        path.write_text(re.sub(r"sinks: .*", f"sinks: [{http}]", path.read_text()))
        with running(path, "--drain", "600") as process:
            until(process, lambda: db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            db.execute("INSERT INTO t SELECT generate_series(1, 5)")
            until(process, lambda: receiver.all)
            process.send_signal(signal.SIGINT)
            until(process, lambda: not db.execute("SELECT 1 FROM pg_replication_slots WHERE active").fetchone())
            assert process.poll() is None, "it did not wait for the drain"
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=PATIENCE)
        last = orjson.loads(out.splitlines()[-1])
        assert process.returncode == 0, error.decode()[-2000:]
        assert (last["state"], last["lag_events"]) == ("stopped", 5)
        assert receiver.taken == []
        receiver.script = lambda request: ScriptedResponse()
        with running(path) as process:
            until(process, lambda: len(receiver.taken) == 5)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert sorted(orjson.loads(each.body)["after"]["id"] for each in receiver.taken) == [1, 2, 3, 4, 5]
