"""Columns that were not sent keep the value that is there."""

from __future__ import annotations

import datetime
import uuid

import pyarrow as pa
import pytest

from tests.sinks.benches import DELETE, INSERT, UPDATE, T, row
from tests.sinks.clickhouse.support import Bench, D
from tests.support.changes import changes, column, delivery, structure
from tidemill.errors import Poisoned


def test_unchanged_columns_keep_the_value_that_is_there(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "a", "long")), (INSERT, None, row(2, "b", None)))))
    later = changes(
        T, (UPDATE, None, row(1, "x", None)), (UPDATE, None, row(2, None, "z")), (UPDATE, None, row(2, "y", None)),
        (INSERT, None, row(3, "c", "fresh")), (UPDATE, None, row(3, "d", None)),
        first=2, unchanged={0: ["note"], 1: ["name"], 2: ["note"], 4: ["note"]},
    )  # fmt: skip
    bench.write(delivery(later, start=2))
    assert bench.rows() == [row(1, "x", "long"), row(2, "y", "z"), row(3, "d", "fresh")]
    bench.write(delivery(later, start=2))
    assert bench.rows() == [row(1, "x", "long"), row(2, "y", "z"), row(3, "d", "fresh")]


def test_an_unchanged_column_follows_a_row_to_its_new_key(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "a", "long")))))
    moves = changes(
        T, (UPDATE, {"id": 1}, row(5, "b", None)), (UPDATE, {"id": 5}, row(6, "c", None)),
        first=1, unchanged={0: ["note"], 1: ["note"]},
    )  # fmt: skip
    bench.write(delivery(moves, start=1))
    assert bench.rows() == [row(6, "c", "long")]


def test_the_full_old_row_has_the_unchanged_value(bench: Bench) -> None:
    block = changes(T, (UPDATE, row(1, "a", "long"), row(1, "b", None)), unchanged={0: ["note"]})
    bench.write(delivery(block))
    assert bench.rows() == [row(1, "b", "long")]


def test_an_unchanged_column_of_a_row_that_nobody_has_is_poisoned_never_null(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, None, row(7, "x", None)), (DELETE, {"id": 1}, None),
        (UPDATE, None, row(1, "y", None)), unchanged={1: ["note"], 3: ["note"]},
    )  # fmt: skip
    with pytest.raises(Poisoned) as caught:
        bench.write(delivery(block))
    assert caught.value.reasons.keys() == {1, 3}
    assert "did not send the unchanged columns" in caught.value.reasons[1]
    bench.write(delivery(block).without([1, 3]))
    assert bench.rows() == []


def test_a_replay_of_an_unchanged_column_after_the_row_was_deleted_changes_nothing(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, None, row(1, "b", None)), (DELETE, {"id": 1}, None), unchanged={1: ["note"]}
    )
    bench.write(delivery(block))
    tail = delivery(block.slice(1, 3), start=1)  # cut anew, so that the insert is not in it
    assert bench.sink().write(tail).skipped == 1
    assert bench.rows() == []


def test_unchanged_values_of_every_type_come_back_exact(bench: Bench) -> None:
    wide = structure(
        "t", column("id", "uuid", pa.string(), nullable=False), column("n", "integer", pa.int32()),
        column("big", "numeric(60,5)", pa.decimal256(60, 5)), column("raw", "bytea", pa.binary()),
        column("who", "uuid", pa.string()), column("at", "timestamp with time zone", pa.timestamp("us", "UTC")),
        column("doc", "jsonb", pa.string(), raw=True), column("tags", "text[]", pa.list_(pa.string()), nullable=False),
        column("list", "integer[]", pa.list_(pa.int32())),
    )  # fmt: skip
    key = str(uuid.UUID(int=5))
    values = {
        "id": key, "n": 1, "big": D("12345678901234567890.12345"), "raw": b"\x00\xff'", "who": str(uuid.UUID(int=7)),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, datetime.UTC), "doc": '{"a": 1.50}',
        "tags": ["x", None, "y'z"], "list": [1, None],
    }  # fmt: skip
    bench.write(delivery(changes(wide, (INSERT, None, values))))
    columns = [c.name for c in wide.columns[2:]]
    before = bench.rows("* EXCEPT (_version, n, raw), hex(raw)")
    bench.write(delivery(changes(wide, (UPDATE, None, {"id": key, "n": 2}), first=1, unchanged={0: columns}), start=1))
    assert bench.rows("n") == [{"n": 2}]
    assert bench.rows("* EXCEPT (_version, n, raw), hex(raw)") == before
    assert before[0]["hex(raw)"] == "00FF27"
