"""The current rows of each key."""

from __future__ import annotations

import pyarrow as pa

from tests.sinks.benches import DELETE, ID, INSERT, NAME, NOTE, TRUNCATE, UPDATE, T, row
from tests.sinks.clickhouse.support import Bench
from tests.support.changes import changes, column, delivery, structure
from tidemill.model.block import Op


def test_inserts_updates_and_deletes_give_the_current_rows(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (INSERT, None, row(2)), (UPDATE, None, row(1, "b")), (DELETE, {"id": 2}, None),
        (INSERT, None, row(3, None)), (Op.READ, None, row(4)),
    )  # fmt: skip
    sink = bench.sink()
    receipt = sink.write(delivery(block))
    assert (receipt.events, receipt.skipped, receipt.ok) == (6, 0, True)
    assert receipt.bytes > 0
    assert bench.rows() == [row(1, "b"), row(3, None), row(4)]
    assert bench.rows("id, _version, _is_deleted", tail="WHERE id < 3 ORDER BY _version") == [
        {"id": 1, "_version": 2, "_is_deleted": 0}, {"id": 2, "_version": 3, "_is_deleted": 1},
    ]  # fmt: skip


def test_an_update_that_moves_a_row_to_another_key_leaves_nothing_under_the_old_one(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1)), (UPDATE, {"id": 1}, row(9)))))
    assert bench.rows() == [row(9)]


def test_a_row_that_moves_away_and_back_is_there_once(bench: Bench) -> None:
    moves = changes(
        T, (INSERT, None, row(1)), (UPDATE, {"id": 1}, row(9, "x")), (UPDATE, {"id": 9}, row(1, "y")),
    )  # fmt: skip
    bench.write(delivery(moves))
    assert bench.rows() == [row(1, "y")]


def test_a_composite_key_in_any_order_of_columns_is_the_order_of_the_table(bench: Bench) -> None:
    lines = structure("t", NAME, ID, NOTE, key=("name", "id"))
    block = changes(lines, (INSERT, None, row(1, "a")), (INSERT, None, row(1, "b")), (UPDATE, None, row(1, "a", "z")))
    bench.write(delivery(block))
    assert bench.rows(tail="FINAL ORDER BY name") == [row(1, "a", "z"), row(1, "b")]


def test_a_truncate_removes_what_came_before_it_and_nothing_that_came_after(bench: Bench) -> None:
    block = changes(T, (INSERT, None, row(1)), (INSERT, None, row(2)), (TRUNCATE, None, None), (INSERT, None, row(3)))
    bench.write(delivery(block))
    assert bench.rows() == [row(3)]
    bench.write(delivery(block))  # a replay, in a new worker
    assert bench.rows() == [row(3)]


def test_messages_and_statements_leave_the_rows_alone(bench: Bench) -> None:
    block = changes(T, (Op.MESSAGE, None, None), (INSERT, None, row(1)), (Op.DDL, None, None))
    assert bench.sink().write(delivery(block)).events == 3
    assert bench.rows() == [row(1)]


def test_names_with_any_characters_are_taken_as_they_are(bench: Bench) -> None:
    odd = structure("o`r\\d 'e'rs", ID, column("sp ace`\\'ü", "text", pa.string()), column('"q"', "text", pa.string()))
    block = changes(odd, (INSERT, None, {"id": 1, "sp ace`\\'ü": "x'y\\z\t", '"q"': "quoted"}))
    bench.write(delivery(block), table="${source.schema}.${source.table}")
    (found,) = bench.server.query(f"SELECT * FROM {bench.database}.`public.o\\`r\\\\d 'e'rs`")
    assert (found["sp ace`\\'ü"], found['"q"']) == ("x'y\\z\t", "quoted")
