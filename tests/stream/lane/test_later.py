"""Rows from before a schema change of their transaction, under the names that their columns have after it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.support.changes import changes, column, delivery, structure
from tidemill.model.block import Op
from tidemill.model.schema_change import COLUMN_KINDS, SchemaChangeKind
from tidemill.model.table import Table
from tidemill.schema.view import TableView
from tidemill.stream.lane.later import follow_changes
from tidemill.stream.lane.views import seen_by, structures_seen

ID = column("id", "integer", pa.int32(), nullable=False)
A, B, C, NOTE = (column(name, "text", pa.string()) for name in ("a", "b", "c", "note"))
FIRST = structure("t", ID, A, NOTE)
RENAMED = structure("t", ID, B, NOTE, version=2, renamed=[("a", "b")])
AGAIN = structure("t", ID, C, version=3, renamed=[("b", "c")])
CHAIN = [(0, FIRST), (1, RENAMED), (2, AGAIN)]
DROP, RENAME = SchemaChangeKind.DROP_COLUMN, SchemaChangeKind.RENAME_COLUMN


def rows(*tables: Table) -> Any:
    """One row of each structure, one after the other."""
    return delivery(
        *(
            changes(table, (Op.INSERT, None, {c.name: c.name if c is not ID else at for c in table.columns}), first=at)
            for at, table in enumerate(tables)
        )
    )


def shown(given: Any) -> list[dict[str, Any]]:
    return [row["after"] for block in given.blocks() for row in block.batch.to_pylist()]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (COLUMN_KINDS, [{"id": 0, "c": "a"}, {"id": 1, "c": "b"}, {"id": 2, "c": "c"}]),
        ({RENAME}, [{"id": 0, "c": "a", "note": "note"}, {"id": 1, "c": "b", "note": "note"}, {"id": 2, "c": "c"}]),
        ({DROP}, [{"id": 0, "a": "a"}, {"id": 1, "b": "b"}, {"id": 2, "c": "c"}]),
        (set(), [{"id": 0, "a": "a", "note": "note"}, {"id": 1, "b": "b", "note": "note"}, {"id": 2, "c": "c"}]),
    ],
    ids=["all kinds", "renames", "drops", "none"],
)
def test_columns_go_where_the_changes_that_the_sink_makes_have_brought_them(
    made: set[SchemaChangeKind], expected: list[dict[str, Any]]
) -> None:
    given = rows(FIRST, RENAMED, AGAIN)
    assert shown(follow_changes(given, {"public.t": CHAIN}, made)) == expected


def test_a_structure_that_comes_back_and_tables_that_did_not_change_stay_as_they_are() -> None:
    back = structure("t", ID, A, NOTE, version=3, renamed=[("b", "a")])
    given = rows(FIRST, RENAMED, back)
    found = follow_changes(given, {"public.t": [(0, FIRST), (1, RENAMED), (2, back)]}, COLUMN_KINDS)
    assert [row["a"] for row in shown(found)] == ["a", "b", "a"]
    assert shown(follow_changes(given, {"public.other": CHAIN}, COLUMN_KINDS)) == shown(given)


def test_a_key_that_went_with_its_column_is_left_to_the_sink() -> None:
    keyed = structure("t", B, NOTE, key=("b",), version=2)
    given = rows(FIRST)
    assert shown(follow_changes(given, {"public.t": [(0, FIRST), (1, keyed)]}, COLUMN_KINDS)) == shown(given)


def test_a_sink_that_ignores_some_changes_gets_the_others_on_what_it_sees() -> None:
    before = TableView.whole(structure("t", ID, A, version=1)).follow(FIRST, {SchemaChangeKind.ADD_COLUMN})
    after = before.follow(RENAMED, frozenset())
    views = {"public.t": [[0, before.to_dict()], [1, after.to_dict()]]}
    seen = structures_seen({"public.t": CHAIN[:2]}, views)
    found = follow_changes(seen_by(rows(FIRST, RENAMED), views), seen, COLUMN_KINDS)
    assert shown(found) == [{"id": 0, "b": "a"}, {"id": 1, "b": "b"}]
