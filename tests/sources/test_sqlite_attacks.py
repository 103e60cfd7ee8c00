"""Ways to write that other tools miss: afterwards a copy that is made of nothing but the events equals the file."""

from __future__ import annotations

import importlib
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.sources.sqlite_support import captured, caught_up, copy_of, shop
from tests.support.capturing import Running, eventually
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources._shared.sqlite_catalog import quote
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource
from tidemill.sources.sqlite.client import connect
from tidemill.sources.sqlite.native import CellBuffer
from tidemill.sources.sqlite.triggers import CHANGES
from tidemill.sources.sqlite.trim import trim


def _assert_copied(db: sqlite3.Connection, running: Running, keys: dict[str, tuple[int, ...]]) -> list[dict[str, Any]]:
    events = caught_up(db, running)
    for table, key in keys.items():
        rows = db.execute(f"SELECT * FROM {quote(table)}").fetchall()
        assert copy_of(events, table, key) == {tuple(row[i] for i in key): row for row in rows}, table
    return events


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_rows_that_foreign_keys_change_are_events_also_behind_a_replaced_parent(tmp_path: Path, recursive: str) -> None:
    tables = (
        "PRAGMA foreign_keys = ON",
        f"PRAGMA recursive_triggers = {recursive}",
        "CREATE TABLE p (id INTEGER PRIMARY KEY, u TEXT UNIQUE)",
        "CREATE TABLE c (id INTEGER PRIMARY KEY, p INT REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE n (id INTEGER PRIMARY KEY, p INT REFERENCES p ON DELETE SET NULL ON UPDATE SET NULL)",
        "CREATE TABLE d (id INTEGER PRIMARY KEY, p INT DEFAULT 0 REFERENCES p ON DELETE SET DEFAULT"
        " DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE s (id INTEGER PRIMARY KEY, parent INT REFERENCES s ON DELETE CASCADE)",
    )
    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("INSERT INTO p VALUES (0, 'zero'), (1, 'a'), (2, 'b'), (3, 'c')")
        db.execute("INSERT INTO c VALUES (1, 1), (2, 1), (3, 2), (4, 3)")
        db.execute("INSERT INTO n VALUES (1, 1), (2, 2), (3, 3)")
        db.execute("INSERT INTO d VALUES (1, 1), (2, 2)")
        db.execute("INSERT INTO s VALUES (1, NULL), (2, 1), (3, 2), (4, 3), (5, NULL)")
        db.execute("BEGIN")
        db.execute("INSERT INTO d VALUES (9, 99)")  # its parent comes later
        db.execute("INSERT INTO p VALUES (99, 'late')")
        db.execute("COMMIT")
        db.execute("REPLACE INTO p VALUES (1, 'b')")  # two parents go, and what hangs on them
        db.execute("UPDATE OR REPLACE p SET u = 'c' WHERE id = 1")
        db.execute("UPDATE p SET id = 50 WHERE id = 1")
        db.execute("REPLACE INTO s VALUES (1, 5)")
        db.execute("DELETE FROM s WHERE id = 5")
        db.execute("BEGIN")
        db.execute("INSERT INTO d VALUES (10, 777)")
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("COMMIT")
        db.execute("ROLLBACK")
        _assert_copied(db, running, dict.fromkeys("pcnds", (0,)))


@pytest.mark.parametrize("recursive", ["ON", "OFF"])
def test_triggers_views_and_savepoints_of_the_application_are_followed(tmp_path: Path, recursive: str) -> None:
    tables = (
        f"PRAGMA recursive_triggers = {recursive}",
        "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT)",
        "CREATE TABLE journal (id INTEGER PRIMARY KEY AUTOINCREMENT, x INT)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE TRIGGER a AFTER INSERT ON t BEGIN INSERT INTO journal (x) VALUES (NEW.id);"
        " UPDATE t SET n = n + 1 WHERE id = NEW.id; END",
        "CREATE TRIGGER b BEFORE DELETE ON t BEGIN DELETE FROM journal WHERE x = OLD.id; END",
        "CREATE TRIGGER c AFTER UPDATE ON t WHEN NEW.n < 5 BEGIN UPDATE t SET n = n + 1 WHERE id = NEW.id; END",
        "CREATE TRIGGER i INSTEAD OF INSERT ON v BEGIN REPLACE INTO t VALUES (NEW.id, NEW.n); END",
    )
    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("INSERT INTO t VALUES (1, 0), (2, 0)")
        db.execute("UPDATE t SET n = 0")
        db.execute("INSERT INTO v VALUES (1, 7), (3, 7)")
        db.execute("DELETE FROM t WHERE id = 1")
        db.execute("BEGIN")
        db.execute("SAVEPOINT one")
        db.execute("REPLACE INTO t VALUES (2, 5), (8, 8)")
        db.execute("ROLLBACK TO one")
        db.execute("INSERT INTO t VALUES (9, 9)")
        db.execute("COMMIT")
        for clause in ("ROLLBACK", "ABORT", "FAIL", "IGNORE"):
            with suppress(sqlite3.IntegrityError):
                db.execute(f"INSERT OR {clause} INTO t VALUES (3{len(clause)}, 1), (9, 9), (4{len(clause)}, 1)")
        _assert_copied(db, running, {"t": (0,), "journal": (0,)})


def test_names_with_quotes_spaces_and_emoji_are_names(tmp_path: Path) -> None:
    names = ('we"ird', "it's", "emo😀ji", "a b.c", "select", "[br]", "semi;colon", "per%cent_x", "new\nline")
    tables = [f'CREATE TABLE {quote(n)} ("id ""q" INTEGER PRIMARY KEY, "n\'😀" TEXT, "NEW" INT)' for n in names]
    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        for name in map(quote, names):
            db.execute(f"INSERT INTO {name} VALUES (1, 'a', 1), (2, 'b', 3)")
            db.execute(f"REPLACE INTO {name} VALUES (2, 'c', 5)")
            db.execute(f'UPDATE {name} SET "NEW" = 9')
        _assert_copied(db, running, dict.fromkeys(names, (0,)))


@pytest.mark.parametrize("encoding", ["UTF-16le", "UTF-16be"])
def test_a_utf16_database_gives_the_same_texts(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "shop.db"
    with shop(path, f"PRAGMA encoding = '{encoding}'", "CREATE TABLE t (k TEXT PRIMARY KEY, n TEXT)") as db:
        assert db.execute("PRAGMA encoding").fetchone() == (encoding,)
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO t VALUES (?, ?), ('b', '')", ("ä😀", "n\0ul"))
            db.execute("UPDATE t SET n = 'ключ' WHERE k = 'b'")
            _assert_copied(db, running, {"t": (0,)})


def test_the_widest_table_is_captured_and_read_in_bounded_memory(tmp_path: Path) -> None:
    count = 990
    table = f"CREATE TABLE t (id INTEGER PRIMARY KEY, {', '.join(f'c{i} INT' for i in range(1, count))})"
    with shop(tmp_path / "shop.db", table) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute(f"INSERT INTO t VALUES ({', '.join(map(str, range(count)))})")
        db.execute("UPDATE t SET c5 = 1")
        _assert_copied(db, running, {"t": (0,)})
    cells = CellBuffer(20_000, 1 << 20).widen(4 + 2 * count)
    assert cells.kind.size <= 4_000_000
    assert cells.rows > 1_000


def test_large_windows_are_read_while_a_program_holds_the_write_lock(tmp_path: Path) -> None:
    """Reading writes nothing to the file: neither a lock nor a full disk keeps changes from being delivered."""
    path = tmp_path / "shop.db"
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)") as db:
        with captured(path, tmp_path):
            pass
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with shop(path) as other:
                other.execute("BEGIN IMMEDIATE")
                other.execute("INSERT INTO t VALUES (1000)")
                held.set()
                done.wait(60)
                other.execute("COMMIT")

        with captured(path, tmp_path, window_rows=7, busy_timeout_seconds=0.2) as running:
            db.execute("INSERT INTO t VALUES (50)")
            assert len(_assert_copied(db, running, {"t": (0,)})) == 1  # what it does at its start is done
            db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(50)])
            holder = threading.Thread(target=hold)
            holder.start()
            try:
                assert held.wait(30)
                assert len(_assert_copied(db, running, {"t": (0,)})) == 51
            finally:
                done.set()
                holder.join()
            assert len(_assert_copied(db, running, {"t": (0,)})) == 52


def test_a_file_is_captured_in_every_journal_mode_that_it_is_switched_to(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT)") as db:
        with captured(path, tmp_path):
            pass
        for mode in ("delete", "truncate", "persist", "memory", "off", "wal"):  # wal is left only while nobody reads
            assert db.execute(f"PRAGMA journal_mode = {mode}").fetchone() == (mode,)
            db.execute("INSERT INTO t DEFAULT VALUES")
            with captured(path, tmp_path) as running:
                db.execute("INSERT INTO t DEFAULT VALUES")
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                db.execute("INSERT INTO t DEFAULT VALUES")
                _assert_copied(db, running, {"t": (0,)})
        assert db.execute(f"SELECT count(*) FROM {CHANGES}").fetchone()[0] == 18


def test_a_removal_does_not_wait_for_somebodys_long_read_and_keeps_nobody_else_from_reading(tmp_path: Path) -> None:
    """With a rollback journal a commit that waits for a reader locks out all others."""
    path, patient = tmp_path / "shop.db", 3600
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)", journal="delete") as db:
        with captured(path, tmp_path):
            pass
        db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(9)])
        with closing(connect(path, "test", patient)) as ours, shop(path, journal="delete") as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM t").fetchall()
            assert not trim(ours, "shop", 9)
            assert not ours.in_transaction
            assert ours.execute("PRAGMA busy_timeout").fetchone() == (patient * 1000,)
            db.execute("PRAGMA busy_timeout = 0")
            assert len(db.execute("SELECT * FROM t").fetchall()) == 9
            reader.execute("COMMIT")
            assert trim(ours, "shop", 9)
        assert db.execute(f"SELECT change_id FROM {CHANGES}").fetchall() == [(9,)]


@pytest.mark.parametrize(("held", "most"), [(3600.0, 1), (0.0, 9)])
def test_changes_that_take_long_to_remove_are_removed_in_several_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: float, most: int
) -> None:
    """Whoever else writes waits for one of them."""
    path, last = tmp_path / "shop.db", 99
    monkeypatch.setattr(importlib.import_module("tidemill.sources.sqlite.trim"), "_HELD_SECONDS", held)
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)") as db:
        with captured(path, tmp_path):
            pass
        db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(last)])
        statements: list[str] = []
        with closing(connect(path, "test", 20)) as ours:
            ours.set_trace_callback(statements.append)
            eventually(lambda: trim(ours, "shop", last))
        assert most / 2 < statements.count("COMMIT") <= 2 * most
        assert db.execute(f"SELECT change_id FROM {CHANGES}").fetchall() == [(last,)]


def test_what_is_delivered_is_removed_seldom_unless_much_of_it_waits(tmp_path: Path) -> None:
    """A removal is a transaction beside those of the application, and there should be few."""
    path = tmp_path / "shop.db"
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)"), captured(path, tmp_path) as running:
        file = running.log.tail().position.partition("@")[2]
    source = SqliteSource(SqliteFileConfig(id="shop", path=path, trim_seconds=3600))
    source.setup()
    registry = SchemaRegistry(tmp_path / "other.sqlite")
    source.open(None, registry)
    try:
        first = Position(f"1/0@{file}")
        assert source.due(first, caught_up=False) == first
        source.acknowledge(first)
        assert source.due(Position(f"2/0@{file}"), caught_up=False) is None
        many = Position(f"100000/0@{file}")
        eventually(lambda: source.due(many, caught_up=False) == many)
    finally:
        source.close()
        registry.close()
