"""`tidemill verify --repair` beside a running pipeline and a writer; rows that come while extra ones are deleted."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.crash.actors import wait_for
from tests.support.copying import Copying, copying
from tests.support.terminal import Terminal
from tests.support.verified import SinkServers, verified_pair
from tidemill import config
from tidemill.contracts import AuditedSink, RowFault
from tidemill.lab.servers.postgres import Postgres
from tidemill.log.reader import LogReader
from tidemill.model.block import Block
from tidemill.model.delivery import Checkpoint, Delivery
from tidemill.service.runtime import Runtime
from tidemill.service.verify.audit import VerifyOptions, verify
from tidemill.service.verify.verdicts import TableVerdict

_PATIENCE = 60.0
# For a sink that cannot pass the place of a look, since nothing follows that place; and for rows that are sent again.
_IDLE_PATIENCE = 20.0
_ROWS = 100


@pytest.fixture(scope="module")
def servers(request: pytest.FixtureRequest) -> Iterator[SinkServers]:
    made = SinkServers(request)
    yield made
    made.close()


@contextmanager
def _delivering(copy: Copying) -> Iterator[None]:
    """All sinks of a pipeline in one group and one lane, in a thread: what a stream does, without Spark."""
    pipeline, log, stop = copy.pipeline, copy.log, threading.Event()
    failure: list[BaseException] = []

    def deliver() -> None:
        with ExitStack() as stack:
            sinks = [stack.enter_context(closing(pipeline.build_sink(spec))) for spec in pipeline.spec.sinks]
            checkpoints = stack.enter_context(closing(pipeline.build_checkpoints()))
            offset, version = 0, 0
            while not stop.is_set():
                if log.tail().offset == offset:
                    time.sleep(0.02)
                    continue
                end = log.plan(offset, max_events=1000, max_bytes=1 << 26)
                blocks = partial(_blocks, log, offset, end)
                for sink in sinks:
                    sink.write(Delivery(pipeline.name, pipeline.source_id, offset, end, 0, 1, blocks))
                at = Checkpoint(end, log.position_at(end))
                offset, version = end, checkpoints.save(pipeline.name, at, expect=version).version

    def run() -> None:
        try:
            deliver()
        except BaseException as error:  # noqa: BLE001  the test's thread raises it
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(_PATIENCE)
        assert not failure, failure


def _blocks(log: LogReader, start: int, end: int) -> Iterator[Block]:
    return (log.read(ref) for ref in log.refs(start, end))


def _change_rows(db: psycopg.Connection[Any], number: int) -> None:
    """One row after the other changes, again and again, and some come and go."""
    db.execute("UPDATE t SET v = %s WHERE id = %s", [f"changed {number}", number % _ROWS])
    db.execute("INSERT INTO t VALUES (%s, 'come')", [10_000 + number])
    db.execute("DELETE FROM t WHERE id = %s", [10_000 + number - 20])


@contextmanager
def _writing(dsn: str) -> Iterator[None]:
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as db:
            for number in itertools.count(1):
                if stop.wait(0.05):
                    return
                _change_rows(db, number)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _verdict(copy: Copying, sink: str, wait: float = _PATIENCE, **options: Any) -> TableVerdict:
    (found,) = verify(copy.pipeline, sink=sink, options=VerifyOptions(wait, **options))
    return found


def test_rows_that_differ_are_repaired_while_the_table_changes(postgres18: Postgres, tmp_path: Path) -> None:
    with (
        postgres18.database("repaired") as dsn,
        postgres18.database("repaired_copy") as target,
        psycopg.connect(dsn, autocommit=True) as db,
        psycopg.connect(target, autocommit=True) as there,
    ):
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        db.execute(f"INSERT INTO t SELECT g, 'v' FROM generate_series(0, {_ROWS - 1}) g")
        sinks: list[dict[str, Any]] = [
            {"type": "postgres", "config": {"id": "copy", "dsn": target}},
            {"type": "files", "config": {"id": "files", "path": str(tmp_path / "files")}},
        ]
        with copying(dsn, tmp_path, "public.t", sinks=sinks) as copy, _delivering(copy):
            copy.until_done()
            copy.until(lambda: (tmp_path / "files" / "public.t").exists())
            with _writing(dsn):
                for sink in ("copy", "files"):
                    verdict = _verdict(copy, sink)
                    assert verdict.is_equal, (sink, verdict)
                there.execute("DELETE FROM t WHERE id = 7")
                there.execute("UPDATE t SET v = 'wrong' WHERE id = 8")
                there.execute("INSERT INTO t VALUES (9999, 'nobody')")
                repaired = _verdict(copy, "copy", repair=True)
                assert repaired.is_equal, repaired
                assert repaired.repair is not None
                assert repaired.repair.deleted == 1
                # The writer may have put a row right by itself, before it was looked at.
                assert repaired.repair.sent in range(3)
            for sink in ("copy", "files"):
                verdict = _verdict(copy, sink)
                assert (verdict.is_equal, verdict.moving) == (True, 0), (sink, verdict)
            # Nothing changes any more: the repair itself makes the stream move on.
            there.execute("UPDATE t SET v = 'wrong' WHERE id = 8")
            there.execute("INSERT INTO t VALUES (9999, 'nobody')")
            repaired = _verdict(copy, "copy", _IDLE_PATIENCE, repair=True)
            assert repaired.is_equal, repaired
            assert repaired.repair is not None
            assert (repaired.repair.sent, repaired.repair.deleted) == (1, 1)


_RUNNING = """
metadata: {name: repairing}
spec:
  state_dir: STATE
  source: {type: postgres, config: {id: repairing, dsn: "DSN", tables: [public.t], slot: repairing, snapshot: {}}}
  sinks: [{type: postgres, config: {id: copy, dsn: "TARGET"}}]
"""


def test_a_repair_goes_through_a_running_pipeline(
    tmp_path: Path, spark: Any, postgres18: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command, beside a pipeline with its own capture process and Spark."""
    tidemill = Terminal(capsys)
    with (
        postgres18.database("repairing") as dsn,
        postgres18.database("repairing_copy") as target,
        psycopg.connect(dsn, autocommit=True) as db,
        psycopg.connect(target, autocommit=True) as there,
        Runtime(spark=spark) as runtime,
    ):
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        db.execute("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 300) g")
        file = tmp_path / "repairing.yaml"
        places = {"STATE": str(tmp_path / "state"), "DSN": dsn, "TARGET": target}
        text = _RUNNING
        for name, value in places.items():
            text = text.replace(f'"{name}"', f'"{value}"').replace(f": {name}\n", f": {value}\n")
        file.write_text(text)
        (pipeline,) = config.load(file)
        name = runtime.add(pipeline)
        runtime.start(name)

        def count() -> int:
            if there.execute("SELECT to_regclass('public.t') IS NULL").fetchone() == (True,):
                return 0
            return len(there.execute("SELECT id FROM t").fetchall())

        wait_for(lambda: count() == 300, 180, lambda: str(runtime.status(name)))
        there.execute("DELETE FROM t WHERE id = 7")
        there.execute("UPDATE t SET v = 'wrong' WHERE id = 8")
        there.execute("INSERT INTO t VALUES (9999, 'nobody')")
        # Nothing is captured any more, while the server writes what is not.
        (found,) = tidemill("verify", file, "--wait", 120, "--json").json["tables"]
        assert (found["missing"], found["different"], found["extra"], found["passed"]) == (1, 1, 1, True)
        answer = tidemill("verify", file, "--repair", "--wait", 120, "--json")
        (found,) = answer.json["tables"]
        assert (answer.code, found["equal"]) == (0, True), answer
        repair = found["repair"]
        assert (repair["sent"], repair["deleted"], repair["arrived"]) == (2, 1, True)
        rows = "SELECT id, v FROM t ORDER BY id"
        assert there.execute(rows).fetchall() == db.execute(rows).fetchall()
        runtime.stop(name)


@pytest.mark.parametrize("sink", ["postgres", "clickhouse", "starrocks"])
def test_a_row_that_comes_while_an_extra_one_is_deleted_stays(
    sink: str, servers: SinkServers, postgres18: Postgres, tmp_path: Path
) -> None:
    with (
        postgres18.database(f"coming_{sink}") as dsn,
        psycopg.connect(dsn, autocommit=True) as db,
        verified_pair("postgres", dsn, ["public.t"], servers.sink(sink, tmp_path), tmp_path) as pair,
    ):
        db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        db.execute("INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, 'three')")
        pair.pipeline.build_source().setup()
        pair.copy()
        db.execute("DELETE FROM t WHERE id IN (2, 3)")
        (verdict,) = verify(pair.pipeline, options=VerifyOptions(wait_seconds=0))
        assert sorted(key.key for key in verdict.keys) == [("2",), ("3",)]
        assert {key.fault for key in verdict.keys} == {RowFault.EXTRA}
        coming = threading.Thread(target=pair.copy)

        def is_gone(key: tuple[str, ...]) -> bool:
            """The source was looked at; then it inserts the row. It is delivered at once, or when the lock is gone."""
            if key == ("3",):
                db.execute("INSERT INTO t VALUES (3, 'again')")
                coming.start()
                coming.join(2)
            return True

        (spec,) = pair.pipeline.spec.sinks
        with closing(pair.pipeline.build_sink(spec)) as target:
            assert isinstance(target, AuditedSink)
            with closing(target.audit(next(iter(_tables(pair.pipeline))), "shop")) as audit:
                assert audit.remove([("2",), ("3",), ("4",)], is_gone) == 2
                coming.join(_PATIENCE)
                assert not audit.has(("2",))
                assert audit.has(("3",))
        (verdict,) = verify(pair.pipeline, options=VerifyOptions(wait_seconds=0))
        assert verdict.is_equal


@pytest.mark.parametrize("sink", ["postgres", "clickhouse", "starrocks", "files"])
def test_a_row_whose_key_only_the_source_takes_for_another_one_is_extra(
    sink: str, servers: SinkServers, postgres18: Postgres, tmp_path: Path
) -> None:
    """The source's collation finds `A` under `a`: the sink's row `a` was taken for it, and the table for equal."""
    with (
        postgres18.database(f"cased_{sink}") as dsn,
        psycopg.connect(dsn, autocommit=True) as db,
        verified_pair("postgres", dsn, ["public.t"], servers.sink(sink, tmp_path), tmp_path) as pair,
    ):
        db.execute("CREATE EXTENSION citext")
        db.execute("CREATE TABLE t (id citext PRIMARY KEY, v text)")
        db.execute("INSERT INTO t VALUES ('a', 'one'), ('B', 'two')")
        pair.pipeline.build_source().setup()
        pair.copy()
        db.execute("DELETE FROM t WHERE id = 'a'")
        db.execute("INSERT INTO t VALUES ('A', 'one')")
        pair.copy()  # what the gap deleted stays
        (verdict,) = verify(pair.pipeline, options=VerifyOptions(wait_seconds=0))
        assert [(key.key, key.fault) for key in verdict.keys] == [(("a",), RowFault.EXTRA)]


def _tables(pipeline: config.Pipeline) -> list[Any]:
    source: Any = pipeline.build_source()
    with closing(source.snapshot_reader()) as reader:
        return [each.table for each in reader.tables()]
