"""Statements that change the schema of a Turso file while nobody looks, in all modes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.sources.sqlite_support import copy_of
from tests.sources.test_turso import ORDERS, captured, caught_up, writer
from tests.support.capturing import eventually
from tidemill.model.position import Position
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources._shared import sqlite_marks
from tidemill.sources.turso import TursoConfig, TursoSource
from tidemill.sources.turso import stream as turso_stream

_FIRST = "INSERT INTO orders VALUES (1, 'ann', 1)"
_FRESH, _ANEW = (f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, v TEXT)" for name in ("fresh", "orders"))


def test_a_renamed_table_is_captured_though_its_changes_come_late_in_a_transaction_larger_than_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turso_stream, "ROWS", 10)
    path = tmp_path / "shop.db"
    with writer(path, ORDERS, "CREATE TABLE t (id INTEGER PRIMARY KEY)") as db:
        with captured(path, tmp_path):
            pass
        db.execute("ALTER TABLE t RENAME TO renamed")
        db.execute("BEGIN")
        for i in range(25):
            db.execute("INSERT INTO orders VALUES (?, 'x', 1)", (i,))
        db.execute("CREATE TABLE fresh (id INTEGER PRIMARY KEY)")
        db.execute("INSERT INTO fresh VALUES (1)")
        db.execute("INSERT INTO renamed VALUES (7)")
        db.execute("COMMIT")
        with captured(path, tmp_path) as running:
            events = caught_up(db, running)
    assert len(copy_of(events, "orders", (0,))) == 25
    assert copy_of(events, "fresh", (0,)) == {(1,): (1,)}
    assert copy_of(events, "renamed", (0,)) == {(7,): (7,)}


@pytest.mark.parametrize(
    ("statement", "table", "why"),
    [
        ("ALTER TABLE orders RENAME TO sales", "main.sales", "rows from before"),
        ("ALTER TABLE orders RENAME COLUMN customer TO buyer", "main.orders", "a column was renamed"),
        ("ALTER TABLE empty RENAME TO sales", "", ""),
        ("ALTER TABLE orders ADD COLUMN note TEXT", "", ""),
    ],
)
def test_a_table_whose_rows_did_not_come_with_a_rename_is_marked_until_an_operator_accepts_it(
    tmp_path: Path, statement: str, table: str, why: str
) -> None:
    """Turso records no rename, and which of two tables or columns it was nobody knows."""
    path = tmp_path / "shop.db"
    source = TursoSource(TursoConfig(id="shop", path=path))
    with writer(path, ORDERS, "CREATE TABLE empty (id INTEGER PRIMARY KEY)") as db:
        with captured(path, tmp_path) as running:
            db.execute(_FIRST)
            caught_up(db, running)
            db.execute(statement)
            eventually(lambda: any(e["op"] == 6 for e in running.rows()), running)
        with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as registry:
            found = sqlite_marks.notices(registry)
            assert [(notice.code, notice.subject) for notice in found] == ([("table-incomplete", table)] if why else [])
            assert why in "".join(notice.what for notice in found)
            source.open(Position(running.log.tail().position), registry)
            assert source.notices() == found
            source.close()
            assert source.accept("*", registry) == found
            assert sqlite_marks.notices(registry) == ()


@pytest.mark.parametrize("mode", ["id", "before", "after", "full"])
@pytest.mark.parametrize(
    "statements",
    [
        (
            "ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'none'", "UPDATE orders SET note = 'x'",
            "ALTER TABLE orders ADD COLUMN more TEXT", "UPDATE orders SET more = 'y'",
        ),
        ("UPDATE orders SET total = 2", "ALTER TABLE orders DROP COLUMN customer", "UPDATE orders SET total = 3"),
        (
            _FRESH, "INSERT INTO fresh VALUES (1, 'a')", "UPDATE orders SET total = 2", "DROP TABLE orders",
            "UPDATE fresh SET v = 'b'",
        ),
        ("DROP TABLE orders", _ANEW, "INSERT INTO orders VALUES (2, 'a')"),
    ],
    ids=["columns added", "a column dropped", "a table dropped", "a table made anew"],
)  # fmt: skip
def test_rows_of_all_modes_are_final_though_the_schema_changed_with_them(
    tmp_path: Path, mode: str, statements: tuple[str, ...]
) -> None:
    path = tmp_path / "shop.db"
    with writer(path, ORDERS, mode=mode) as db:
        with captured(path, tmp_path):
            pass
        for statement in (_FIRST, *statements):
            db.execute(statement)
        with captured(path, tmp_path) as running:
            events = caught_up(db, running)
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
            for table in {"orders", "fresh"} & set(tables):
                columns = [row[1] for row in db.execute(f"PRAGMA table_info({table})").fetchall()]
                rows = [dict(zip(columns, row, strict=True)) for row in db.execute(f"SELECT * FROM {table}").fetchall()]
                found = _replay(events, f"main.{table}")
                assert [{c: found[row["id"]].get(c, "?") for c in columns} for row in rows] == rows


def _replay(events: list[dict[str, Any]], table: str) -> dict[int, dict[str, Any]]:
    """The last values of each column that an event has, by id."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["table"] == table and event["after"]:
            unchanged = event.get("unchanged") or ()
            known = {k: v for i, (k, v) in enumerate(event["after"].items()) if i not in unchanged}
            assert "customer" not in known or known["customer"] == "ann", "the name of a column is not its value"
            found.setdefault(event["after"]["id"], {}).update(known)
    return found
