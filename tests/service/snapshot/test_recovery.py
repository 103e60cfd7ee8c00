"""After a lost position all tables are copied again, and the destination equals the source, also in what is gone.

Real source, capture process and sinks. Tasks of the copy, and deliveries, run in this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest
import yaml

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import purge
from tests.sources.support import execute, query
from tests.support.copying import LocalSpark
from tests.support.seed import WHOLE, dice
from tidemill.capture.__main__ import run_recovering
from tidemill.capture.lease import CaptureLease, CaptureTask
from tidemill.capture.status import StatusFile
from tidemill.config.pipeline import Pipeline, load
from tidemill.errors import PositionLost, TidemillError
from tidemill.lab.servers.postgres import Postgres
from tidemill.log.reader import LogReader
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.model.snapshot import SnapshotState
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.driver import SnapshotDriver
from tidemill.service.snapshot.plan import begin_if_due
from tidemill.sources.postgres import PostgresSource

SECONDS = 120.0
FAILPOINTS = ("recovery.copy_begun", "recovery.renewed", "recovery.sinks_begun", "recovery.noted")
ROWS = [(1, "kept"), (2, "changed in the gap"), (3, "deleted in the gap"), (4, "deleted in the gap, and back")]
GAP = (
    "UPDATE t SET v = 'new' WHERE id = 2", "DELETE FROM t WHERE id IN (3, 4)", "INSERT INTO t VALUES (4, 'back')",
    "INSERT INTO t VALUES (5, 'came in the gap')", "DELETE FROM emptied",
)  # fmt: skip


def write_document(directory: Path, source: dict[str, Any], target: str, **snapshot: Any) -> Pipeline:
    name = "${source.table}"
    document = {
        "metadata": {"name": "recovered"},
        "spec": {
            "state_dir": str(directory / "state"),
            "source": source | {"config": source["config"] | {"snapshot": {"chunk_rows": 3, **snapshot}}},
            "sinks": [
                {"type": "postgres", "config": {"id": "copy", "dsn": target, "table": name}},
                {"type": "files", "config": {"id": "files", "path": str(directory / "files")}},
            ],
            "log": {"fsync": False},
        },
    }
    path = directory / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    (pipeline,) = load(path)
    return pipeline


@dataclass
class Running:
    """Capture as its process runs it, the driver of snapshots, and a stream of one lane into the postgres sink."""

    pipeline: Pipeline
    driver: SnapshotDriver
    stop: threading.Event = field(default_factory=threading.Event)
    failures: list[BaseException] = field(default_factory=list)
    offset: int = 0

    def capture(self) -> None:
        with self.noting():
            task, status = CaptureTask(self.pipeline), StatusFile(self.pipeline.state_path)
            run_recovering(task, self.stop, status, CaptureLease(None))

    def deliver(self) -> None:
        log, kept = LogReader(self.pipeline.log_uri), self.pipeline.state_path / "delivered"
        self.offset = int(kept.read_text()) if kept.exists() else 0
        with self.noting(), closing(self.pipeline.build_sinks()[0]) as sink:
            while not self.stop.is_set():
                start = self.offset
                end = log.plan(start, max_events=1000, max_bytes=1 << 20)
                if end == start:
                    self.stop.wait(0.02)
                    continue
                blocks = partial(map, log.read, log.refs(start, end))
                sink.write(Delivery("recovered", self.pipeline.source_id, start, end, 0, 1, blocks))
                self.offset = end
                kept.write_text(str(end))

    @contextmanager
    def noting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001  the test's thread looks at it
            self.failures.append(error)

    def until(self, condition: Callable[[], Any], what: Callable[[], object] = lambda: "") -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, what()
            time.sleep(0.05)

    def snapshots(self) -> list[tuple[int, str, SnapshotState]]:
        with closing(self.pipeline.build_state()) as state:
            return [(r.id, r.why, r.state) for r in state.snapshots.records("recovered")]

    def until_copied(self, count: int) -> None:
        """The last of so many snapshots is over."""
        self.until(
            lambda: len(found := self.snapshots()) == count and found[0][2] is SnapshotState.DONE, self.snapshots
        )

    def until_delivered(self) -> None:
        log = LogReader(self.pipeline.log_uri)
        self.until(lambda: self.offset == log.tail().offset)


@contextmanager
def running(pipeline: Pipeline, *, expect: type[TidemillError] | None = None) -> Iterator[Running]:
    pipeline.state_path.mkdir(parents=True, exist_ok=True)
    state = pipeline.build_state()
    begin_if_due(pipeline, state)
    driver = SnapshotDriver(pipeline, LocalSpark(), state, lambda sink: run.offset if sink == "copy" else None)
    run = Running(pipeline, driver)
    threads = [threading.Thread(target=part) for part in (run.capture, run.deliver)]
    for thread in threads:
        thread.start()
    driver.start()
    try:
        yield run
    finally:
        driver.stop()
        run.stop.set()
        for thread in threads:
            thread.join(SECONDS)
        state.close()
    assert [type(error) for error in run.failures if expect is None or not isinstance(error, expect)] == []


def recover(pipeline: Pipeline, *options: str, crash_at: str = "") -> dict[str, Any] | None:
    """The command in a process of its own; None if it was killed."""
    program = str(Path(sys.executable).with_name("tidemill"))
    done = subprocess.run(
        [program, "recover", pipeline.file, *options, "--yes", "--json"], capture_output=True, timeout=SECONDS,
        env={**os.environ, "TIDEMILL_CRASH_AT": crash_at}, check=False,
    )  # fmt: skip
    if crash_at:
        assert done.returncode == -signal.SIGKILL, done.stdout
        return None
    answer: dict[str, Any] = orjson.loads(done.stdout)
    assert done.returncode == 0, answer
    return answer


def rows(dsn: str) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    with suppress(psycopg.errors.UndefinedTable):  # nothing was delivered yet
        return query(dsn, "SELECT id, v FROM t ORDER BY id"), query(dsn, "SELECT id FROM emptied ORDER BY id")
    return [], []


@pytest.fixture
def target(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database("recovery_target") as dsn:
        yield dsn


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database("recovery_source") as dsn:
        execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE TABLE emptied (id int PRIMARY KEY)")
        values = ", ".join(f"({id}, '{v}')" for id, v in ROWS)
        execute(dsn, f"INSERT INTO t VALUES {values}", "INSERT INTO emptied VALUES (1), (2)")
        yield dsn


def postgres_source(dsn: str) -> dict[str, Any]:
    return {"type": "postgres", "config": {"id": "recovering", "dsn": dsn, "tables": ["public.*"]}}


def lose_slot(dsn: str) -> None:
    """Also one that is in use: its reader is thrown out first, as at a failover."""
    with psycopg.connect(dsn, autocommit=True) as db:
        deadline = time.monotonic() + SECONDS
        while db.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()").fetchone():
            assert time.monotonic() < deadline
            try:
                db.execute(
                    "SELECT pg_terminate_backend(active_pid), pg_drop_replication_slot(slot_name)"
                    " FROM pg_replication_slots WHERE database = current_database()"
                )
            except psycopg.errors.ObjectInUse:
                time.sleep(0.01)


def test_a_copy_after_a_lost_slot_makes_the_destination_equal_to_the_source(
    database: str, target: str, tmp_path: Path
) -> None:
    pipeline = write_document(tmp_path, postgres_source(database), target)
    with running(pipeline) as run:
        run.until_copied(1)
        execute(database, "UPDATE t SET v = 'before the gap' WHERE id = 2")  # an event that is older than the copy
        run.until(lambda: (2, "before the gap") in rows(target)[0])
    lose_slot(database)
    execute(database, *GAP)
    with running(pipeline, expect=PositionLost) as run:
        deadline = time.monotonic() + SECONDS
        while not run.failures:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    (error,) = run.failures
    assert isinstance(error, PositionLost)
    assert "recover FILE --snapshot" in error.fix
    assert "recover FILE --accept-gap" in error.fix
    answer = recover(pipeline, "--snapshot")
    assert answer is not None
    assert answer["snapshot"] == 2
    with running(pipeline) as run:
        execute(database, "INSERT INTO t VALUES (6, 'after')")
        run.until_copied(2)
        run.until(lambda: rows(target) == rows(database), lambda: (rows(target), rows(database)))
        execute(database, "DELETE FROM t WHERE id = 1")
        run.until(lambda: rows(target) == rows(database))
    with psycopg.connect(target) as db:
        left = db.execute("SELECT relname FROM pg_class WHERE relname LIKE 'tidemill_keys%'").fetchall()
    assert left == []


@pytest.mark.parametrize("crash_at", FAILPOINTS if WHOLE else dice("recovery").sample(FAILPOINTS, 2))
def test_a_recovery_that_is_killed_is_run_again(database: str, target: str, tmp_path: Path, crash_at: str) -> None:
    pipeline = write_document(tmp_path, postgres_source(database), target)
    with running(pipeline) as run:
        run.until_copied(1)
        run.until(lambda: rows(target) == rows(database))
    lose_slot(database)
    execute(database, *GAP)
    assert recover(pipeline, "--snapshot", crash_at=crash_at) is None
    if crash_at != "recovery.noted":  # else everything was done
        with running(pipeline, expect=PositionLost) as run:
            deadline = time.monotonic() + SECONDS
            while not run.failures:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert rows(target)[1] == [(1,), (2,)], "nothing is removed before everything is copied"
        assert recover(pipeline, "--snapshot") is not None
    with running(pipeline) as run:
        run.until(lambda: run.snapshots()[0][2] is SnapshotState.DONE, run.snapshots)
        run.until(lambda: rows(target) == rows(database), lambda: (rows(target), rows(database)))


def test_a_row_that_moves_to_a_key_that_the_gap_freed_is_not_refused_by_what_is_left_there(
    database: str, target: str, tmp_path: Path
) -> None:
    """It comes without its large column, so that the row moves at the target too; there, nobody knows of the gap."""
    execute(
        database, "CREATE TABLE documents (name text PRIMARY KEY, n int, body text)",
        "ALTER TABLE documents ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO documents SELECT c, 0, repeat(c, 9000) FROM unnest(ARRAY['a', 'b', 'c', 'd']) c",
    )  # fmt: skip
    pipeline = write_document(tmp_path, postgres_source(database), target)
    ask = "SELECT name, n, md5(body) FROM documents ORDER BY name"
    with running(pipeline) as run:
        run.until_copied(1)
        run.until_delivered()
    assert query(target, ask) == query(database, ask)
    lose_slot(database)
    execute(database, "DELETE FROM documents WHERE name IN ('b', 'd')")
    assert recover(pipeline, "--snapshot") is not None
    execute(
        database, "UPDATE documents SET name = 'b' WHERE name = 'a'", "UPDATE documents SET n = 1 WHERE name = 'b'",
        "UPDATE documents SET name = 'a' WHERE name = 'c'",
    )  # fmt: skip
    with running(pipeline) as run:
        run.until_copied(2)
        run.until(lambda: query(target, ask) == query(database, ask), lambda: query(target, ask))


def test_rows_that_a_filter_left_out_are_not_taken_for_gone_when_the_document_has_none_at_the_end(
    database: str, target: str, tmp_path: Path
) -> None:
    """A copy has the filter with which it began, to its end: whoever took it out of the document meanwhile lost the
    rows that it had left out by then."""
    execute(database, "INSERT INTO t SELECT n, 'v' FROM generate_series(5, 40) n")
    pipeline = write_document(tmp_path, postgres_source(database), target)
    with running(pipeline) as run:
        run.until_copied(1)
        run.until(lambda: rows(target) == rows(database))
    lose_slot(database)
    filtered = write_document(
        tmp_path, postgres_source(database), target, filters={"public.t": "id % 2 = 0"}, max_rows_per_second=4
    )
    assert recover(filtered, "--snapshot") is not None

    def count_adopted() -> int:
        with closing(pipeline.build_state()) as state:
            return sum(each.adopted for each in state.snapshots.tables("recovered", 2) if each.name == "public.t")

    with running(filtered) as run:
        run.until(lambda: count_adopted() > 1)
    assert run.snapshots()[0][2] is SnapshotState.RUNNING
    with running(write_document(tmp_path, postgres_source(database), target)) as run:
        run.until_copied(2)
    assert rows(target)[0] == rows(database)[0]


def test_rows_that_point_to_rows_that_the_gap_left_are_removed_before_them(
    database: str, target: str, tmp_path: Path
) -> None:
    """The first table's rows cannot go before the second's: the recovery went on for ever, and never came to these."""
    tables = (
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, a int REFERENCES a DEFERRABLE INITIALLY DEFERRED)",
    )
    execute(database, *tables, "INSERT INTO a VALUES (1), (2)", "INSERT INTO b VALUES (1, 1), (2, 2)")
    execute(target, *tables)
    pipeline = write_document(tmp_path, postgres_source(database), target)

    def found(dsn: str) -> tuple[object, object]:
        return query(dsn, "SELECT id FROM a ORDER BY id"), query(dsn, "SELECT id FROM b ORDER BY id")

    with running(pipeline) as run:
        run.until_copied(1)
        run.until_delivered()
    assert found(target) == found(database)
    lose_slot(database)
    execute(database, "DELETE FROM b WHERE id = 2", "DELETE FROM a WHERE id = 2")
    assert recover(pipeline, "--snapshot") is not None
    with running(pipeline) as run:
        run.until_copied(2)
    assert found(target) == found(database)


def test_the_log_is_not_kept_while_rows_that_are_left_over_cannot_go(
    database: str, target: str, tmp_path: Path
) -> None:
    """A table of somebody else's points to one. That may last; all tables are in the log, which kept all that came."""
    pipeline = write_document(tmp_path, postgres_source(database), target)
    with running(pipeline) as run:
        run.until_copied(1)
        run.until(lambda: rows(target) == rows(database))
    execute(target, "CREATE TABLE notes (t int REFERENCES t)", "INSERT INTO notes VALUES (3)")
    lose_slot(database)
    execute(database, *GAP)
    assert recover(pipeline, "--snapshot") is not None
    with running(pipeline) as run:
        run.until(lambda: (3, "deleted in the gap") in rows(target)[0] and rows(target)[1] == [])
        run.until(lambda: run.driver.floor is None)
        assert run.snapshots()[0][2] is SnapshotState.RUNNING
        execute(target, "DELETE FROM notes")
        run.until_copied(2)
    assert rows(target) == rows(database)


def test_with_when_needed_a_running_pipeline_recovers_by_itself(database: str, target: str, tmp_path: Path) -> None:
    pipeline = write_document(tmp_path, postgres_source(database), target, mode="when_needed")
    with running(pipeline) as run:
        run.until_copied(1)
        run.until(lambda: rows(target) == rows(database))
        lose_slot(database)
        execute(database, *GAP)
        run.until_copied(2)
        run.until(lambda: rows(target) == rows(database), lambda: (rows(target), rows(database)))
        execute(database, "INSERT INTO t VALUES (7, 'goes on')")
        run.until(lambda: rows(target) == rows(database))
    assert run.snapshots()[0][1] == "the position was lost"


def test_nothing_is_read_before_the_source_has_begun_anew(
    database: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver runs meanwhile, and knows of the snapshot: what changed after an early read would be in no event."""
    looks = [0]
    step, renew = SnapshotDriver._step, PostgresSource.renew

    def counted(driver: SnapshotDriver) -> float:
        wait = step(driver)
        looks[0] += 1
        return min(wait, 0.05)

    def late(source: PostgresSource, schemas: Any = None) -> Any:
        wanted, deadline = looks[0] + 10, time.monotonic() + SECONDS
        while looks[0] < wanted:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        execute(database, "UPDATE t SET v = 'just before the new slot' WHERE id = 1")
        return renew(source, schemas)

    monkeypatch.setattr(SnapshotDriver, "_step", counted)
    monkeypatch.setattr(PostgresSource, "renew", late)
    pipeline = write_document(tmp_path, postgres_source(database), target, mode="when_needed")
    with running(pipeline) as run:
        run.until_copied(1)
        run.until(lambda: rows(target) == rows(database))
        lose_slot(database)
        run.until_copied(2)
        run.until(lambda: rows(target) == rows(database), lambda: (rows(target), rows(database)))
        assert (1, "just before the new slot") in rows(target)[0]


def test_an_accepted_gap_and_a_snapshot_after_it_bring_rows_as_they_are(
    database: str, target: str, tmp_path: Path
) -> None:
    """The log still has an event of the row from before the gap, which is older than the copy."""
    pipeline = write_document(tmp_path, postgres_source(database), target)
    with running(pipeline) as run:
        run.until_copied(1)
        execute(database, "UPDATE t SET v = 'before the gap' WHERE id = 2")
        run.until(lambda: (2, "before the gap") in rows(target)[0])
    lose_slot(database)
    execute(database, "UPDATE t SET v = 'in the gap' WHERE id = 2", "DELETE FROM t WHERE id = 3")
    assert recover(pipeline, "--accept-gap") is not None
    snapshot_requests.start(pipeline, [], "")
    with running(pipeline) as run:
        run.until_copied(2)
        run.until(lambda: (2, "in the gap") in rows(target)[0])
        assert (3, "deleted in the gap") in rows(target)[0], "an ordinary copy removes nothing"


def test_a_recovery_that_is_cancelled_leaves_nothing_at_the_sink(database: str, target: str, tmp_path: Path) -> None:
    pipeline = write_document(tmp_path, postgres_source(database), target)
    with running(pipeline) as run:
        run.until_copied(1)
        run.until_delivered()
    lose_slot(database)
    execute(database, *GAP)
    assert recover(pipeline, "--snapshot") is not None
    assert query(target, "SELECT count(*) FROM tidemill_recoveries") == [(2,)]
    assert snapshot_requests.cancel(pipeline).state == "cancelled"
    assert query(target, "SELECT count(*) FROM tidemill_recoveries") == [(0,)]
    with running(pipeline) as run:
        execute(database, "INSERT INTO t VALUES (8, 'after')")
        run.until(lambda: (8, "after") in rows(target)[0])
        assert (3, "deleted in the gap") in rows(target)[0]


@pytest.mark.parametrize("kind", KINDS if WHOLE else dice("recovery").sample(KINDS, 1))
def test_a_purged_binlog_is_recovered_from_with_what_was_deleted_meanwhile(
    kind: str, target: str, tmp_path: Path
) -> None:
    with private_server(kind) as server:
        server.execute(
            "CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY, v varchar(50))",
            "CREATE TABLE shop.emptied (id int PRIMARY KEY)", "INSERT INTO shop.emptied VALUES (1), (2)",
            *[f"INSERT INTO shop.t VALUES ({id}, '{v}')" for id, v in ROWS],
        )  # fmt: skip
        source = {"type": kind, "config": {"id": "recovering", "dsn": server.dsn(), "tables": ["shop.*"]}}
        pipeline = write_document(tmp_path, source, target)

        def wanted() -> Any:
            return (
                sorted(tuple(row) for row in server.query("SELECT id, v FROM shop.t")),
                sorted(tuple(row) for row in server.query("SELECT id FROM shop.emptied")),
            )

        with running(pipeline) as run:
            run.until_copied(1)
            run.until(lambda: rows(target) == wanted())
        server.execute(*GAP, database="shop")
        purge(server)
        with running(pipeline, expect=PositionLost) as run:
            deadline = time.monotonic() + SECONDS
            while not run.failures:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        assert recover(pipeline, "--snapshot") is not None
        with running(pipeline) as run:
            server.execute("INSERT INTO shop.t VALUES (6, 'after')")
            run.until_copied(2)
            run.until(lambda: rows(target) == wanted(), lambda: (rows(target), wanted()))
    log = LogReader(pipeline.log_uri)
    ops = {op for ref in log.refs(log.head(), log.tail().offset) for op in log.read(ref).batch.column("op").to_pylist()}
    assert ops <= {int(Op.READ), int(Op.INSERT)}, "a log sink hears of rows that are there, not of those that are gone"
