"""`doctor` compares what processors name with the tables that are captured: a real database file, no rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from tidemill import config
from tidemill.contracts import Check, Outcome
from tidemill.service.processor_checks import check_processors

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT, customer_email TEXT, amount INTEGER, doc TEXT);
CREATE TABLE items (id INTEGER PRIMARY KEY, order_id INTEGER, note TEXT);
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.executescript(TABLES)
    return tmp_path / "shop.db"


def checks(database: Path, *processors: dict[str, Any]) -> list[Check]:
    file = database.with_name("shop.yaml")
    tables = ["main.orders", "main.items"]
    spec = {
        "source": {"type": "sqlite", "config": {"id": "shop", "path": str(database), "tables": tables}},
        "processors": list(processors), "sinks": [{"type": "stdout", "config": {"id": "out"}}],
        "state_dir": str(database.with_name("state")),
    }  # fmt: skip
    file.write_bytes(orjson.dumps({"metadata": {"name": "shop"}, "spec": spec}))
    (pipeline,) = config.load(file, {})
    return list(check_processors(pipeline))


ORDERS = ["main.orders"]
MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"type": "filter", "where": {"field": "statu", "eq": "x"}}, 'no column "statu"', '"status"'),
    ({"type": "mask", "rules": [{"columns": ["email"], "method": "redact"}]}, 'no column "email"', "customer_email"),
    ({"type": "rename", "columns": {"amont": "total"}}, 'no column "amont"', '"amount"'),
    ({"type": "drop", "columns": ["amounts"]}, 'no column "amounts"', '"amount"'),
    ({"type": "keep", "columns": ["stat"]}, 'no column "stat"', '"status"'),
    ({"type": "flatten", "columns": ["docs"]}, 'no column "docs"', '"doc"'),
    ({"type": "outbox", "payload": "dox", "key": "id", "topic": "t"}, 'no column "dox"', '"doc"'),
    ({"type": "outbox", "payload": "doc", "key": "id", "topic": "${after.statuss}"}, 'no column "statuss"', '"status"'),
    ({"type": "route", "topic": "orders-${after.statuss}"}, 'no column "statuss"', '"status"'),
    ({"type": "sql", "query": "SELECT id, statuss FROM events"}, "statuss", "tables"),
]


@pytest.mark.parametrize(("settings", "what", "near"), MISTAKES, ids=lambda each: str(each)[:40])
def test_a_column_that_no_captured_table_has_is_a_warning_with_the_nearest_one(
    database: Path, settings: dict[str, Any], what: str, near: str
) -> None:
    [check] = checks(database, {**settings, "id": "p", "tables": ORDERS})
    assert (check.name, check.outcome) == (f"processor p ({settings['type']}): columns", Outcome.WARN)
    assert what in check.detail
    assert near in check.fix


def test_columns_that_are_there_pass_as_earlier_processors_leave_them(database: Path) -> None:
    found = checks(
        database, {"type": "rename", "id": "a", "tables": ORDERS, "columns": {"amount": "total"}},
        {"type": "drop", "id": "b", "tables": ORDERS, "columns": ["total"]},
        {"type": "filter", "id": "c", "tables": ORDERS, "where": {"field": "total", "gt": 1}},
        {"type": "drop", "id": "d", "tables": ["main.items"], "columns": ["note"]},
    )  # fmt: skip
    assert [check.outcome for check in found] == [Outcome.PASS, Outcome.PASS, Outcome.WARN, Outcome.PASS]
    assert 'no column "total"' in found[2].detail, "it was dropped before"
    assert found[0].detail == "they fit 1 of 2 captured tables"


def test_what_missing_ignore_or_a_pattern_would_let_pass_is_told_if_no_table_has_it(database: Path) -> None:
    rules = [{"columns": ["notes%", "note"], "method": "redact"}, {"columns": ["phone"], "method": "nullify"}]
    found = checks(database, {"type": "mask", "id": "m", "missing": "ignore", "rules": rules})
    assert [check.detail for check in found] == [
        'no captured table has a column "notes%"', 'no captured table has a column "phone"',
    ]  # fmt: skip
    assert 'Did you mean "note"?' in found[0].fix
    default = {"type": "route", "id": "r", "topic": "t-${after.statsu:-none}"}
    [check] = checks(database, default)
    assert (check.outcome, check.detail) == (Outcome.WARN, 'no captured table has a column "statsu"')


def test_one_mistake_of_several_tables_is_one_warning(database: Path) -> None:
    [check] = checks(database, {"type": "drop", "id": "d", "columns": ["nothing"]})
    assert check.detail == 'main.items has no column "nothing", and so it is of main.orders'


def test_a_processor_for_a_table_that_is_not_captured_is_told(database: Path) -> None:
    [check] = checks(database, {"type": "drop", "id": "d", "tables": ["main.order"], "columns": ["note"]})
    assert (check.outcome, check.detail) == (Outcome.WARN, "no captured table is called main.order")
    assert 'Did you mean "main.orders"?' in check.fix


def test_after_a_script_only_rows_tell_the_columns_and_nothing_is_guessed(database: Path) -> None:
    script = {"type": "javascript", "id": "js", "inline": "function process(ev) { return ev; }"}
    found = checks(database, script, {"type": "drop", "id": "d", "columns": ["made_by_the_script"]})
    assert [check.outcome for check in found] == [Outcome.PASS, Outcome.PASS]
    assert found[1].detail.endswith("of 2 only rows tell which columns come to it")


def test_a_script_that_declares_a_column_of_the_table_is_told_that_the_tables_type_stays(database: Path) -> None:
    script = {"type": "javascript", "id": "js", "inline": "function process(ev) { return ev; }"}
    [check] = checks(database, {**script, "tables": ORDERS, "columns": {"amount": "number", "ratio": "number"}})
    assert check.outcome == Outcome.WARN
    assert '`columns` declares "amount", which main.orders has as' in check.detail


def test_a_source_that_cannot_be_asked_leaves_it_to_its_own_checks(database: Path) -> None:
    database.unlink()
    assert checks(database, {"type": "drop", "id": "d", "columns": ["nothing"]}) == []
