"""Small neighbours become one block, and nothing else changes."""

from __future__ import annotations

import pyarrow as pa

from tests.support.blocks import make_block, make_table
from tidemill.model.block import Block, Op
from tidemill.model.derived import with_column
from tidemill.model.table import Table
from tidemill.stream.lane import rows

ORDERS, ITEMS = make_table("orders"), make_table("items")


def _block(table: Table, first: int, rows: int, op: Op = Op.INSERT) -> Block:
    return make_block(
        rows, table=table, ops=op, offsets=range(first, first + rows), first_id=first, positions=f"0/{first:X}"
    )


def _rows(blocks: list[Block]) -> list[dict[str, object]]:
    absent: dict[str, object] = {"key": None, "before": None, "after": None, "unchanged": None}
    return [{"table": b.table.full_name, **absent, **row} for b in blocks for row in b.batch.to_pylist()]


def test_small_blocks_of_one_table_become_one_with_the_same_rows_in_the_same_order() -> None:
    blocks = [_block(ORDERS, first, 2) for first in range(0, 10, 2)]
    blocks[2] = with_column(blocks[2], "unchanged", pa.array([[1], None], pa.list_(pa.uint16())))
    (one,) = rows.join(iter(blocks))
    assert _rows([one]) == _rows(blocks)
    assert one.table is ORDERS


def test_another_table_ddl_and_truncate_stand_apart_and_keep_their_place() -> None:
    blocks = [
        _block(ORDERS, 0, 1), _block(ORDERS, 1, 1), _block(ITEMS, 2, 1), _block(ORDERS, 3, 1, Op.TRUNCATE),
        _block(ORDERS, 4, 1), _block(ORDERS, 5, 1),
    ]  # fmt: skip
    found = list(rows.join(iter(blocks)))
    assert [(block.table.name, block.rows) for block in found] == [
        ("orders", 2), ("items", 1), ("orders", 1), ("orders", 2),
    ]  # fmt: skip
    assert _rows(found) == _rows(blocks)


def test_a_block_does_not_grow_beyond_its_limit() -> None:
    blocks = [_block(ORDERS, at, 1500) for at in range(0, 6000, 1500)]
    assert [block.rows for block in rows.join(iter(blocks))] == [3000, 3000]
    assert list(rows.join(iter([]))) == []
