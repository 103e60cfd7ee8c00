"""Changes of a SQLite file: what triggers record, and that nothing is missing, whatever a program does to the file."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.sources.sqlite_support import captured, caught_up, config_of, copy_of, shop, shown
from tests.support.capturing import Running, capturing, eventually
from tests.support.seed import run_seed
from tidemill.log import LogConfig
from tidemill.log.writer import LogWriter
from tidemill.model.change import Committed
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.sqlite import SqliteSource
from tidemill.sources.sqlite.file_watch import FileWatch

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT UNIQUE, total REAL)"


def test_no_event_claims_a_transaction_that_it_may_share_with_others(tmp_path: Path) -> None:
    """Five commits that one look finds, together and in pieces: which of them were one is not known."""
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        with captured(path, tmp_path / "whole"), captured(path, tmp_path / "pieces", id="pieces"):
            pass
        for number in range(5):
            db.execute("INSERT INTO orders VALUES (?, NULL, NULL)", [number])
        with captured(path, tmp_path / "whole") as running:
            events = caught_up(db, running)
        with captured(path, tmp_path / "pieces", id="pieces", window_rows=2) as running:
            events += caught_up(db, running)
    assert [e["tx_id"] for e in events] == [None] * 10


@pytest.mark.parametrize("journal", ["wal", "delete", "persist"])
def test_changes_arrive_in_order_and_what_is_rolled_back_does_not(tmp_path: Path, journal: str) -> None:
    with shop(tmp_path / "shop.db", ORDERS, journal=journal) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5), (2, 'bob', -0.0)")
        db.execute("BEGIN")
        db.execute("INSERT INTO orders VALUES (3, 'eve', 3)")
        db.execute("ROLLBACK")
        db.execute("UPDATE orders SET total = 2.5 WHERE id = 1")
        db.execute("DELETE FROM orders")
        events = caught_up(db, running)
    assert shown(events) == [
        ("insert", None, (1, "ann", 1.5)),
        ("insert", None, (2, "bob", -0.0)),
        ("update", (1, "ann", 1.5), (1, "ann", 2.5)),
        ("delete", (1, "ann", 2.5), None),
        ("delete", (2, "bob", -0.0), None),
    ]
    assert [e["ordinal"] for e in events] == [0] * 5
    assert [e["position"].partition("/")[0] for e in events] == ["1", "2", "3", "4", "5"]
    assert all(e["commit_time"] for e in events)


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
def test_rows_that_replace_deletes_are_deletes_whatever_recursive_triggers_says(tmp_path: Path, recursive: str) -> None:
    with shop(tmp_path / "shop.db", ORDERS) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute(f"PRAGMA recursive_triggers = {recursive}")
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1), (2, 'bob', 2), (3, 'eve', 3)")
        db.execute("INSERT OR REPLACE INTO orders VALUES (1, 'bob', 9)")  # replaces two rows
        db.execute("INSERT OR IGNORE INTO orders VALUES (7, 'eve', 9)")  # replaces none
        db.execute("DELETE FROM orders WHERE id = 3")
        db.execute("INSERT INTO orders VALUES (4, 'kim', 4)")  # what IGNORE had noted is stale
        db.execute("UPDATE OR REPLACE orders SET customer = 'kim' WHERE id = 1")
        db.execute("INSERT INTO orders VALUES (1, 'x', 5) ON CONFLICT (id) DO UPDATE SET total = excluded.total")
        db.execute("UPDATE orders SET id = 8 WHERE id = 1")
        events = caught_up(db, running)
        assert copy_of(events, "orders", (0,)) == {(8,): (8, "kim", 5.0)}
    assert [op for op, *_ in shown(events)] == [
        "insert", "insert", "insert", "delete", "delete", "insert", "delete", "insert", "delete", "update", "update",
        "delete", "insert",
    ]  # fmt: skip
    assert [e["ordinal"] for e in events[-2:]] == [0, 1]
    assert events[-2]["position"] == events[-1]["position"]


def test_rows_are_told_apart_without_a_rowid_under_collations_and_by_generated_columns(tmp_path: Path) -> None:
    tables = (
        "CREATE TABLE w (k TEXT COLLATE NOCASE, l INT, v, PRIMARY KEY (k, l)) WITHOUT ROWID",
        "CREATE TABLE g (id INTEGER PRIMARY KEY, a TEXT, s TEXT AS (lower(a)) STORED UNIQUE, n INT AS (length(a)))",
        "CREATE TABLE f (id INTEGER PRIMARY KEY, parent INT REFERENCES f ON DELETE CASCADE ON UPDATE SET NULL)",
    )
    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("INSERT INTO w VALUES ('a', 1, x'00'), ('b', 1, 'text')")
        db.execute("REPLACE INTO w VALUES ('A', 1, 2.5)")
        db.execute("UPDATE w SET k = 'B' WHERE k = 'b'")
        db.execute("INSERT INTO g (id, a) VALUES (1, 'Ann'), (2, 'Bob')")
        db.execute("REPLACE INTO g (id, a) VALUES (3, 'ANN')")
        db.execute("UPDATE OR REPLACE g SET a = 'BOB' WHERE id = 3")
        db.execute("INSERT INTO f VALUES (1, NULL), (2, 1), (3, 2), (4, NULL)")
        db.execute("REPLACE INTO f VALUES (1, 4)")
        events = caught_up(db, running)
        assert copy_of(events, "w", (0, 1)) == {("A", 1): ("A", 1, "2.5"), ("B", 1): ("B", 1, "text")}
        assert copy_of(events, "g", (0,)) == {(3,): (3, "BOB", "bob", 3)}
        assert copy_of(events, "f", (0,)) == {(4,): (4, None), (1,): (1, 4)}


@pytest.mark.parametrize("kind", ["VIRTUAL", "STORED"])
def test_rows_that_replace_deletes_by_a_generated_column_of_several_are_deletes(tmp_path: Path, kind: str) -> None:
    """Before an UPDATE, SQLite makes generated columns of NULL where no trigger names what they are made of."""
    table = f"CREATE TABLE g (id INTEGER PRIMARY KEY, a TEXT, b TEXT, ab TEXT AS (a || '-' || b) {kind} UNIQUE)"
    with shop(tmp_path / "shop.db", table) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("INSERT INTO g (id, a, b) VALUES (1, 'x', 'k'), (2, 'x', 'l'), (3, 'y', 'm'), (4, 'y', 'n')")
        db.execute("UPDATE OR REPLACE g SET b = 'l' WHERE id = 1")
        db.execute("UPDATE OR REPLACE g SET b = 'o' WHERE a = 'y'")  # the second row replaces the first
        events = caught_up(db, running)
        assert copy_of(events, "g", (0,)) == {row[:1]: row for row in db.execute("SELECT * FROM g")}
    assert [op for op, *_ in shown(events)][4:] == ["delete", "update", "update", "delete", "update"]


def test_every_way_to_write_leaves_a_copy_that_equals_the_table(tmp_path: Path) -> None:
    """Random statements, among them every conflict clause, over four kinds of table; the file is the judge."""
    dice = Random(f"sqlite {run_seed()}")
    tables = (
        "CREATE TABLE a (id INTEGER PRIMARY KEY, u INT UNIQUE, p INT, q INT, UNIQUE (p, q))",
        "CREATE TABLE b (k TEXT, l INT, u INT UNIQUE, PRIMARY KEY (k, l)) WITHOUT ROWID",
        "CREATE TABLE c (k TEXT COLLATE NOCASE PRIMARY KEY ON CONFLICT REPLACE, u INT)",
        "CREATE UNIQUE INDEX ci ON c (u) WHERE u > 3",
        "CREATE TABLE e (id INTEGER PRIMARY KEY, u INT NOT NULL DEFAULT 3, v INT)",
        "CREATE UNIQUE INDEX ei ON e (u) WHERE v > 2",
    )
    clauses = ("", "OR REPLACE", "OR IGNORE", "OR FAIL", "OR ABORT", "OR ROLLBACK")

    def number() -> str:
        return dice.choice(["NULL", *map(str, range(7))])

    def statement() -> str:
        clause, low = dice.choice(clauses), dice.randint(0, 6)
        letter, other = dice.sample("aAbBc", 2)
        return dice.choice([
            f"INSERT {clause} INTO a VALUES ({number()}, {number()}, {number()}, {number()}), ({low}, {low}, 1, 2)",
            f"UPDATE {clause} a SET u = {number()}, id = id + 1 WHERE id >= {low}",
            f"UPDATE {clause} a SET p = {low}, q = {number()} WHERE id <= {low}",
            f"DELETE FROM a WHERE id = {low} OR u = {low}",
            f"INSERT INTO a VALUES ({low}, {low}, {low}, 0) ON CONFLICT DO UPDATE SET q = q + 1",
            f"INSERT {clause} INTO b VALUES ('{letter}', {low % 2}, {number()})",
            f"UPDATE {clause} b SET k = '{other}', u = {number()} WHERE k = '{letter}'",
            f"DELETE FROM b WHERE u < {low}",
            f"INSERT {clause} INTO c VALUES ('{letter}', {number()}), ('{other}', {number()})",
            f"UPDATE {clause} c SET k = '{other}' WHERE k = '{letter}'",
            f"UPDATE {clause} c SET u = {number()} WHERE u <= {low} OR u IS NULL",
            f"INSERT {clause} INTO e VALUES ({low}, {number()}, {number()}), (NULL, {number()}, {number()})",
            f"UPDATE {clause} e SET v = {number()} WHERE id <= {low}",
            f"UPDATE {clause} e SET u = {number()}, rowid = rowid + 1 WHERE id >= {low}",
        ])  # fmt: skip

    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        for _ in range(600):
            db.execute(f"PRAGMA recursive_triggers = {dice.choice(('ON', 'OFF', 'OFF'))}")
            try:
                db.execute(statement())
            except sqlite3.IntegrityError:
                continue
        events = caught_up(db, running)
        for table, key in (("a", (0,)), ("b", (0, 1)), ("c", (0,)), ("e", (0,))):
            rows = {tuple(row[i] for i in key): row for row in db.execute(f"SELECT * FROM {table}")}
            assert copy_of(events, table, key) == rows
    assert len(events) > 200


def test_a_restart_goes_on_after_the_log_and_only_delivered_changes_are_removed(tmp_path: Path) -> None:
    with shop(tmp_path / "shop.db", ORDERS) as db:

        def kept() -> int:
            return int(db.execute("SELECT count(*) FROM _tidemill_changes").fetchone()[0])

        with captured(tmp_path / "shop.db", tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1), (2, 'bob', 2)")
            caught_up(db, running)
            assert kept() == 2
            running.deliver()
            eventually(lambda: kept() == 1, running)  # the last one stays, to tell the file by
        db.execute("UPDATE orders SET total = 7")
        with captured(tmp_path / "shop.db", tmp_path) as running:
            events = caught_up(db, running)
    assert [e["position"].partition("/")[0] for e in events] == ["1", "2", "3", "4"]


def test_what_is_too_much_for_one_read_is_spilled_and_is_the_same_after_a_replay(tmp_path: Path) -> None:
    def identities(running: Running) -> list[tuple[str, int, int]]:
        return [(e["position"], e["ordinal"], e["op"]) for e in caught_up(db, running)]

    with shop(tmp_path / "shop.db", ORDERS) as db:
        with captured(tmp_path / "shop.db", tmp_path / "one", window_rows=10) as running:
            begin = running.log.tail().position
        db.execute("BEGIN")
        db.executemany("INSERT INTO orders VALUES (?, ?, ?)", [(i, f"c{i}", i) for i in range(95)])
        db.execute("UPDATE orders SET id = id + 1000 WHERE id < 3")
        db.execute("COMMIT")
        with captured(tmp_path / "shop.db", tmp_path / "one", window_rows=10) as running:
            first = identities(running)
            assert len(list(running.log.entries(0))) == 1, "a transaction was cut"
        db.execute("INSERT INTO orders VALUES (500, 'late', 0)")
        # The second one has lost its log, and has a checkpoint of the beginning.
        writer = LogWriter.open(str(tmp_path / "two"), LogConfig.model_validate({"fsync": False}))
        writer.append(Committed((), 0, ((0, begin),)))
        writer.close()
        source = SqliteSource(config_of(tmp_path / "shop.db", window_rows=10))
        with capturing(source, tmp_path / "one", log=tmp_path / "two") as running:
            again = identities(running)
    assert len(first) == 95 + 6
    assert again[: len(first)] == first
    assert len(again) == len(first) + 1


def test_programs_that_write_at_full_speed_are_not_hindered_and_every_change_arrives(tmp_path: Path) -> None:
    with shop(tmp_path / "shop.db", ORDERS, journal="delete") as db:
        with captured(tmp_path / "shop.db", tmp_path) as running:

            def write(first: int) -> None:
                with shop(tmp_path / "shop.db", journal="delete") as own:
                    for i in range(first, first + 60):
                        own.execute("INSERT INTO orders VALUES (?, ?, ?)", (i, str(i), 0.5))

            threads = [threading.Thread(target=write, args=(n * 1000,)) for n in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            events = caught_up(db, running)
        rows = {row[0] for row in db.execute("SELECT id FROM orders")}
    assert len(rows) == 180
    assert {e["after"]["id"] for e in events} == rows


def test_rows_that_replace_deletes_by_a_partial_index_the_rowid_or_a_default_are_deletes(tmp_path: Path) -> None:
    tables = (
        "CREATE TABLE p (id INTEGER PRIMARY KEY, u TEXT, v INT)",
        "CREATE UNIQUE INDEX pi ON p (u) WHERE v > 0",
        "CREATE TABLE r (id INTEGER PRIMARY KEY, a TEXT)",
        "CREATE TABLE d (id INTEGER PRIMARY KEY, u TEXT COLLATE NOCASE NOT NULL DEFAULT 'x', n INT NOT NULL DEFAULT 5)",
        "CREATE UNIQUE INDEX du ON d (u)",
        "CREATE UNIQUE INDEX di ON d (n)",
    )
    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("INSERT INTO p VALUES (1, 'a', 1), (2, 'a', 0)")
        db.execute("UPDATE OR REPLACE p SET v = 1 WHERE id = 2")  # comes into the index by another column
        db.execute("INSERT INTO r VALUES (1, 'x'), (2, 'y')")
        db.execute("UPDATE OR REPLACE r SET rowid = 2 WHERE id = 1")
        db.execute("INSERT INTO d VALUES (1, 'X', 1), (2, 'b', 5), (3, 'c', 3)")
        db.execute("REPLACE INTO d VALUES (4, NULL, NULL)")  # both are their defaults, and replace two rows
        db.execute("UPDATE OR REPLACE d SET u = NULL WHERE id = 3")
        events = caught_up(db, running)
        for table in ("p", "r", "d"):
            rows = {row[:1]: row for row in db.execute(f"SELECT * FROM {table}")}
            assert copy_of(events, table, (0,)) == rows
            assert len(rows) == 1


def test_rows_before_the_one_that_fails_arrive_at_once(tmp_path: Path) -> None:
    """SQLite does not count their numbers when a statement fails in its middle."""
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT CHECK (a <> 'bad'))"
    with shop(tmp_path / "shop.db", table) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        with pytest.raises(sqlite3.IntegrityError):
            db.execute("INSERT OR FAIL INTO t VALUES (1, 'x'), (2, 'y'), (3, 'bad')")
        eventually(lambda: running.events == 2, running)
        db.execute("INSERT INTO t VALUES (4, 'z')")
        assert [e["after"]["id"] for e in caught_up(db, running)] == [1, 2, 4]


def test_a_table_is_captured_though_its_name_begins_as_that_of_a_virtual_table(tmp_path: Path) -> None:
    tables = ("CREATE VIRTUAL TABLE docs USING fts5(x)", "CREATE TABLE docs_owner (id INTEGER PRIMARY KEY)")
    with shop(tmp_path / "shop.db", *tables) as db, captured(tmp_path / "shop.db", tmp_path) as running:
        db.execute("INSERT INTO docs VALUES ('text')")
        db.execute("INSERT INTO docs_owner VALUES (1)")
        assert [e["table"] for e in caught_up(db, running)] == ["main.docs_owner"]


@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_commit_is_noticed_by_itself_and_not_by_the_next_look(
    tmp_path: Path, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look is due in an hour."""
    path = tmp_path / "shop.db"
    waiting = threading.Event()
    wait = FileWatch.wait

    def tell_and_wait(watch: FileWatch, seconds: float) -> bool:
        waiting.set()
        return wait(watch, seconds)

    monkeypatch.setattr(FileWatch, "wait", tell_and_wait)
    with shop(path, ORDERS, journal=journal) as db, closing(SchemaRegistry(tmp_path / "registry.sqlite")) as registry:
        source = SqliteSource(config_of(path, poll_seconds=3600))
        with closing(source):
            source.open(None, registry)
            found: list[object] = []
            reader = threading.Thread(target=lambda: found.extend(source.changes(3600)), daemon=True)
            reader.start()
            assert waiting.wait(60)
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5)")
            eventually(lambda: found)
            reader.join(60)
    assert len(found) == 1


def test_a_write_to_a_file_that_a_symbolic_link_names_is_noticed(tmp_path: Path) -> None:
    """SQLite keeps journal and WAL beside the file itself, not beside the link."""
    (tmp_path / "data").mkdir()
    path, link = tmp_path / "data" / "shop.db", tmp_path / "link.db"
    with shop(path, "CREATE TABLE t (a)") as db:
        link.symlink_to(path)
        with closing(FileWatch(link, 20)) as watch:
            assert watch.notified
            db.execute("INSERT INTO t VALUES (1)")
            begin = time.monotonic()
            watch.wait(20)
            assert time.monotonic() - begin < 10
