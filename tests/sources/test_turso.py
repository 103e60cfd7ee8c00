"""A Turso file and its change table: modes, transactions, statements, positions; with pyturso itself as the writer."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from tests.sources.sqlite_support import copy_of, shown
from tests.support.capturing import Running, capturing, eventually
from tests.support.seed import run_seed
from tidemill.contracts import Outcome, Resting
from tidemill.errors import PositionLost, SetupError
from tidemill.model.position import Ordering, Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.turso import TursoConfig, TursoSource
from tidemill.sources.turso import stream as turso_stream
from tidemill.sources.turso.client import TursoFile
from tidemill.sources.turso.errors import CdcKeyMissing

turso = pytest.importorskip("turso", reason='pyturso is not installed: pip install "tidemill[turso]"')
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, total REAL)"


@contextlib.contextmanager
def writer(path: Path, *statements: str, mode: str = "full") -> Iterator[Any]:
    db = turso.connect(str(path), isolation_level=None, experimental_features="multiprocess_wal,generated_columns")
    for statement in statements:
        db.execute(statement)
    db.execute(f"PRAGMA capture_data_changes_conn('{mode}')")
    try:
        yield db
    finally:
        db.close()


@contextlib.contextmanager
def captured(path: Path, directory: Path, **settings: Any) -> Iterator[Running]:
    directory.mkdir(exist_ok=True)
    config = TursoConfig(**{"id": "shop", "path": path, "trim_seconds": 0, **settings})
    with capturing(TursoSource(config), directory) as running:
        eventually(lambda: running.log.tail().position, running)
        yield running


def caught_up(db: Any, running: Running) -> list[dict[str, Any]]:
    def done() -> bool:
        last = db.execute("SELECT max(change_id) FROM turso_cdc").fetchone()[0] or 0
        return int(running.log.tail().position.partition("@")[0]) >= last

    eventually(done, running)
    return running.rows()


def test_transactions_are_told_apart_and_what_is_rolled_back_does_not_arrive(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5), (2, NULL, 2)")
        db.execute("BEGIN")
        db.execute("UPDATE orders SET total = 7 WHERE id = 1")
        db.execute("UPDATE orders SET id = 9 WHERE id = 1")
        db.execute("COMMIT")
        db.execute("BEGIN")
        db.execute("DELETE FROM orders")
        db.execute("ROLLBACK")
        db.execute("DELETE FROM orders WHERE id = 2")
        events = caught_up(db, running)
        assert copy_of(events, "orders", (0,)) == {(9,): (9, "ann", 7.0)}
    assert [op for op, *_ in shown(events)] == ["insert", "insert", "update", "delete", "insert", "delete"]
    assert [e["ordinal"] for e in events] == [0, 1, 0, 1, 2, 0]
    assert len({e["position"] for e in events}) == 3
    assert len({e["tx_id"] for e in events}) == 3


def test_columns_and_tables_that_come_and_go_stand_in_the_stream_also_those_that_turso_does_not_record(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5)")
        db.execute("ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'none'")
        db.execute("UPDATE orders SET total = 2 WHERE id = 1")  # its record is shorter than the table
        db.execute("CREATE TABLE fresh (k TEXT PRIMARY KEY, v BLOB, s TEXT AS (lower(k)))")
        db.execute("INSERT INTO fresh (k, v) VALUES ('A', x'00ff')")
        db.execute("UPDATE fresh SET k = 'B'")
        db.execute("ALTER TABLE orders DROP COLUMN customer")
        db.execute("INSERT INTO orders VALUES (2, 5, 'x')")
        caught_up(db, running)
        db.execute("ALTER TABLE orders RENAME COLUMN note TO remark")  # not recorded
        eventually(lambda: sum(e["op"] == 6 for e in running.rows()) == 4, running)
        db.execute("INSERT INTO orders VALUES (3, 6, 'y')")
        db.execute("DROP TABLE fresh")
        events = caught_up(db, running)
    rows = [e["after"] for e in events if e["table"] == "main.orders" and e["op"] != 6]
    assert rows == [
        {"id": 1, "customer": "ann", "total": 1.5},
        {"id": 1, "customer": "ann", "total": 2.0, "note": "none"},
        {"id": 2, "total": 5.0, "note": "x"},
        {"id": 3, "total": 6.0, "remark": "y"},
    ]
    assert copy_of(events, "fresh", (0,)) == {("B",): ("B", b"\x00\xff")}
    kinds = [orjson.loads(e["ddl"])["kind"] for e in events if e["op"] == 6]
    assert kinds == ["alter", "create", "alter", "alter", "drop"]


@pytest.mark.parametrize("mode", ["id", "before", "after"])
def test_modes_without_whole_rows_are_completed_from_the_table_and_say_what_they_do_not_know(
    tmp_path: Path, mode: str
) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS, mode=mode) as db:
        with captured(path, tmp_path):
            pass
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1), (2, 'bob', 2), (3, 'eve', 3)")
        db.execute("UPDATE orders SET total = total + 1 WHERE id < 3")
        db.execute("UPDATE orders SET id = 7 WHERE id = 2")
        db.execute("DELETE FROM orders WHERE id = 3")
        with captured(path, tmp_path) as running:
            events = caught_up(db, running)
        final: dict[int, dict[str, Any]] = {}
        for event in events:
            for old in filter(None, (event["key"], event["before"])):
                final.pop(old["id"], None)
            if event["after"]:
                known = {
                    k: v for i, (k, v) in enumerate(event["after"].items()) if i not in (event.get("unchanged") or ())
                }
                final[event["after"]["id"]] = {**final.get(event["after"]["id"], {}), **known}
        rows = {
            row[0]: dict(zip(("id", "customer", "total"), row, strict=True))
            for row in db.execute("SELECT * FROM orders")
        }
        assert final == rows
        checks = {check.name: check.outcome for check in TursoSource(TursoConfig(id="x", path=path)).doctor()}
    assert checks["mode"] is Outcome.WARN


def test_a_rowid_that_is_no_key_is_refused_where_nothing_else_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, "CREATE TABLE t (k TEXT PRIMARY KEY)", mode="id") as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO t VALUES ('a')")
        db.execute("DELETE FROM t")
        (error,) = eventually(lambda: running.failure)  # the pipeline stops: a retry would meet the same change
        assert isinstance(error, CdcKeyMissing)
        assert "full" in error.fix


@pytest.mark.parametrize("table", ["turso_cdc", "mine"])
def test_a_change_table_of_version_1_is_read_whose_transactions_nobody_can_tell_apart(
    tmp_path: Path, table: str
) -> None:
    """Turso goes on with such a table where it finds one."""
    path = tmp_path / "shop.db"
    columns = "change_time INTEGER, change_type INTEGER, table_name TEXT, id, before BLOB, after BLOB, updates BLOB"
    made = f"CREATE TABLE {table} (change_id INTEGER PRIMARY KEY AUTOINCREMENT, {columns})"
    with writer(path, ORDERS, made, mode=f"full,{table}") as db:
        with captured(path, tmp_path, cdc_table=table) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1)")
            eventually(lambda: running.events == 1, running)
        db.execute("BEGIN")
        db.execute("INSERT INTO orders VALUES (2, 'bob', 2), (3, NULL, NULL)")
        db.execute("UPDATE orders SET total = 5 WHERE id < 3")
        db.execute("COMMIT")
        db.execute("ALTER TABLE orders ADD COLUMN note BLOB")
        db.execute("UPDATE orders SET note = x'00ff', id = 9 WHERE id = 2")
        db.execute("DELETE FROM orders WHERE id = 3")
        with captured(path, tmp_path, cdc_table=table) as running:
            eventually(lambda: running.events == 9, running)
            events = running.rows()
            running.deliver()
            count = f"SELECT count(*) FROM {table}"
            eventually(lambda: db.execute(count).fetchone() == (1,), running)
        config = TursoConfig(id="shop", path=path, cdc_table=table)
        checks = {check.name: check for check in TursoSource(config).doctor()}
        assert db.execute("SELECT version FROM turso_cdc_version WHERE table_name = ?", (table,)).fetchone() == ("v1",)
    assert [e["tx_id"] for e in events] == [None] * 9
    assert len({(e["position"], e["ordinal"]) for e in events}) == 9
    told = [(e["op"], (e["after"] or e["before"] or {}).get("id")) for e in events]
    assert told == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (6, None), (3, 2), (1, 9), (3, 3)]
    assert events[7]["after"] == {"id": 9, "customer": "bob", "total": 5.0, "note": b"\x00\xff"}
    assert checks["change table"].outcome is Outcome.WARN


def test_every_value_arrives_as_the_file_has_it(tmp_path: Path) -> None:
    dice = Random(f"turso {run_seed()}")
    path = tmp_path / "shop.db"
    numbers = (None, 0, 1, -1, 255, 1 << 40, (1 << 63) - 1, -(1 << 63), 0.5, -0.0, 1e300)
    choices = (*numbers, "", "ä😀", "x" * 5000, b"", b"\0\xff")
    with writer(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, i INT, r REAL, s TEXT, b BLOB, n NUMERIC, a)") as db:
        with captured(path, tmp_path) as running:
            for i in range(120):
                values = [dice.choice(choices) for _ in range(6)]
                db.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", (i, *values))
            for i in range(0, 120, 3):
                db.execute("UPDATE t SET s = ?, a = ? WHERE id = ?", (dice.choice(choices), dice.choice(choices), i))
            events = caught_up(db, running)
        rows = db.execute("SELECT * FROM t").fetchall()
    found = copy_of(events, "t", (0,))
    assert len(found) == len(rows)
    for row in rows:
        for value, arrived in zip(row, found[row[:1]], strict=True):
            if value is None or type(value) is type(arrived) or isinstance(arrived, float):
                assert arrived == value
            else:  # of another class than the column's: as text
                assert sqlite3.connect(":memory:").execute(f"SELECT {arrived}").fetchone()[0] == value


def test_a_transaction_larger_than_a_read_is_spilled_and_only_delivered_changes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turso_stream, "ROWS", 10)
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db, captured(path, tmp_path) as running:
        db.execute("BEGIN")
        for i in range(35):
            db.execute("INSERT INTO orders VALUES (?, 'c', 0)", (i,))
        db.execute("COMMIT")
        db.execute("UPDATE orders SET total = 1 WHERE id = 0")
        events = caught_up(db, running)
        assert [e["ordinal"] for e in events] == [*range(35), 0]
        assert len({e["position"] for e in events[:35]}) == 1
        assert db.execute("SELECT count(*) FROM turso_cdc").fetchone()[0] == 38
        running.deliver()
        eventually(lambda: db.execute("SELECT count(*) FROM turso_cdc").fetchone()[0] == 1, running)
        db.execute("DELETE FROM orders WHERE id = 1")
        assert len(caught_up(db, running)) == 37, "numbers began anew"


@pytest.mark.parametrize(("held", "fewest", "most"), [(3600.0, 1, 5), (0.0, 50, 100)])
def test_changes_that_take_long_to_remove_are_removed_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: float, fewest: int, most: int
) -> None:
    """Whoever else writes waits for one removal."""
    module = importlib.import_module("tidemill.sources.turso")
    monkeypatch.setattr(module, "_HELD_SECONDS", held)
    monkeypatch.setattr(module, "_TRIM_SECONDS", 3600.0)
    removals: list[str] = []
    rows = TursoFile.rows

    def noted(file: TursoFile, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        removals.append(sql)
        return rows(file, sql, values)

    monkeypatch.setattr(TursoFile, "rows", noted)
    path = tmp_path / "shop.db"
    source = TursoSource(TursoConfig(id="shop", path=path))
    with writer(path, ORDERS) as db, contextlib.closing(SchemaRegistry(tmp_path / "registry.sqlite")) as registry:
        db.execute("BEGIN")
        for _ in range(80):
            db.execute("INSERT INTO orders (customer) VALUES ('ann')")
        db.execute("COMMIT")
        source.open(None, registry)
        source.acknowledge(Position(source.began))
        source.close()
        assert db.execute("SELECT change_id FROM turso_cdc").fetchall() == [(81,)]
    assert fewest <= sum(sql.startswith("DELETE") for sql in removals) <= most


@pytest.mark.parametrize("statement", ["DELETE FROM turso_cdc", "DELETE FROM turso_cdc WHERE change_id > 1"])
def test_a_change_table_that_was_emptied_is_a_lost_position_also_once_it_has_grown_again(
    tmp_path: Path, statement: str
) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1)")
            db.execute("INSERT INTO orders VALUES (2, 'ann', 1)")
            caught_up(db, running)
            after = running.log.tail().position
        db.execute(statement)
        source = TursoSource(TursoConfig(id="shop", path=path))
        registry = SchemaRegistry(tmp_path / "registry.sqlite")
        with pytest.raises(PositionLost) as caught:
            source.open(after, registry)
        assert caught.value.code == "cdc-reset"
        checks = {check.name: check.outcome for check in source.doctor(Resting(after, None, 0.0))}
        assert checks["position"] is Outcome.FAIL
        source.close()
        source.open(source.renew(registry), registry)
        source.close()
        registry.close()


def test_a_change_table_that_is_emptied_under_a_running_pipeline_stops_it_though_it_has_grown_beyond(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1)")
        caught_up(db, running)
        db.execute("BEGIN")
        db.execute("DELETE FROM turso_cdc")
        for i in range(2, 20):
            db.execute("INSERT INTO orders VALUES (?, 'lost', 1)", (i,))
        db.execute("COMMIT")
        with pytest.raises(PositionLost) as caught:
            eventually(lambda: False, running)
    assert caught.value.code == "cdc-reset"


def test_a_file_whose_writers_do_not_set_the_pragma_is_no_silent_source(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    plain = sqlite3.connect(path, isolation_level=None)
    plain.execute("PRAGMA journal_mode = wal")
    plain.execute(ORDERS)
    plain.execute("PRAGMA capture_data_changes_conn('full')")  # as libSQL and SQLite take it: without a word
    plain.close()
    with pytest.raises(SetupError) as caught:
        TursoSource(TursoConfig(id="shop", path=path)).setup()
    assert caught.value.code == "cdc-missing"
    assert "type: sqlite" in caught.value.fix
    with writer(path) as db, captured(path, tmp_path):
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1)")
        source = TursoSource(TursoConfig(id="other", path=path))
        registry = SchemaRegistry(tmp_path / "registry.sqlite")
        source.open(None, registry)
        db.execute("PRAGMA capture_data_changes_conn('off')")
        db.execute("INSERT INTO orders VALUES (2, 'bob', 1)")

        def silent() -> bool:
            list(source.changes(0.05))
            return "changes-unrecorded" in {notice.code for notice in source.notices()}

        eventually(silent)
        source.close()
        registry.close()


def test_statements_that_a_look_finds_have_identities_of_their_own_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS, "CREATE TABLE other (id INTEGER PRIMARY KEY, a TEXT)") as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5)")
            caught_up(db, running)
            db.execute("ALTER TABLE orders RENAME COLUMN customer TO buyer")
            eventually(lambda: running.events == 2, running)
        with captured(path, tmp_path) as running:
            db.execute("ALTER TABLE other RENAME COLUMN a TO b")
            eventually(lambda: running.events == 3, running)
            events = running.rows()
    assert [e["op"] for e in events] == [1, 6, 6]
    positions = [e["position"] for e in events]
    assert positions == [positions[0], f"{positions[0]}/1", f"{positions[0]}/2"]
    source = TursoSource(TursoConfig(id="shop", path=path))
    assert [source.compare(a, b) for a, b in itertools.pairwise(positions)] == [Ordering.BEFORE, Ordering.BEFORE]
    assert source.compare(positions[2], positions[2]) is Ordering.SAME


def test_a_statement_that_a_look_has_found_comes_again_if_a_crash_came_before_the_log_had_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5)")
            caught_up(db, running)
        db.execute("ALTER TABLE orders RENAME COLUMN customer TO buyer")
        script = (
            "import sys, time; from pathlib import Path; from tests.sources.test_turso import captured\n"
            "with captured(Path(sys.argv[1]), Path(sys.argv[2])): time.sleep(60)"
        )
        killed = subprocess.run(
            [sys.executable, "-c", script, str(path), str(tmp_path)],
            env={**os.environ, "TIDEMILL_CRASH_AT": "capture.before_append:1"}, timeout=50, check=False,
        )  # fmt: skip
        assert killed.returncode == -signal.SIGKILL
        with captured(path, tmp_path) as running:
            eventually(lambda: running.events == 2, running)
            db.execute("INSERT INTO orders VALUES (2, 'bob', 2)")
            events = caught_up(db, running)
    assert [e["op"] for e in events] == [1, 6, 1]
    assert events[2]["after"] == {"id": 2, "buyer": "bob", "total": 2.0}


def test_a_renamed_table_that_is_written_to_before_anybody_looks_is_captured(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS) as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5)")
            caught_up(db, running)
        db.execute("UPDATE orders SET total = 2")
        db.execute("ALTER TABLE orders RENAME TO sales")
        db.execute("INSERT INTO sales VALUES (2, 'bob', 2)")
        with captured(path, tmp_path) as running:
            caught_up(db, running)
            eventually(lambda: running.events == 5, running)
            events = running.rows()
    told = [(e["table"], orjson.loads(e["ddl"])["kind"] if e["op"] == 6 else e["op"]) for e in events]
    assert told == [("main.orders", 1), ("main.sales", "create"), ("main.orders", 2), ("main.sales", 1),
                    ("main.orders", "drop")]  # fmt: skip


def test_a_rename_is_found_although_others_write_without_a_pause(tmp_path: Path) -> None:
    """Changes and schema are of one read, whatever is written between two statements of ours."""
    path = tmp_path / "shop.db"
    with writer(path, ORDERS, "CREATE TABLE busy (id INTEGER PRIMARY KEY)") as db, captured(path, tmp_path) as running:
        number = itertools.count(1)
        db.execute("ALTER TABLE orders RENAME COLUMN customer TO buyer")

        def found() -> bool:
            for _ in range(20):
                db.execute("INSERT INTO busy VALUES (?)", (next(number),))
            return any(e["op"] == 6 for e in running.rows())

        eventually(found, running)
        events = caught_up(db, running)
    assert [e["after"]["id"] for e in events if e["op"] == 1] == list(range(1, next(number)))


def test_another_file_in_the_place_of_a_running_one_stops_it(tmp_path: Path) -> None:
    path, other = tmp_path / "shop.db", tmp_path / "other.db"
    with writer(other, ORDERS) as new:
        new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with writer(path, ORDERS) as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann', 1.5)")
        caught_up(db, running)
        os.replace(other, path)
        eventually(lambda: running.failure or running.last_error)
        assert any("another file" in str(error) for error in running.last_error)


def test_a_descending_integer_key_is_no_rowid(tmp_path: Path) -> None:
    """A delete of which only the rowid is known would be that of another row."""
    table = "CREATE TABLE t (id INTEGER PRIMARY KEY DESC, n INT)"
    path = tmp_path / "full.db"
    with writer(path, table) as db, captured(path, tmp_path / "full") as running:
        db.execute("INSERT INTO t VALUES (2, 20), (1, 10), (NULL, 30)")
        db.execute("DELETE FROM t WHERE id = 2")
        events = caught_up(db, running)
        assert copy_of(events, "t", (0,)) == {(1,): (1, 10), (None,): (None, 30)}
    path = tmp_path / "after.db"
    with writer(path, table, mode="after") as db, captured(path, tmp_path / "after") as running:
        db.execute("INSERT INTO t VALUES (2, 20), (1, 10)")
        db.execute("DELETE FROM t WHERE id = 2")
        with pytest.raises(CdcKeyMissing, match="has only a rowid, which is not its key"):
            eventually(lambda: len(running.rows()) > 2, running)
