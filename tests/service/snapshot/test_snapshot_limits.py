"""Snapshots at their limits: many tables, large ones, servers that die, standbys, transactions that never end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import psycopg
import pytest

from tests.service.snapshot import test_snapshots
from tests.sources.postgres.histories import standby_of
from tests.sources.support import execute, query
from tests.support.copying import LocalSpark, copying
from tests.support.seed import WHOLE
from tidemill.capture import shared_windows
from tidemill.capture import snapshot as adopting
from tidemill.capture.loop import WAIT_SECONDS
from tidemill.capture.snapshot import ChunkAdopter
from tidemill.capture.window import ChunkWindow
from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import TableLocked
from tidemill.lab.servers.postgres import Postgres
from tidemill.log.copying import find_excused
from tidemill.log.local import LocalStore
from tidemill.log.staging import Manifest, Part, Staging
from tidemill.log.staging import ids as staged_ids
from tidemill.log.store import open_store
from tidemill.model.block import Block, Op
from tidemill.model.snapshot import ChunkState, SnapshotState, TableState
from tidemill.model.table import Table
from tidemill.service.snapshot import refusals
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.observations import _MOST
from tidemill.service.snapshot.refusals import Refusals

_MEMORY = 400 << 20
_TABLES = 1000 if WHOLE else 200  # `make crash` has all of them


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database("snapshot_limits") as dsn:
        yield dsn


def test_many_small_tables_share_jobs_statements_appends_and_transactions(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_snapshots, "PATIENCE", 600.0)
    with psycopg.connect(database) as db:
        for number in range(_TABLES):
            db.execute(f"CREATE TABLE small_{number} (id int PRIMARY KEY)".encode())
            if number % 2:
                db.execute(f"INSERT INTO small_{number} VALUES ({number})".encode())
    execute(database, "ANALYZE")
    jobs: list[int] = []
    collect = LocalSpark.collect

    def counted(spark: LocalSpark) -> list[Any]:
        jobs.append(len(spark._tasks))
        return collect(spark)

    monkeypatch.setattr(LocalSpark, "collect", counted)
    statements: list[str] = []
    written: list[str] = []
    execute_one, begin = psycopg.Connection.execute, SqliteFile._begin

    def executed(db: Any, query: Any, *rest: Any, **more: Any) -> Any:
        statements.append(query.decode() if isinstance(query, bytes) else str(query))
        return execute_one(db, query, *rest, **more)

    def begun(file: SqliteFile, db: Any) -> None:
        written.append(file.path.name)
        begin(file, db)

    monkeypatch.setattr(psycopg.Connection, "execute", executed)
    monkeypatch.setattr(SqliteFile, "_begin", begun)
    with copying(database, tmp_path) as copy:
        copy.until_done()
        appends = sum(1 for _ in copy.log.entries(0))
        transactions = Counter(written)
        tables = copy.tables()
        assert len(tables) == _TABLES
        assert {table.state for table in tables.values()} == {TableState.READY}
        assert copy.log.tail().offset == _TABLES // 2
    assert len(jobs) <= _TABLES // 5, "a job takes the tables that capture has registered since the last one"
    made, *alone = [text for text in statements if "small_" in text]
    assert "CREATE PUBLICATION" in made
    assert not alone, "no statement is about one table"
    described = [text for text in statements if "a.attrelid::int8, a.attname" in text]
    assert len(described) <= 5 + _TABLES // 50, "the catalog is asked for many at once"
    assert appends <= _TABLES // 10, "chunks that wait together come into the log together"
    assert transactions["registry.sqlite"] <= 10 + _TABLES // 20
    assert transactions["state.sqlite"] <= 50 + _TABLES // 2


def test_a_chunk_whose_manifest_a_power_cut_took_or_tore_is_read_again(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 400)")
    left, seal = ["gone", "half of it", "zeros"], Staging.seal

    def tear(staging: Staging, parts: Iterable[Part]) -> Manifest:
        made = seal(staging, parts)
        if left:
            size = len(made.to_json())
            torn = {"gone": b"", "half of it": made.to_json()[: size // 2], "zeros": bytes(size)}[left.pop()]
            copy.writer.store.replace(f"staging/{staging.id}/manifest.json", torn)
        return made

    monkeypatch.setattr(Staging, "seal", tear)
    with copying(database, tmp_path, "public.t", chunk_rows=100, mode="never") as copy:
        snapshot_requests.start(copy.pipeline, ["public.t"], "")
        copy.until_done()
        assert copy.equals("t")
        assert copy.log.tail().offset == 400
    assert not left


def test_changes_beside_chunks_that_wait_are_read_once_for_all_of_them(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 1000) n",
    )  # fmt: skip
    windows: list[str] = []
    go_on, is_full = threading.Event(), ChunkAdopter._is_full

    def count(events: Iterable[Block], table: Table) -> ChunkWindow:
        windows.append(table.full_name)
        return ChunkWindow(events, table)

    monkeypatch.setattr(shared_windows, "ChunkWindow", count)
    monkeypatch.setattr(ChunkAdopter, "_is_full", lambda self, ready: not go_on.is_set() or is_full(self, ready))
    with copying(database, tmp_path, "public.t", chunk_rows=50) as copy, closing(copy.pipeline.build_state()) as state:
        copy.until(lambda: len(state.snapshots.chunks("copied", 1, ChunkState.STAGED)) >= 16)
        execute(database, "UPDATE t SET v = 'new' WHERE id % 50 = 7", "DELETE FROM t WHERE id = 8")
        copy.until(lambda: copy.log.tail().offset == 21)
        go_on.set()
        copy.until_done()
        assert copy.equals("t")
    assert len(windows) < 10, "one for the chunks that waited, and few for those that came later"


def test_while_chunks_come_capture_does_not_sleep_as_long_as_without_a_copy(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream without changes would let tables wait for their numbers, and the last chunks of a copy for the log."""
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 1000) n",
    )  # fmt: skip
    waits, before = list[float](), list[float]()
    adopters: set[ChunkAdopter] = set()
    turn = ChunkAdopter.turn

    def note(adopter: ChunkAdopter, *stopped: Callable[[], bool]) -> int:
        before.append(adopter.wait_seconds)
        visible = turn(adopter, *stopped)
        adopters.add(adopter)
        if visible:
            waits.append(adopter.wait_seconds)
        return visible

    monkeypatch.setattr(ChunkAdopter, "turn", note)
    with copying(database, tmp_path, "public.t", chunk_rows=50) as copy:
        copy.until_done()
        assert waits
        assert max(waits) < WAIT_SECONDS
        assert before[0] < WAIT_SECONDS, "of a stream that has just begun"
        (adopter,) = adopters
        copy.until(lambda: adopter.wait_seconds == WAIT_SECONDS)


def test_a_table_that_somebody_locks_for_long_is_neither_given_up_nor_begun_anew_and_others_are_copied(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for table in ("t", "other"):
        execute(
            database, f"CREATE TABLE {table} (id int PRIMARY KEY)",
            f"INSERT INTO {table} SELECT generate_series(1, 1000)",
        )  # fmt: skip
    execute(database, "ANALYZE")
    waits, note = [], Refusals.note_lock

    def note_lock(known: Refusals, table: str, error: TableLocked) -> None:
        waits.append(table)
        note(known, table, error)

    monkeypatch.setattr(Refusals, "note_lock", note_lock)
    monkeypatch.setattr(refusals, "_LOCKED_SECONDS", 1.0)
    with (
        copying(
            database,
            tmp_path,
            "public.t",
            "public.other",
            settings={"lock_timeout_seconds": 0.05},
            chunk_rows=25,
            max_rows_per_second=600,
        ) as copy,
        psycopg.connect(database) as locker,
    ):
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted > 1)
        locker.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        copy.until(lambda: copy.tables()["public.other"].state is TableState.READY)
        copy.until(lambda: len(waits) > refusals._MOST)
        assert copy.tables()["public.t"].state is TableState.COPYING
        locker.rollback()
        copy.until_done()
        assert copy.equals("t")
        assert copy.log.tail().offset == 2000
    assert set(waits) == {"public.t"}


def test_the_observations_of_a_transaction_that_stays_open_are_bounded(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE TABLE other (id int)",
        "INSERT INTO t SELECT n, n FROM generate_series(1, 100) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", mode="never") as copy, psycopg.connect(database) as writer:
        copy.until(lambda: copy.log.tail().position)
        # A gap: the log is not the whole stream, so that a read has to prove what it has seen.
        execute(database, "UPDATE t SET v = 0 WHERE id = 1")
        copy.until(lambda: copy.log.tail().offset == 1)
        copy.writer.store.replace("gap.json", orjson.dumps({"offset": 1}))
        writer.execute("INSERT INTO other VALUES (1)")
        driver: Any = copy.driver
        driver._observations.all = [(1, "[1]")] * (_MOST - 2)
        lengths: set[int] = set()

        def grown() -> bool:
            lengths.add(len(driver._observations.all))
            return len(lengths) > 3

        snapshot_requests.start(copy.pipeline, ["public.t"], "")
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].chunks)
        copy.until(grown)
        driver._observations.all += driver._observations.all[-1:] * _MOST
        copy.until(lambda: len(driver._observations.all) <= _MOST + 1)
        assert copy.state() is SnapshotState.RUNNING, "nothing is proven yet"
        writer.rollback()
        copy.until_done()
        assert copy.equals("t")


def test_a_cancelled_copy_excuses_no_event_from_before_it(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT n, 0, repeat(md5(n::text), 200) FROM generate_series(1, 400) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", mode="never", chunk_rows=10, max_rows_per_second=100) as copy:
        copy.until(lambda: copy.log.tail().position)
        snapshot_requests.start(copy.pipeline, ["public.t"], "")
        copy.until(lambda: "public.t" in copy.log.read_copying())
        execute(database, "UPDATE t SET n = 1 WHERE id = 400")

        def update() -> list[int]:
            blocks = [copy.log.read(ref) for ref in copy.log.refs(0, copy.log.tail().offset)]
            return [row["offset"] for block in blocks for row in block.batch.to_pylist() if row["op"] == int(Op.UPDATE)]

        copy.until(update)
        (offset,) = update()
        blocks = [copy.log.read(ref) for ref in copy.log.refs(offset, offset + 1)]
        assert find_excused(copy.log.read_copying(), blocks, {offset}) == {offset}, "its row is still to come"
        snapshot_requests.cancel(copy.pipeline)
        copy.until(lambda: copy.log.read_copying() == {}, f"{copy.log.read_copying()}")
        assert find_excused(copy.log.read_copying(), blocks, {offset}) == set(), "it never comes"


def test_what_a_cancelled_copy_staged_is_removed_while_the_pipeline_runs(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of the copy after it nothing is."""
    monkeypatch.setattr(ChunkAdopter, "_is_full", lambda adopter, ready: True)
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 400) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", mode="never", chunk_rows=100) as copy:
        store = open_store(copy.pipeline.log_uri)
        copy.until(lambda: copy.log.tail().position)
        cancelled = snapshot_requests.start(copy.pipeline, ["public.t"], "").id
        with closing(copy.pipeline.build_state()) as state:
            copy.until(lambda: len(state.snapshots.chunks("copied", cancelled, ChunkState.STAGED)) == 4)
        assert len(staged_ids(store)) == 4
        snapshot_requests.cancel(copy.pipeline)
        copy.until(lambda: not staged_ids(store), f"{staged_ids(store)} stay")
        snapshot_requests.start(copy.pipeline, ["public.t"], "")
        copy.until(lambda: len(staged_ids(store)) == 4)
        monkeypatch.undo()
        copy.until_done()
        assert copy.equals("t")
        assert staged_ids(store) == []


def test_chunks_that_many_wait_before_are_left_to_the_disk(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table as large as memory drives nothing else out of it."""
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 400) n",
    )  # fmt: skip
    monkeypatch.setattr(adopting, "_IN_MEMORY_BYTES", 0)
    dropped: list[str] = []
    drop = LocalStore.drop_pages

    def note(store: LocalStore, name: str) -> None:
        dropped.append(name)
        drop(store, name)

    monkeypatch.setattr(LocalStore, "drop_pages", note)
    with copying(database, tmp_path, "public.t", chunk_rows=100) as copy:
        copy.until_done()
        assert copy.equals("t")
        assert {ref.segment for ref in copy.log.refs(0, copy.log.tail().offset)} == set(dropped)
        LocalStore(copy.pipeline.log_uri).drop_pages("a file that is gone")


def test_rows_of_a_table_without_a_key_are_there_at_least_once(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE k (n int, v text)",
        "INSERT INTO k SELECT n, repeat('x', 100) FROM generate_series(1, 2000) n", "ANALYZE k",
    )  # fmt: skip
    with copying(database, tmp_path, "public.k", chunk_rows=200, max_connections=1, max_rows_per_second=2000) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.k"].adopted >= 2)
        execute(
            database, "UPDATE k SET v = 'moved' WHERE n > 1990", "INSERT INTO k VALUES (3000, 'new')",
            "DELETE FROM k WHERE n = 1980",
        )  # fmt: skip
        copy.until_done()
        assert copy.tables()["public.k"].chunks > 5
        copy.until(lambda: copy.log.tail().offset >= 2000)
        wanted = set(query(database, "SELECT n, v FROM k"))
        found: list[tuple[int, str]] = []
        for ref in copy.log.refs(0, copy.log.tail().offset):
            for row in copy.log.read(ref).batch.to_pylist():
                gone, came = row.get("before"), row.get("after")
                if gone is not None and (gone["n"], gone["v"]) in found:
                    found.remove((gone["n"], gone["v"]))
                found += [(came["n"], came["v"])] if came is not None else []
    assert set(found) >= wanted


def test_a_server_that_is_killed_in_the_middle_of_a_copy_costs_only_time(
    private_postgres: Postgres, tmp_path: Path
) -> None:
    dsn = private_postgres.create_database("killed")
    execute(
        dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 3000) n",
    )  # fmt: skip
    with copying(dsn, tmp_path, "public.t", chunk_rows=100, max_connections=1, max_rows_per_second=1000) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted >= 3)
        private_postgres.kill()
        private_postgres.start()
        execute(dsn, "UPDATE t SET v = 'new' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0")
        copy.until_done()
        copy.until(lambda: copy.equals("t"))
        assert copy.tables()["public.t"].state is TableState.READY


def test_chunks_are_read_from_a_standby_that_lags(private_postgres: Postgres, tmp_path: Path) -> None:
    dsn = private_postgres.create_database("standby")
    execute(
        dsn, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 1000) n",
    )  # fmt: skip
    with standby_of(private_postgres, tmp_path / "standby") as standby:
        there = dsn.replace(f":{private_postgres.port}/", f":{standby.port}/")
        assert query(there, "SELECT pg_is_in_recovery(), count(*) FROM t") == [(True, 1000)]
        standby.query("SELECT pg_wal_replay_pause()")
        settings: dict[str, Any] = {"dsn": there, "chunk_rows": 100, "max_connections": 2, "max_rows_per_second": 500}
        with copying(dsn, tmp_path, "public.t", **settings) as copy:
            copy.until(lambda: copy.log.tail().position)
            execute(dsn, "UPDATE t SET v = 'new' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 11 = 0")
            copy.until(lambda: copy.log.tail().offset >= 1000 // 7)
            standby.query("SELECT pg_wal_replay_resume()")
            execute(dsn, "UPDATE t SET v = 'newer' WHERE id % 13 = 0")
            copy.until_done()
            copy.until(lambda: copy.equals("t"))
        assert private_postgres.query("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'COPY%'") == [(0,)]


_READ = """
import sys, pickle
from tidemill.stream.snapshot import ChunkTask, _read_one, _StagingThread
reader, chunk, table, log = pickle.load(sys.stdin.buffer)
with _StagingThread() as thread:
    result = _read_one(reader, log, (), ChunkTask(chunk, table, "large", -1), thread, {})()
assert not result.error, result.error
status = open("/proc/self/status").read()  # of this process alone: ru_maxrss begins with what the parent had
print(result.rows, len(result.parts), int(status.partition("VmHWM:")[2].split()[0]) << 10)
"""


def test_a_table_that_is_larger_than_a_workers_memory_is_read_as_one_chunk(database: str, tmp_path: Path) -> None:
    import pickle
    from dataclasses import replace

    from tests.sources.postgres.test_snapshot import described, reader_of
    from tidemill.model.snapshot import Chunk

    execute(
        database, "CREATE UNLOGGED TABLE seed (v text)",
        "INSERT INTO seed SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 32) n",
        "CREATE TABLE large (id int PRIMARY KEY, v text)",
        "INSERT INTO large SELECT n, v || n FROM generate_series(1, 300000) n, seed",
        "CREATE TABLE small (id int PRIMARY KEY, v text)", "INSERT INTO small SELECT * FROM large LIMIT 10",
    )  # fmt: skip
    assert query(database, "SELECT sum(length(v)) > 300000000 FROM large") == [(True,)]
    done = b""
    for name in ("small", "large"):  # the first may compile kernels, which takes memory of its own
        with closing(reader_of(database, f"public.{name}")) as reader:
            table = described(reader, f"public.{name}")
            work = pickle.dumps((reader, Chunk(table.name, 0), replace(table), str(tmp_path / name)))
        script = [sys.executable, "-c", _READ]
        ended = subprocess.run(script, input=work, capture_output=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr.decode()[-3000:]
        done = ended.stdout
    rows, parts, peak = map(int, done.split())
    assert (rows, parts > 5) == (300_000, True)
    assert peak < _MEMORY, f"{peak >> 20} MiB"
