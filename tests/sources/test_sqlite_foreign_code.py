"""Functions, collations and settings that only the application's connections have."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.sources.sqlite_support import captured, caught_up, config_of, copy_of, read_chunks, shop
from tests.support.capturing import eventually
from tidemill.contracts import Outcome
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.sqlite import SqliteSource


def _teach(db: sqlite3.Connection) -> None:
    db.create_function("twice", 1, lambda value: 2 * value, deterministic=True)
    db.create_collation("backwards", lambda a, b: (a < b) - (a > b))


def test_columns_that_call_its_functions_are_left_out_and_stored_ones_are_not(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path) as db:
        _teach(db)
        db.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, v AS (twice(a)) UNIQUE, s INT AS (twice(a)) STORED)")
        db.execute("INSERT INTO t VALUES (1)")
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO t VALUES (2)")
            db.execute("UPDATE t SET a = 3 WHERE a = 1")
            events = caught_up(db, running)
            source = SqliteSource(config_of(path))
            with closing(source.snapshot_reader()) as reader:
                (table,) = reader.tables()
                copied = [row["after"] for chunk in read_chunks(reader, table, 1) for row in chunk]
            checks = {check.name: check for check in source.doctor()}
    assert [event["after"] for event in events if event["after"]] == [{"a": 2, "s": 4}, {"a": 3, "s": 6}]
    assert copied == [{"a": 2, "s": 4}, {"a": 3, "s": 6}]
    assert checks["column-left-out"].outcome is Outcome.WARN
    assert '"v" of main.t' in checks["column-left-out"].detail


def test_a_table_whose_order_only_it_knows_is_captured_and_copied_as_one_chunk_or_named(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path) as db:
        _teach(db)
        db.execute("CREATE TABLE t (k TEXT COLLATE backwards NOT NULL PRIMARY KEY, n)")
        db.execute("CREATE TABLE w (k TEXT COLLATE backwards PRIMARY KEY, n) WITHOUT ROWID")
        source = SqliteSource(config_of(path))
        with captured(path, tmp_path) as running:
            for table in "tw":
                db.execute(f"INSERT INTO {table} VALUES ('a', 1), ('b', 2)")
                db.execute(f"REPLACE INTO {table} VALUES ('a', 3)")
            events = caught_up(db, running)
        for table in "tw":
            assert copy_of(events, table, (0,)) == {("a",): ("a", "3"), ("b",): ("b", "2")}
        with closing(source.snapshot_reader()) as reader:
            described = next(each for each in reader.tables() if each.name == "main.t")
            (chunk,) = read_chunks(reader, described, 1)
            assert sorted(row["after"]["k"] for row in chunk) == ["a", "b"]
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as registry, closing(source):
            source.open(None, registry)
            assert [(n.code, n.subject) for n in source.notices()] == [("table-not-copied", "main.w")]


def test_a_table_that_is_renamed_with_legacy_alter_table_is_named_by_doctor_and_mended_by_the_pipeline(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, "CREATE TABLE orders (id INTEGER PRIMARY KEY, u UNIQUE)") as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'a')")
            caught_up(db, running)
        db.execute("PRAGMA legacy_alter_table = ON")
        db.execute("ALTER TABLE orders RENAME TO sales")
        try:
            db.execute("REPLACE INTO sales VALUES (2, 'a')")
        except sqlite3.OperationalError as error:
            refused = str(error)
        assert refused == "no such table: main.orders"
        failed = [check for check in SqliteSource(config_of(path)).doctor() if check.outcome is Outcome.FAIL]
        assert [check.name for check in failed] == ["triggers"]
        assert "writes to main.sales fail" in failed[0].detail
        with captured(path, tmp_path) as running:
            eventually(lambda: sum(event["op"] == 6 for event in caught_up(db, running)) == 2, running)
            db.execute("SELECT count(*) FROM sales").fetchone()
            db.execute("REPLACE INTO sales VALUES (2, 'a')")
            events = caught_up(db, running)
            assert copy_of(events, "sales", (0,)) == {(2,): (2, "a")}


def test_tables_that_are_taken_for_parts_of_a_virtual_table_are_named(tmp_path: Path) -> None:
    """What parts a table of a module has, only the module knows."""
    path = tmp_path / "shop.db"
    with shop(
        path, "CREATE TABLE docs_owner (id INTEGER PRIMARY KEY)", "CREATE TABLE t (id INTEGER PRIMARY KEY)"
    ) as db:
        db.execute("PRAGMA writable_schema = ON")
        made = "CREATE VIRTUAL TABLE docs USING only_here(x)"
        db.execute("INSERT INTO sqlite_schema VALUES ('table', 'docs', 'docs', 0, ?)", [made])
    for tables, named in (((), True), (("docs_%",), True), (("t",), False)):
        checks = {check.name: check for check in SqliteSource(config_of(path, tables=tables)).doctor()}
        assert ("tables-left-out" in checks) is named, tables
    assert "main.docs_owner" in {c.name: c for c in SqliteSource(config_of(path)).doctor()}["tables-left-out"].detail
