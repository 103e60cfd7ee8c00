"""Replaying files into tables, as the demo does to compare them with the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from tidemill.lab.arrivals import Arrivals, differences

KEYS = {"goods": ("sku",)}


def test_events_replay_into_the_rows_they_describe(tmp_path: Path) -> None:
    follow = Arrivals(tmp_path, KEYS)
    _write(tmp_path / "_tidemill" / "draft.jsonl", _event("insert", after={"sku": "not yet published"}))
    _write(
        tmp_path / "shop.goods" / "1.jsonl", _event("insert", after={"sku": "a", "price": "1.50", "facts": {"kg": 2}})
    )
    follow.poll()
    _write(
        tmp_path / "shop.goods" / "2.jsonl",
        _event("insert", after={"sku": "b", "price": "2.00", "facts": None}),
        _event("update", after={"sku": "a", "price": "1.75", "facts": None}, unchanged=["facts"]),
        _event("delete", before={"sku": "b"}),
    )
    follow.poll()
    follow.poll()
    assert follow.total == 4
    assert follow.files == 2
    database = [{"sku": "a", "price": "1.75", "facts": '{"kg": 2}'}]
    assert differences(follow.tables["goods"], database, KEYS["goods"]) == 0


@pytest.mark.parametrize(
    "database",
    [
        [],
        [{"sku": "a", "price": "1.50"}, {"sku": "b", "price": "1.50"}],
        [{"sku": "a", "price": "1.5"}],
        [{"sku": "a", "price": None}],
    ],
    ids=["row too many", "row missing", "digit lost", "value for NULL"],
)
def test_any_difference_is_seen(tmp_path: Path, database: list[dict[str, Any]]) -> None:
    follow = Arrivals(tmp_path, KEYS)
    _write(tmp_path / "shop.goods" / "1.jsonl", _event("insert", after={"sku": "a", "price": "1.50"}))
    follow.poll()
    assert differences(follow.tables["goods"], database, KEYS["goods"]) == 1


def _event(op: str, **fields: Any) -> dict[str, Any]:
    return {"table": "goods", "op": op, "timestamp": "2026-01-01T00:00:00Z", "before": None, "after": None, **fields}


def _write(path: Path, *events: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(event) + b"\n" for event in events))


def test_text_that_only_looks_like_a_date_is_compared_as_text() -> None:
    rows: dict[tuple[str, ...], dict[str, Any]] = {("AST-009",): {"sku": "AST-009", "at": "2026-01-02T03:04:05.5Z"}}
    database = [{"sku": "AST-009", "at": "2026-01-02 03:04:05.500000+00"}]
    assert differences(rows, database, ("sku",)) == 0
    assert differences(rows, [database[0] | {"at": "2026-01-02 03:04:06+00"}], ("sku",)) == 1
