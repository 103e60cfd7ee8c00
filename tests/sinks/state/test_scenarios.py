"""The sinks that keep tables, held to one list: what the table has in the end, whatever came and however often.

Each scenario runs against ClickHouse's engine, PostgreSQL, and the stand-in of StarRocks.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.sinks.state.support import DELETE, ID, INSERT, LABEL, NAME, NOTE, RENAMED, UPDATE, Destination, T, keyed, row
from tests.support.changes import changes, column, delivery, structure
from tidemill.errors import Poisoned
from tidemill.model.block import Op, Side
from tidemill.model.table import Column
from tidemill.sinks.postgres import PostgresSink
from tidemill.sinks.starrocks import StarRocksSink


def test_messages_and_statements_of_tables_without_a_key_do_not_need_a_table(there: Destination) -> None:
    messages = structure("message", column("prefix", "text", pa.string(), nullable=False), key=())
    keyless = structure("keyless", NAME, key=())
    dropped = structure("dropped", key=())
    sink = there.sink()
    receipt = sink.write(
        delivery(
            changes(messages, (Op.MESSAGE, None, {"prefix": "x"})), changes(keyless, (Op.DDL, None, None), first=1),
            changes(dropped, (Op.DDL, None, None), first=2), changes(T, (INSERT, None, row(1)), first=3),
        )
    )  # fmt: skip
    assert receipt.events == 4
    assert there.rows() == [(1, "a", "n")]


def test_a_delivery_of_nothing_is_a_delivery(there: Destination) -> None:
    sink = there.sink()
    assert sink.write(delivery(start=5, end=9)).events == 0
    there.write(changes(T, (INSERT, None, row(1)), first=9), start=9, sink=sink)
    assert there.rows() == [(1, "a", "n")]


def test_a_transaction_may_change_rows_and_their_table(there: Destination) -> None:
    for _ in range(3):  # replays in new workers
        there.write(
            changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))),
            changes(RENAMED, (UPDATE, None, {"id": 1, "label": "b", "note": "m"}), first=2),
        )
        assert there.rows("id, label, note") == [(1, "b", "m"), (2, "a", "n")]


def test_a_replay_of_changes_around_a_new_column_ends_in_the_last_state(there: Destination) -> None:
    wider = structure("t", ID, NAME, NOTE, LABEL, version=2)
    blocks = (
        changes(T, (INSERT, None, row(1, "first")), (INSERT, None, row(2))),
        changes(wider, (UPDATE, None, {**row(1, "second"), "label": "x"}), (DELETE, {"id": 2}, None), first=2),
    )
    for _ in range(3):
        there.write(*blocks)
        assert there.rows("id, name, label") == [(1, "second", "x")]


def test_a_structure_that_comes_back_is_followed_back(there: Destination) -> None:
    """The registry knows it by its old number; only the offset tells that it is later."""
    back = structure("t", ID, NAME, NOTE, renamed=[("label", "name")])
    sink = there.sink()
    there.write(changes(T, (INSERT, None, row(1))), sink=sink)
    there.write(changes(RENAMED, (INSERT, None, {"id": 2, "label": "b", "note": "n"}), first=1), start=1, sink=sink)
    there.write(changes(back, (INSERT, None, row(3, "c")), first=2), start=2, sink=sink)
    assert there.rows() == [(1, "a", "n"), (2, "b", "n"), (3, "c", "n")]
    there.write(changes(back, (UPDATE, None, row(1, "z")), first=3), start=3)
    assert there.rows() == [(1, "z", "n"), (2, "b", "n"), (3, "c", "n")]


def test_a_column_that_is_dropped_and_made_again_is_written_again(there: Destination) -> None:
    narrow = structure("t", ID, NAME, version=2)
    sink = there.sink(**({} if isinstance(there.sink(), StarRocksSink) else {"allow_destructive_ddl": True}))
    there.write(changes(T, (INSERT, None, row(1))), sink=sink)
    there.write(changes(narrow, (UPDATE, None, {"id": 1, "name": "b"}), first=1), start=1, sink=sink)
    there.write(changes(T, (INSERT, None, row(2, "c", "new")), first=2), start=2, sink=sink)
    assert there.rows("id, name")[-1] == (2, "c")
    assert there.rows("id, note")[-1] == (2, "new")


def test_what_is_refused_only_for_a_row_that_is_not_there_is_said_to_lack_it(there: Destination) -> None:
    """While a table is copied such an event is left out, since the row comes with the copy."""
    with pytest.raises(Poisoned) as caught:
        there.write(changes(T, (UPDATE, None, {"id": 7, "name": "new"}), unchanged={0: ["note"]}))
    assert caught.value.lacking == caught.value.reasons.keys() == {0}


def test_an_insert_without_all_of_its_columns_is_poisoned_also_after_a_delete(there: Destination) -> None:
    """binlog_row_image MINIMAL leaves columns to their defaults: those of the row before are not its values."""
    there.write(changes(T, (INSERT, None, row(1, "old", "old"))))
    events = ((DELETE, {"id": 1}, None), (INSERT, None, {"id": 1, "name": "new"}))
    again = changes(T, *events, first=1, unchanged={1: ["note"]})
    with pytest.raises(Poisoned) as caught:
        there.write(again, start=1)
    assert set(caught.value.reasons) == {2}


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (column("k", "bytea", pa.binary(), nullable=False), b"\x00\xff'\\"),
        (column("k", "timestamp without time zone", pa.timestamp("us"), nullable=False), datetime.datetime(2026, 1, 2)),
        (column("k", "timestamp with time zone", pa.timestamp("us", "UTC"), nullable=False),
         datetime.datetime(2026, 1, 2, 3, 4, 5, 60, datetime.UTC)),
        (column("k", "date", pa.date32(), nullable=False), datetime.date(2026, 1, 2)),
        (column("k", "bigint unsigned", pa.uint64(), nullable=False), 2**64 - 1),
        (column("k", "decimal(20,10)", pa.decimal128(20, 10), nullable=False), decimal.Decimal("1E-10")),
        (column("k", "boolean", pa.bool_(), nullable=False), True),
        (column("k", "uuid", pa.string(), nullable=False), "0e0ec5a0-0000-4000-8000-00000000000a"),
        (column("k", "text", pa.string(), nullable=False), "A'\\ \"ü\t\n`"),
    ],
    ids=lambda value: value.type.native if isinstance(value, Column) else "",
)  # fmt: skip
def test_unchanged_columns_keep_their_value_whatever_the_key_is(there: Destination, kind: Column, key: Any) -> None:
    table = keyed(kind)
    there.write(changes(table, (INSERT, None, {"k": key, "name": "a", "note": "kept"})))
    update = (UPDATE, {"k": key}, {"k": key, "name": "b", "note": None})
    there.write(changes(table, update, first=1, unchanged={0: ["note"]}), start=1)
    assert there.rows("name, note") == [("b", "kept")]
    there.write(changes(table, (DELETE, {"k": key}, None), first=2), start=2)
    assert there.rows("name") == []


@pytest.mark.parametrize(
    "there", ["clickhouse", "starrocks"], indirect=True
)  # postgres skips what it has, event by event
def test_a_replay_in_another_cut_does_not_miss_a_row_that_was_deleted_since(there: Destination) -> None:
    updates = ((UPDATE, None, {"id": 1, "name": "b"}), (UPDATE, None, {"id": 2, "name": "b"}))
    there.write(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    later = [
        delivery(changes(T, *updates, first=2, unchanged={0: ["note"], 1: ["note"]}), start=2),
        delivery(changes(T, (DELETE, {"id": 1}, None), (INSERT, None, row(3)), first=4), start=4),
    ]
    for lanes in (1, 2):
        sink = there.sink()
        for each in later:
            sink.write(dataclasses.replace(each, lanes=lanes))
        assert there.rows() == [(2, "b", "n"), (3, "a", "n")]


def test_a_change_of_a_document_is_not_taken_for_the_document(there: Destination) -> None:
    """MySQL's PARTIAL_JSON, where the row it changes is not in the binlog."""
    table = structure("t", ID, column("doc", "json", pa.string(), raw=True))
    there.write(changes(table, (INSERT, None, {"id": 1, "doc": "{}"})))
    odd = {0: [(Side.AFTER, "doc", '[{"op":"remove","path":"$.a"}]')]}
    with pytest.raises(Poisoned) as caught:
        there.write(changes(table, (UPDATE, None, {"id": 1}), first=1, odd=odd), start=1)
    assert "only a change of a JSON document" in caught.value.reasons[1]


def test_columns_may_have_any_name(there: Destination) -> None:
    names = ["select", "a.b", "sp ace", "Upper", "ü", "x" * 63, "a'b", "--", "a;b", "${x}", "%s", "$1", "{}"]
    table = structure("t", ID, *(column(name, "text", pa.string()) for name in names))
    values = dict.fromkeys(names, "a")
    there.write(changes(table, (INSERT, None, {"id": 1, **values}), (INSERT, None, {"id": 2, **values})))
    updates = ((UPDATE, None, {"id": 1, **dict.fromkeys(names, "b")}), (UPDATE, None, {"id": 2, "Upper": "b"}))
    kept = [name for name in names if name != "Upper"]
    there.write(changes(table, *updates, first=2, unchanged={1: kept}), start=2)
    quote = '"' if isinstance(there.sink(), PostgresSink) else "`"
    for name in names:
        assert there.rows(f"id, {quote}{name}{quote} AS v") == [(1, "b"), (2, "b" if name == "Upper" else "a")], name
