"""What stands between a change of the schema and the triggers that follow it: completed, or said, to every reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.sources.sqlite_support import captured, caught_up, config_of, copy_of, shop, shown
from tests.support.capturing import eventually
from tidemill.contracts import Outcome
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources._shared.sqlite_marks import notices
from tidemill.sources.sqlite import SqliteSource

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT)"


@contextmanager
def marked(directory: Path) -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry(directory / "registry.sqlite")
    try:
        yield registry
    finally:
        registry.close()


def test_what_an_added_column_got_between_two_looks_arrives(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db, captured(path, tmp_path) as running:
        for statement in (
            "BEGIN",
            "ALTER TABLE orders ADD COLUMN note TEXT",
            "INSERT INTO orders VALUES (1, 'ann', 'important')",
            "COMMIT",
        ):
            db.execute(statement)
        eventually(lambda: running.events == 3, running)
        events = caught_up(db, running)
    assert [op for op, *_ in shown(events)] == ["insert", "ddl", "update"]
    assert events[-1]["after"] == {"id": 1, "customer": "ann", "note": "important"}


def test_a_column_that_is_added_while_a_pipeline_rests_is_completed_for_it_though_another_one_begins(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        with captured(path, tmp_path / "one", id="one"):
            pass
        db.execute("ALTER TABLE orders ADD COLUMN note TEXT")
        db.execute("INSERT INTO orders VALUES (1, 'ann', 'important')")
        with captured(path, tmp_path / "two", id="two"):
            pass
        with captured(path, tmp_path / "one", id="one") as running:
            events = caught_up(db, running)
    assert events[-1]["after"] == {"id": 1, "customer": "ann", "note": "important"}


def test_a_table_that_is_made_while_a_pipeline_rests_arrives_whole_though_another_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db:
        with captured(path, tmp_path / "one", id="one"), captured(path, tmp_path / "other", id="other", tables=("o%",)):
            pass
        db.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, item TEXT)")
        db.execute("INSERT INTO lines VALUES (1, 'tea'), (2, 'salt')")
        with captured(path, tmp_path / "two", id="two") as running:
            db.execute("INSERT INTO lines VALUES (3, 'rice')")
            begun = caught_up(db, running)
        with captured(path, tmp_path / "one", id="one") as running:
            rested = caught_up(db, running)
        with captured(path, tmp_path / "other", id="other", tables=("o%",)) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann')")
            assert shown(caught_up(db, running)) == [("insert", None, (1, "ann"))]
    assert shown(begun) == [("insert", None, (3, "rice"))]
    rows = [("insert", None, row) for row in ((1, "tea"), (2, "salt"), (3, "rice"))]
    assert shown(rested) == [("ddl", None, None), *rows]


@pytest.mark.parametrize("anew", ["ALTER TABLE fresh RENAME TO lines", "CREATE TABLE lines AS SELECT * FROM fresh"])
def test_a_table_that_gets_the_name_of_a_dropped_one_arrives_whole_though_another_pipeline_saw_it_between(
    tmp_path: Path, anew: str
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, "CREATE TABLE lines (id INTEGER PRIMARY KEY, item TEXT)") as db:
        db.execute("CREATE TABLE fresh (id INTEGER PRIMARY KEY, item TEXT)")
        db.execute("INSERT INTO fresh VALUES (1, 'tea'), (2, 'salt')")
        with captured(path, tmp_path / "one", id="one", tables=("lines",)):
            pass
        with captured(path, tmp_path / "two", id="two", tables=("orders",)) as running:
            db.execute("DROP TABLE lines")
            seen = "SELECT count(*) FROM _tidemill_shapes WHERE kind = 'drop'"
            eventually(lambda: db.execute(seen).fetchone() == (1,), running)
        db.execute(anew)
        with captured(path, tmp_path / "one", id="one", tables=("lines",)) as running:
            db.execute("INSERT INTO lines VALUES (3, 'rice')")
            events = caught_up(db, running)
    rows = [("insert", None, row) for row in ((1, "tea"), (2, "salt"), (3, "rice"))]
    assert shown(events) == [("ddl", None, None), ("ddl", None, None), *rows]


def test_a_table_whose_name_is_taken_anew_is_marked_and_its_triggers_leave_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with (
        shop(path, ORDERS) as db,
        captured(path, tmp_path, tables=("orders",), recopy_rows=0) as running,
        marked(tmp_path) as registry,
    ):
        for statement in (
            "BEGIN",
            "ALTER TABLE orders RENAME TO orders_old",
            ORDERS,
            "INSERT INTO orders VALUES (1, 'unseen')",
            "COMMIT",
        ):
            db.execute(statement)
        eventually(lambda: notices(registry), running)
        db.execute("INSERT INTO orders_old VALUES (7, 'not ours')")
        db.execute("INSERT INTO orders VALUES (2, 'bob')")
        events = caught_up(db, running)
        assert [(n.code, n.subject) for n in notices(registry)] == [("table-incomplete", "main.orders")]
    assert shown(events) == [("insert", None, (2, "bob"))]


def test_every_reader_of_a_file_hears_of_a_gap_that_one_of_them_has_found(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, "CREATE TABLE other (a INTEGER PRIMARY KEY)") as db:
        with captured(path, tmp_path / "rests", id="rests"):
            pass
        with (
            captured(path, tmp_path / "one", id="one", recopy_rows=0) as one,
            captured(path, tmp_path / "two", id="two", recopy_rows=0) as two,
            captured(path, tmp_path / "other", id="other", tables=("other",), recopy_rows=0) as other,
            marked(tmp_path / "one") as first,
            marked(tmp_path / "two") as second,
            marked(tmp_path / "other") as third,
        ):
            for statement in ("BEGIN", "DROP TABLE orders", ORDERS, "INSERT INTO orders VALUES (9, 'lost')", "COMMIT"):
                db.execute(statement)
            eventually(lambda: notices(first) and notices(second), one)
            db.execute("INSERT INTO other VALUES (1)")
            caught_up(db, two)
            caught_up(db, other)
            assert notices(third) == ()
        with captured(path, tmp_path / "rests", id="rests") as rested, marked(tmp_path / "rests") as late:
            assert [n.subject for n in eventually(lambda: notices(late), rested)] == ["main.orders"]
            heard = "SELECT count(*) FROM _tidemill_meta"
            eventually(lambda: db.execute(heard).fetchone() == (1,), rested)


def test_a_unique_index_that_comes_with_changes_behind_our_back_marks_the_table_and_without_any_does_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, "CREATE TABLE calm (a INTEGER PRIMARY KEY, u)") as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO orders VALUES (1, 'ann')")
            db.execute("INSERT INTO calm VALUES (1, 1)")
            caught_up(db, running)
        db.execute("CREATE UNIQUE INDEX by_u ON calm (u)")
        db.execute("CREATE UNIQUE INDEX by_name ON orders (customer)")
        db.execute("REPLACE INTO orders VALUES (2, 'ann')")  # row 1 goes, and no trigger sees it
        with captured(path, tmp_path, recopy_rows=0) as running, marked(tmp_path) as registry:
            assert [n.subject for n in eventually(lambda: notices(registry), running)] == ["main.orders"]
            assert SqliteSource(config_of(path)).accept("main.orders", registry)
        db.execute("ALTER TABLE orders RENAME COLUMN customer TO buyer")
        db.execute("INSERT INTO orders VALUES (3, 'kim')")
        with captured(path, tmp_path) as running, marked(tmp_path) as registry:
            caught_up(db, running)
            assert notices(registry) == (), "a renamed column is no new index"


def test_events_stay_in_order_though_the_application_makes_triggers_after_ours(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    touch = (
        "CREATE TRIGGER touch AFTER UPDATE OF status ON t BEGIN UPDATE t SET rev = OLD.rev + 1 WHERE id = NEW.id; END"
    )
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, status TEXT, rev INTEGER)") as db:
        with captured(path, tmp_path) as running:
            db.execute("INSERT INTO t VALUES (1, 'new', 0)")
            caught_up(db, running)
        db.execute(touch)
        checks = [c for c in SqliteSource(config_of(path)).doctor() if c.name == "triggers"]
        assert [c.outcome for c in checks] == [Outcome.WARN]
        assert "touch on main.t" in checks[0].detail
        with captured(path, tmp_path) as running, marked(tmp_path) as registry:
            assert notices(registry) == ()
            db.execute("UPDATE t SET status = 'paid'")
            events = caught_up(db, running)
            assert copy_of(events, "t", (0,)) == {(1,): (1, "paid", 1)}
        assert not [c for c in SqliteSource(config_of(path)).doctor() if c.name == "triggers"]
        # One that has run before ours did: the order of what it wrote is not known.
        db.execute("DROP TRIGGER touch")
        db.execute(touch)
        db.execute("UPDATE t SET status = 'sent'")
        with captured(path, tmp_path, recopy_rows=0) as running, marked(tmp_path) as registry:
            assert [n.subject for n in eventually(lambda: notices(registry), running)] == ["main.t"]


def test_tables_that_may_lack_changes_are_emptied_and_copied_again_in_the_stream_of_every_reader(
    tmp_path: Path,
) -> None:
    """Made anew by a migration, or their triggers taken away: nobody has to do anything."""
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, "CREATE TABLE bare (a)", "CREATE TABLE other (a INTEGER PRIMARY KEY)") as db:
        with captured(path, tmp_path / "rests", id="rests") as rested:
            db.execute("INSERT INTO orders VALUES (1, 'ann'), (2, 'bob')")
            db.execute("INSERT INTO bare VALUES (1), (1)")
            db.execute("INSERT INTO other VALUES (5)")
            caught_up(db, rested)
        for statement in (
            "BEGIN",
            "CREATE TABLE fresh (id INTEGER PRIMARY KEY, customer TEXT NOT NULL, at TEXT DEFAULT 'now')",
            "INSERT INTO fresh (id, customer) SELECT * FROM orders",
            "DROP TABLE orders",
            "ALTER TABLE fresh RENAME TO orders",
            "DELETE FROM orders WHERE id = 1",
            "COMMIT",
        ):
            db.execute(statement)
        (shape,) = db.execute("SELECT shape FROM _tidemill_shapes WHERE name = 'bare' AND current").fetchone()
        for kind in ("insert", "update", "delete"):
            db.execute(f"DROP TRIGGER _tidemill_{shape}_after_{kind}")
        db.execute("UPDATE bare SET a = 2")
        with (
            captured(path, tmp_path / "one", id="one", window_rows=1),  # who begins later installs for all
            captured(path, tmp_path / "rests", id="rests", window_rows=2) as rested,
            marked(tmp_path / "rests") as registry,
        ):
            db.execute("INSERT INTO orders VALUES (3, 'kim', 'late')")
            events = caught_up(db, rested)
            assert notices(registry) == ()
    assert copy_of(events, "orders", (0,)) == {(2,): (2, "bob", "now"), (3,): (3, "kim", "late")}
    assert copy_of(events, "other", (0,)) == {(5,): (5,)}
    told = [(e["table"], op) for e, (op, *_) in zip(events, shown(events), strict=True)]
    assert [op for table, op in told if table == "main.bare"] == ["insert"] * 2 + ["truncate"] + ["insert"] * 2
    assert [op for table, op in told if table == "main.orders"][2:4] == ["ddl", "truncate"]
