"""What is particular to one store."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tidemill.checkpoints.clickhouse import ClickHouseCheckpoints, ClickHouseCheckpointsConfig
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.checkpoints.postgres import PostgresCheckpoints, PostgresCheckpointsConfig
from tidemill.checkpoints.sqlite import SqliteCheckpoints, SqliteConfig
from tidemill.errors import CheckpointConflict, CheckpointError, is_retryable
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position


def count_up(kind: str, directory: str, rounds: int) -> None:
    """Adds one to the stored offset `rounds` times, trying again after each lost race."""
    store = _open(kind, Path(directory))
    for _ in range(rounds):
        for _attempt in range(10_000):
            current = store.load("orders")
            version, offset = (current.version, current.offset) if current else (0, 0)
            try:
                store.save("orders", Checkpoint(offset + 1, Position("p")), expect=version)
                break
            except CheckpointConflict:
                continue
    store.close()


def _open(kind: str, directory: Path) -> FileCheckpoints | SqliteCheckpoints:
    return FileCheckpoints(FileConfig(), directory) if kind == "file" else SqliteCheckpoints(SqliteConfig(), directory)


@pytest.mark.slow  # many processes
@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_no_update_is_lost_between_processes(kind: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=count_up, args=(kind, str(tmp_path), 20)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    store = _open(kind, tmp_path)
    final = store.load("orders")
    store.close()
    assert final is not None
    assert (final.offset, final.version) == (60, 60)


def test_a_lock_that_a_stuck_process_holds_is_an_error_worth_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FileCheckpoints, "lock_seconds", 0.2)
    store = FileCheckpoints(FileConfig(), tmp_path)
    first = store.save("orders", Checkpoint(1, Position("p")), expect=0)
    with (tmp_path / "checkpoints" / "orders.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        met: list[CheckpointError] = []
        saving = threading.Thread(target=_save_in_vain, args=(store, met), daemon=True)
        saving.start()
        saving.join(30)
        assert met, "it waits for ever"
        assert is_retryable(met[0])
        assert "orders.lock" in met[0].where
    assert store.save("orders", Checkpoint(2, Position("q")), expect=first.version).version == 2


def _save_in_vain(store: FileCheckpoints, met: list[CheckpointError]) -> None:
    try:
        store.save("orders", Checkpoint(2, Position("q")), expect=1)
    except CheckpointError as error:
        met.append(error)


def test_a_torn_file_is_an_error_that_says_which(tmp_path: Path) -> None:
    store = FileCheckpoints(FileConfig(), tmp_path)
    store.save("orders", Checkpoint(1, Position("p")), expect=0)
    path = tmp_path / "checkpoints" / "orders.json"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"orders\.json"):
        store.load("orders")


def test_a_save_that_was_torn_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    store = FileCheckpoints(FileConfig(), tmp_path)
    first = store.save("orders", Checkpoint(1, Position("p")), expect=0)
    path = tmp_path / "checkpoints" / "orders.json"
    before = path.read_bytes()
    store.save("orders", Checkpoint(2, Position("q")), expect=1)
    after = path.read_bytes()
    place = next(at for at in range(len(after)) if after[at] != before[at])
    path.write_bytes(after[: place + 40] + before[place + 40 :])
    assert store.load("orders") == first
    assert store.save("orders", Checkpoint(3, Position("r")), expect=1).version == 2
    store.close()


def test_a_save_asks_the_disk_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileCheckpoints(FileConfig(), tmp_path)
    store.save("orders", Checkpoint(1, Position("p")), expect=0)
    asked: list[str] = []
    for name in ("fsync", "fdatasync", "replace", "rename"):
        monkeypatch.setattr(os, name, lambda *_, name=name: asked.append(name))
    store.save("orders", Checkpoint(2, Position("q")), expect=1)
    store.close()
    assert asked == ["fdatasync"]


def test_threads_that_share_a_store_lose_no_update(tmp_path: Path) -> None:
    store = FileCheckpoints(FileConfig(), tmp_path)

    def save() -> None:
        for _ in range(20):
            while True:
                kept = store.load("orders")
                offset, version = (kept.offset, kept.version) if kept else (0, 0)
                try:
                    store.save("orders", Checkpoint(offset + 1, Position("p")), expect=version)
                    break
                except CheckpointConflict:
                    continue

    threads = [threading.Thread(target=save) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    final = store.load("orders")
    store.close()
    assert final is not None
    assert (final.offset, final.version) == (60, 60)


def test_a_lock_file_that_was_removed_locks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FileCheckpoints, "lock_seconds", 0.2)
    store = FileCheckpoints(FileConfig(), tmp_path)
    store.save("orders", Checkpoint(1, Position("p")), expect=0)
    (tmp_path / "checkpoints" / "orders.lock").unlink()
    with (tmp_path / "checkpoints" / "orders.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match="has held"):
            store.save("orders", Checkpoint(2, Position("q")), expect=1)
    assert store.save("orders", Checkpoint(2, Position("q")), expect=1).version == 2
    store.close()


def test_a_leftover_of_a_crash_while_saving_does_no_harm(tmp_path: Path) -> None:
    store = FileCheckpoints(FileConfig(), tmp_path)
    saved = store.save("orders", Checkpoint(1, Position("p")), expect=0)
    (tmp_path / "checkpoints" / "orders.json.tmp").write_bytes(b'{"off')
    assert store.load("orders") == saved
    assert store.save("orders", Checkpoint(2, Position("p")), expect=1).version == 2


def test_a_directory_that_cannot_be_made_is_a_checkpoint_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(CheckpointError):
        FileCheckpoints(FileConfig(), tmp_path).save("orders", Checkpoint(1, Position("p")), expect=0)


def test_sqlite_keeps_as_many_as_configured_and_goes_on_counting(tmp_path: Path) -> None:
    store = SqliteCheckpoints(SqliteConfig(path=tmp_path / "c.sqlite", keep=3))
    for number in range(10):
        store.save("orders", Checkpoint(number, Position("p")), expect=number)
    assert [c.version for c in store.history("orders")] == [10, 9, 8]
    store.close()


def test_sqlite_can_be_read_while_another_process_is_writing(tmp_path: Path) -> None:
    store = SqliteCheckpoints(SqliteConfig(), tmp_path)
    saved = store.save("orders", Checkpoint(1, Position("p")), expect=0)
    other = sqlite3.connect(tmp_path / "checkpoints.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert store.load("orders") == saved
    other.execute("ROLLBACK")
    other.close()
    store.close()


def test_a_file_that_is_no_database_is_a_checkpoint_error(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(CheckpointError, match=r"c\.sqlite"):
        SqliteCheckpoints(SqliteConfig(path=path)).load("orders")


def test_clickhouse_is_asked_for_what_was_saved_last_whichever_replica_answers() -> None:
    with ClickHouse() as server:
        store = ClickHouseCheckpoints(ClickHouseCheckpointsConfig(url=server.url, database="state"))
        store.save("orders", Checkpoint(1, Position("0/1")), expect=0)
        assert store._query("SELECT getSetting('select_sequential_consistency')") == [(1,)]
        store.close()


def test_the_ttl_of_clickhouse_removes_old_checkpoints_but_never_the_last() -> None:
    with ClickHouse() as server:
        store = ClickHouseCheckpoints(ClickHouseCheckpointsConfig(url=server.url, database="state", keep_days=30))
        for number in range(5):
            store.save("orders", Checkpoint(number, Position(f"0/{number}")), expect=number)
        store.save("other", Checkpoint(9, Position("0/9")), expect=0)
        aged = "ALTER TABLE state.tidemill_checkpoints UPDATE created = now() - INTERVAL {} DAY WHERE {}"
        server.query(aged.format(31, "pipeline = 'orders'") + " SETTINGS mutations_sync = 2")
        server.query("OPTIMIZE TABLE state.tidemill_checkpoints FINAL")
        (last,) = store.history("orders")
        assert (last.offset, last.position, last.version) == (4, "0/4", 5)
        assert store.save("orders", Checkpoint(5, Position("0/5")), expect=5).version == 6
        assert [c.version for c in store.history("orders")] == [6, 5]
        assert len(store.history("other")) == 1
        server.kill()
        with pytest.raises(CheckpointError, match="cannot be reached"):
            store.load("orders")
        server.start()
        assert store.load("orders") is not None
        store.close()


def test_a_table_in_clickhouse_of_an_older_version_is_read_and_written_on() -> None:
    with ClickHouse() as server:
        server.query("CREATE DATABASE state")
        server.query(
            "CREATE TABLE state.tidemill_checkpoints (pipeline String, version UInt64, offset UInt64, position String, "
            "saved_at String, note String, writer String, created DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY "
            "pipeline TTL created + INTERVAL 30 DAY GROUP BY pipeline SET offset = argMax(offset, version), position = "
            "argMax(position, version), saved_at = argMax(saved_at, version), note = argMax(note, version), writer = "
            "argMax(writer, version), version = max(version), created = max(created) "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
        server.query(
            "INSERT INTO state.tidemill_checkpoints (pipeline, version, offset, position, saved_at, note, writer) "
            "VALUES ('orders', 1, 5, '0/5', 'then', '', 'w0')"
        )
        config = ClickHouseCheckpointsConfig(url=server.url, database="state")
        with closing(ClickHouseCheckpoints(config)) as store:
            assert store.load("orders") == Checkpoint(5, Position("0/5"), 1, "then", writer="w0")
            saved = store.save("orders", Checkpoint(9, Position("0/8"), base=8), expect=1)
            assert store.load("orders") == saved
        # What its TTL rolls up keeps the newest of the new column, too.
        server.query(
            "INSERT INTO state.tidemill_checkpoints (pipeline, version, offset, position, base, created) "
            "SELECT 'aged', number + 1, number, '', 7 - number, now() - INTERVAL 31 DAY FROM numbers(3)"
        )
        server.query("OPTIMIZE TABLE state.tidemill_checkpoints FINAL")
        with closing(ClickHouseCheckpoints(config)) as store:
            assert [(c.version, c.base) for c in store.history("aged")] == [(3, 5)]
            assert store.load("orders") == saved


def test_a_table_in_postgres_of_an_older_version_is_read_and_written_on(postgres18: Postgres) -> None:
    with postgres18.database("older_checkpoints") as dsn:
        with psycopg.connect(dsn) as db:
            db.execute(
                "CREATE TABLE tidemill_checkpoints (pipeline text NOT NULL, version bigint NOT NULL,"
                ' "offset" bigint NOT NULL, position text NOT NULL, saved_at text NOT NULL, note text NOT NULL,'
                " base bigint, writer text NOT NULL, PRIMARY KEY (pipeline, version))"
            )
            db.execute("INSERT INTO tidemill_checkpoints VALUES ('orders', 1, 5, '0/5', 'then', 'old', NULL, 'w0')")
        config = PostgresCheckpointsConfig(dsn=dsn)
        with closing(PostgresCheckpoints(config)) as store, closing(PostgresCheckpoints(config)) as other:
            assert store.load("orders") == Checkpoint(5, Position("0/5"), 1, "then", "old", writer="w0")
            saved = store.save("orders", Checkpoint(9, Position("0/8"), joined=True), expect=1)
            assert other.load("orders") == saved


def test_a_sqlite_file_of_an_older_version_is_read_and_written_on(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "checkpoints.sqlite")) as db:
        db.execute(
            'CREATE TABLE checkpoints (pipeline TEXT NOT NULL, version INTEGER NOT NULL, "offset" INTEGER NOT NULL, '
            "position TEXT NOT NULL, saved_at TEXT NOT NULL, note TEXT NOT NULL, PRIMARY KEY (pipeline, version)) "
            "WITHOUT ROWID"
        )
        db.execute("INSERT INTO checkpoints VALUES ('orders', 1, 5, '0/5', 'then', 'old')")
        db.commit()
    with closing(SqliteCheckpoints(SqliteConfig(), tmp_path)) as store:
        assert store.load("orders") == Checkpoint(5, Position("0/5"), 1, "then", "old")
        saved = store.save("orders", Checkpoint(9, Position("0/8"), base=8, writer="w"), expect=1)
    with closing(SqliteCheckpoints(SqliteConfig(), tmp_path)) as store:
        assert store.load("orders") == saved


def test_a_checkpoint_file_of_an_older_version_is_read(tmp_path: Path) -> None:
    store = FileCheckpoints(FileConfig(), tmp_path)
    store.directory.mkdir(parents=True)
    (store.directory / "orders.json").write_text(
        '{"offset": 5, "position": "0/5", "version": 3, "saved_at": "then", "note": ""}'
    )
    found = store.load("orders")
    assert found == Checkpoint(5, Position("0/5"), 3, "then")
    assert found is not None
    assert found.begins == 5
    saved = store.save("orders", Checkpoint(9, Position("0/9")), expect=3)
    assert store.load("orders") == saved
    store.close()
