"""Tables of SQLite and Turso are named with `main.` or without it, wherever somebody names one, and shown with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.sources.sqlite_support import captured, caught_up, config_of, shop
from tidemill.contracts import Outcome, SnapshotConfig
from tidemill.decoders.sqlite import SqliteColumn, SqliteTable
from tidemill.model.position import Position
from tidemill.model.tablenames import TableNames, find_name, matches_name
from tidemill.processors.drop import DropConfig
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources._shared import sqlite_marks as marks
from tidemill.sources._shared.patterns import Unmatched
from tidemill.sources._shared.sqlite_names import patterns_of
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource
from tidemill.sources.turso import TursoConfig

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT)"


@pytest.mark.parametrize("config", [SqliteFileConfig, TursoConfig])
def test_filters_of_a_snapshot_are_by_full_names_however_a_document_names_their_tables(config: Any) -> None:
    filters = {"orders": "id > 1", "main.lines": "id > 2", '"a.b"': "id > 3"}
    made = config(id="shop", path="shop.db", snapshot=SnapshotConfig(filters=filters))
    assert list(made.snapshot.filters) == ["main.orders", "main.lines", "main.a.b"]
    with pytest.raises(ValidationError, match="Name one table"):
        config(id="shop", path="shop.db", snapshot={"filters": {"ord%": "id > 1"}})


def test_a_name_that_is_nearly_right_is_corrected_with_its_schema_or_without(tmp_path: Path) -> None:
    for text in ("ordres", "main.ordres"):
        (pattern,) = patterns_of([text])
        assert "Did you mean main.orders?" in Unmatched.yet(pattern, ["main.orders", "main.lines"]).fix
    path = tmp_path / "shop.db"
    with shop(path, ORDERS, "CREATE TABLE bare (a)"):
        config = config_of(path, tables=("bare", "ordres"), snapshot={"filters": {"oders": "id > 1"}})
        said = {c.name: f"{c.detail} {c.fix}" for c in SqliteSource(config).doctor() if c.outcome is Outcome.WARN}
    assert "main.bare" in said["keys"]
    assert 'no table matches "ordres" yet Did you mean main.orders?' in said["tables"]
    assert "there is no table main.oders" in said["snapshot.filters"]
    assert "Did you mean main.orders? Correct `filters`" in said["snapshot.filters"]


def test_what_is_said_of_a_table_is_accepted_by_any_of_its_names(tmp_path: Path) -> None:
    registry = SchemaRegistry(tmp_path / "registry.sqlite")
    source = SqliteSource(config_of(tmp_path / "shop.db"))
    for name in ("orders", "main.orders", "ORD%", '"orders"'):
        marks.note(registry, {"orders": "why", "lines": "why"}, Position("1/2@3f9a0c5d7b21e468"))
        assert [notice.subject for notice in source.accept(name, registry)] == ["main.orders"]
        assert [notice.subject for notice in marks.notices(registry)] == ["main.lines"]
    assert source.accept("absent", registry) == ()
    registry.close()


def test_processors_and_policies_take_names_without_a_schema() -> None:
    orders, lines = (
        SqliteTable(n, (SqliteColumn("id", "INTEGER", key=1),)).to_table("shop") for n in ("orders", "b.c")
    )
    for pattern in ("orders", "main.orders", "shop.orders", "ord%", "*", "main.*"):
        assert TableNames(DropConfig(id="d", tables=(pattern,), columns=("x",)).tables).match(orders), pattern
    for pattern in ("order", "public.orders", "main.order", "lines"):
        assert not TableNames((pattern,)).match(orders), pattern
    assert TableNames(("main.b.c",)).match(lines)
    with pytest.raises(ValidationError, match="is not a table name"):
        DropConfig(id="d", tables=("a b",), columns=("x",))


def test_commands_find_a_table_by_its_name_alone_unless_two_schemas_have_it() -> None:
    assert matches_name("main.orders", "orders")
    assert matches_name("main.orders", "ord*")
    assert matches_name("main.orders", "main.*")
    assert not matches_name("main.orders", "main")
    assert not matches_name("main.orders", "order")
    assert find_name("orders", ["main.orders", "main.lines"]) == "main.orders"
    assert find_name("orders", ["public.orders", "sales.orders"]) == "orders"
    assert find_name("absent", ["main.orders"]) == "absent"


def test_every_position_of_a_file_has_one_form(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, ORDERS) as db, captured(path, tmp_path, window_rows=2) as running:
        db.execute("INSERT INTO orders VALUES (1, 'ann')")
        caught_up(db, running)
        db.executemany("INSERT INTO orders VALUES (?, 'bob')", [(n,) for n in range(2, 9)])
        db.execute("ALTER TABLE orders ADD COLUMN note TEXT")
        db.execute("UPDATE orders SET note = 'x' WHERE id = 3")
        events = caught_up(db, running)
        tail, began = running.log.tail().position, SqliteSource(config_of(path)).renew()
    forms = {e["position"].count("/") + e["position"].count("@") for e in events}
    assert forms == {2}
    assert events[-1]["position"] == tail == began
