"""Blocks as bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill.log import codec
from tidemill.log.codec import load, load_spilled
from tidemill.log.entry import Constants
from tidemill.model.block import Block, Op
from tidemill.model.position import Position


def dump(block: Block) -> pa.Buffer:
    return pa.py_buffer(b"".join(codec.dump(block)))


@pytest.mark.parametrize("rows", [0, 1, 7, 1000])
@pytest.mark.parametrize("identity", ["key", "full", "nothing"])
def test_a_block_is_the_same_after_a_way_through_bytes(rows: int, identity: str) -> None:
    table = make_table(identity=identity, version=3)
    ops = [(Op.INSERT, Op.UPDATE, Op.DELETE)[i % 3] for i in range(rows)]
    block = make_block(rows, table=table, ops=ops)
    again = load(dump(block))
    assert again.table == block.table
    assert again.batch.equals(block.batch, check_metadata=True)
    again.batch.validate(full=True)


def test_a_slice_of_a_larger_batch_is_written_alone() -> None:
    block = make_block(1000)
    part = block.slice(500, 510)
    assert dump(part).size < dump(block).size / 10
    assert load(dump(part), 100).batch.column("offset").to_pylist() == list(range(600, 610))


def test_offsets_beyond_two_to_the_53_stay_exact() -> None:
    base = (1 << 60) + 1
    block = load(dump(make_block(10)), base, first=base + 3, last=base + 5)
    assert block.batch.column("offset").to_pylist() == [base + 3, base + 4]


def test_a_spilled_block_gets_what_its_rows_have_in_common() -> None:
    spilled = make_block(4, positions=None, subtx=[1, 1, 2, 2])
    assert load_spilled(dump(spilled)).batch.equals(spilled.batch)
    block = load(dump(spilled), 10, Constants(Position("0/Ü"), 77, 5_000_000), first=11, last=13)
    assert block.batch.schema.equals(make_block(1).batch.schema)
    assert block.batch.column("position").to_pylist() == ["0/Ü"] * 2
    assert block.batch.column("tx_id").to_pylist() == [77, 77]
    assert [time.timestamp() for time in block.batch.column("commit_time").to_pylist()] == [5.0, 5.0]
