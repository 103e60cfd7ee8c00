"""Tables of a SQLite file that change while they are captured, and while they are not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import orjson

from tests.sources.sqlite_support import captured, caught_up, config_of, copy_of, shop, shown
from tests.support.capturing import eventually
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources._shared.sqlite_marks import notices
from tidemill.sources.sqlite import SqliteSource
from tidemill.sources.sqlite.resume import SqlitePlace, check, identity
from tidemill.sources.sqlite.setup import is_installed
from tidemill.sources.sqlite.triggers import CHANGES

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT)"


def test_an_added_column_comes_with_the_rows_that_were_changed_before_the_triggers_knew_it(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann'), (2, 'bob'), (3, 'eve')")
            caught_up(db, running)
        # Nobody captures: all of this is recorded without the new column.
        db.execute("ALTER TABLE orders ADD COLUMN total DECIMAL DEFAULT '5'")
        db.execute("INSERT INTO orders VALUES (4, 'kim', 4.5)")
        db.execute("UPDATE orders SET total = 9 WHERE id = 2")
        db.execute("UPDATE orders SET id = 8, total = 7 WHERE id = 3")
        with captured(path, tmp_path) as running:
            events = caught_up(db, running)
            rows = {row[:1]: row for row in db.execute("SELECT * FROM orders")}
            registry = SchemaRegistry(tmp_path / "registry.sqlite")
            (old, new) = registry.versions("main.orders")
            registry.close()
    ops = [op for op, *_ in shown(events)]
    assert ops == ["insert"] * 4 + ["update", "delete", "insert", "ddl", "update", "update", "update"]
    assert [len(c.columns) for c in (old, new)] == [2, 3]
    assert new.columns[2].initial is not None
    assert new.columns[2].initial.value is not None
    assert new.columns[2].initial.value.as_py() == 5.0
    ddl = next(e for e in events if e["op"] == 6)
    assert orjson.loads(ddl["ddl"])["changes"] == [
        {"change": "add", "column": "total", "type": "DECIMAL", "nullable": True, "after": "customer"}
    ]
    final = {tuple(e["after"].values())[:1]: tuple(e["after"].values()) for e in events[8:]}
    assert final == {key: row for key, row in rows.items() if key != (1,)}


def test_columns_are_renamed_and_tables_dropped_created_and_renamed_in_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, "CREATE TABLE old (a INTEGER PRIMARY KEY)") as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann')")
        db.execute("ALTER TABLE orders RENAME COLUMN customer TO buyer")
        eventually(lambda: any(e["op"] == 6 for e in caught_up(db, running)), running)
        db.execute("INSERT INTO orders VALUES (2, 'bob')")
        db.execute("DROP TABLE old")
        db.execute("CREATE TABLE new (k TEXT PRIMARY KEY, v)")
        db.execute("INSERT INTO new VALUES ('early', 1)")  # maybe before there are triggers
        eventually(lambda: sum(e["op"] == 6 for e in caught_up(db, running)) == 3, running)
        db.execute("INSERT INTO new VALUES ('late', 2)")
        events = caught_up(db, running)
        assert copy_of(events, "new", (0,)) == {("early",): ("early", "1"), ("late",): ("late", "2")}
    documents = {e["table"]: orjson.loads(e["ddl"]) for e in events if e["op"] == 6}
    assert documents["main.orders"]["changes"] == [{"change": "rename", "column": "buyer", "from": "customer"}]
    assert documents["main.old"]["kind"] == "drop"
    assert documents["main.new"]["kind"] == "create"
    orders = [e["after"] for e in events if e["table"] == "main.orders" and e["op"] == 1]
    assert orders == [{"id": 1, "customer": "ann"}, {"id": 2, "buyer": "bob"}]


def test_a_table_that_was_made_anew_is_recorded_again_and_marked_until_an_operator_accepts_it(tmp_path: Path) -> None:
    """As migration tools do it where ALTER TABLE cannot: the triggers go with the old table."""
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann')")
            caught_up(db, running)
        for statement in (
            "BEGIN",
            "CREATE TABLE fresh (id INTEGER PRIMARY KEY, customer TEXT NOT NULL)",
            "INSERT INTO fresh SELECT * FROM orders",
            "DROP TABLE orders",
            "ALTER TABLE fresh RENAME TO orders",
            "COMMIT",
            "INSERT INTO orders VALUES (2, 'lost')",
        ):
            db.execute(statement)
        with captured(path, tmp_path, recopy_rows=1) as running:  # it has two
            db.execute("INSERT INTO orders VALUES (3, 'kim')")
            events = caught_up(db, running)
            registry = SchemaRegistry(tmp_path / "registry.sqlite")
            assert [(n.code, n.subject) for n in notices(registry)] == [("table-incomplete", "main.orders")]
            assert len(SqliteSource(config_of(path)).accept("main.orders", registry)) == 1
            assert notices(registry) == ()
            registry.close()
    assert [op for op, *_ in shown(events)] == ["insert", "ddl", "insert"]
    assert events[-1]["after"] == {"id": 3, "customer": "kim"}


def test_a_table_that_is_made_anew_with_other_capitals_is_dropped_before_it_is_created(tmp_path: Path) -> None:
    """A destination may take both for the same name."""
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db, captured(path, tmp_path) as running:
        for statement in ("BEGIN", "DROP TABLE orders", "CREATE TABLE Orders (id INTEGER PRIMARY KEY)", "COMMIT"):
            db.execute(statement)
        eventually(lambda: running.events == 2, running)
        events = running.rows()
    said = [(e["table"], orjson.loads(e["ddl"])["kind"]) for e in events]
    assert said == [("main.orders", "drop"), ("main.Orders", "create")]


def test_a_column_without_a_name_is_followed_through_a_change_of_its_table(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, 'CREATE TABLE t ("" INTEGER PRIMARY KEY, b)') as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO t VALUES (1, 'x')")
        caught_up(db, running)
        db.execute("ALTER TABLE t ADD COLUMN c")
        db.execute("INSERT INTO t VALUES (2, 'y', 'z')")
        eventually(lambda: any(e["op"] == 6 for e in caught_up(db, running)), running)
        assert caught_up(db, running)[-1]["after"][""] == 2


def test_patterns_choose_tables_and_two_pipelines_share_one_change_table(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    tables = ("CREATE TABLE ord_a (a INTEGER PRIMARY KEY)", "CREATE TABLE ord_b (b)", "CREATE TABLE other (c)")
    with (
        shop(path, *tables) as db,
        captured(path, tmp_path / "one", tables=("ord%",)) as one,
        captured(path, tmp_path / "two", id="second", tables=("other", '"main"."ord_a"')) as two,
    ):
        for table in ("ord_a", "ord_b", "other"):
            db.execute(f"INSERT INTO {table} VALUES (1)")
        eventually(lambda: one.events == two.events == 2, two)
        names = [{e["table"] for e in running.rows()} for running in (one, two)]
        one.deliver()
        assert db.execute(f"SELECT count(*) FROM {CHANGES}").fetchone() == (3,)  # the second one needs them
        two.deliver()
        eventually(lambda: db.execute(f"SELECT count(*) FROM {CHANGES}").fetchone() == (1,), two)
    assert names == [{"main.ord_a", "main.ord_b"}, {"main.ord_a", "main.other"}]


def test_vacuum_an_index_and_a_temporary_table_change_nothing_in_the_stream(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann')")
        db.execute("CREATE UNIQUE INDEX by_name ON orders (customer)")
        db.execute("CREATE TEMP TABLE orders2 (a)")
        db.execute("INSERT INTO orders2 VALUES (1)")
        caught_up(db, running)
        db.execute("VACUUM")
        eventually(lambda: "by_name" not in str(running.failure), running)
        caught_up(db, running)
        db.execute("REPLACE INTO orders VALUES (2, 'ann')")  # through the new index
        events = caught_up(db, running)
        assert copy_of(events, "orders", (0,)) == {(2,): (2, "ann")}
    assert all(e["op"] != 6 for e in events)


def test_many_tables_cost_a_look_nothing_and_a_set_up_no_search_for_each(tmp_path: Path) -> None:
    """sqlite_schema has no index: with 500 tables and their triggers a search of it took 28 ms."""
    searches = []
    for count in (3, 30):
        path = tmp_path / f"{count}.db"
        with shop(path, *(f"CREATE TABLE t{i} (id INTEGER PRIMARY KEY, u UNIQUE)" for i in range(count))):
            source = SqliteSource(config_of(path))
            source.setup()
            with closing(sqlite3.connect(path, isolation_level=None)) as db:
                said: list[str] = []
                db.set_trace_callback(said.append)
                file = identity(db)
                assert file is not None
                check(db, SqlitePlace(0, 0, file), "shop", "here")
                assert not any("sqlite_schema" in statement for statement in said)
                assert is_installed(db, "shop", ()) is not None
                searches.append(sum("sqlite_schema" in statement for statement in said))
    assert searches[0] == searches[1] > 0


def test_a_strict_table_has_its_types_and_its_exact_values_and_is_copied_in_chunks(tmp_path: Path) -> None:
    """Its key may not be NULL, and a column of type ANY keeps what it is given."""
    path = tmp_path / "shop.db"
    table = "CREATE TABLE t (id TEXT PRIMARY KEY, i INTEGER, r REAL, b BLOB, a ANY) STRICT"
    with shop(path, table) as db, captured(path, tmp_path) as running:
        db.execute("INSERT INTO t VALUES ('a', '7', 2, x'', '5'), ('b', NULL, 1e300, x'00', 5), (7, 1, 0.5, NULL, 5.5)")
        db.execute("REPLACE INTO t VALUES ('b', 3, NULL, NULL, x'61')")
        db.execute("UPDATE t SET id = 'A', a = id WHERE id = 'a'")
        copied = copy_of(caught_up(db, running), "t", (0,))
        (described,) = SqliteSource(config_of(path)).snapshot_reader().tables()
    assert copied == {
        ("7",): ("7", 1, 0.5, None, "5.5"),
        ("b",): ("b", 3, None, None, "X'61'"),
        ("A",): ("A", 7, 2.0, b"", "a"),
    }
    assert described.key == ("id",)
    assert [(c.type.native, c.nullable) for c in described.table.columns] == [
        ("TEXT", False), ("INTEGER", True), ("REAL", True), ("BLOB", True), ("ANY", True),
    ]  # fmt: skip
