from __future__ import annotations

import datetime
import decimal
import subprocess
import sys
import uuid
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_change, make_table
from tidemill.config.spec import Sharding
from tidemill.log import BlockRef
from tidemill.model.block import Block, Op
from tidemill.model.keyhash import key_hashes
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.stream.batch import admission, lanes

UTC = datetime.UTC


def ref_of(block: Block, *, barrier: bool = False) -> BlockRef:
    return BlockRef("s", 0, 0, 0, 0, 0, block.rows, block.table.full_name, 1, "", block.rows, barrier)


def spread(block: Block, count: int, how: str = "hash", *, barrier: bool = False) -> list[list[int]]:
    """Offsets per lane."""
    ref = ref_of(block, barrier=barrier)
    shares = [
        lanes.share(block, ref, lane, count, how) if lanes.may_have(ref, lane, count, how) else None
        for lane in range(count)
    ]
    return [share.batch.column(0).to_pylist() if share else [] for share in shares]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_every_row_is_in_exactly_one_lane_and_in_order(count: int) -> None:
    parts = spread(make_block(1000), count)
    assert sorted(offset for part in parts for offset in part) == list(range(1000))
    assert all(part == sorted(part) for part in parts)
    assert min(map(len, parts)) > 1000 / count * 0.7


def test_changes_of_one_key_share_a_lane_whatever_the_change() -> None:
    inserted = make_block(100)
    updated = make_block(100, ops=Op.UPDATE)
    deleted = make_block(100, ops=Op.DELETE)
    deleted_full = make_block(100, ops=Op.DELETE, table=make_table(identity="full"))
    assert spread(inserted, 4) == spread(updated, 4) == spread(deleted, 4) == spread(deleted_full, 4)


def test_lanes_do_not_depend_on_the_process() -> None:
    code = (
        "from tests.support.blocks import make_block\n"
        "from tests.stream.batch.test_lanes import spread\n"
        "print(spread(make_block(50), 4))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(spread(make_block(50), 4))


def test_a_table_without_a_key_a_table_by_table_and_a_barrier_stay_in_one_lane() -> None:
    for parts in (
        spread(make_block(100, table=make_table(key=())), 4),
        spread(make_block(100), 4, "table"),
        spread(make_block(100), 4, barrier=True),
    ):
        assert sorted(len(part) for part in parts) == [0, 0, 0, 100]


def test_a_chosen_column_is_used_only_where_it_is_part_of_the_key() -> None:
    composite = make_block(500, table=make_table(key=("id", "customer")))
    by_customer = spread(composite, 4, admission.spread_by(Sharding(key="customer")))
    lane_of = {offset: lane for lane, part in enumerate(by_customer) for offset in part}
    assert all(lane_of[i] == lane_of[i + 97] for i in range(400))
    assert spread(make_block(500), 4, "hash:customer") == spread(make_block(500), 4, "hash")


def test_several_tables_are_spread_over_the_lanes() -> None:
    change = make_change(4000, tables=[make_table(f"t{i}") for i in range(8)])
    whole = [[lane for lane, part in enumerate(spread(b, 4, "table")) if part] for b in change.blocks]
    assert all(len(found) == 1 for found in whole)
    assert len({found[0] for found in whole}) > 1


VALUES = [
    (pa.int16(), [1, -1, 300]),
    (pa.uint64(), [1, 2**64 - 1, 2**63]),
    (pa.bool_(), [True, False, None]),
    (pa.float64(), [1.5, -2.0, float("nan")]),
    (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("2.00"), decimal.Decimal("-3.25")]),
    (pa.string(), ["a", "", "Zürich"]),
    (pa.large_string(), ["a", "b", "c"]),
    (pa.dictionary(pa.int32(), pa.string()), ["x", "y", "z"]),
    (pa.binary(), [b"\0", b"", b"\xff"]),
    (pa.binary(16), [uuid.UUID(int=i).bytes for i in range(3)]),
    (pa.date32(), [datetime.date(2026, 1, i) for i in (1, 2, 3)]),
    (pa.time64("us"), [datetime.time(1, i) for i in (1, 2, 3)]),
    (pa.timestamp("us", tz="UTC"), [datetime.datetime(2026, 1, i, tzinfo=UTC) for i in (1, 2, 3)]),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_keys_of_every_kind_are_told_apart(kind: pa.DataType, values: list[object]) -> None:
    hashes = key_hashes(block_with_key(kind, values), ("k",))
    assert hashes is not None
    assert len(set(hashes.tolist())) == 3
    again = key_hashes(block_with_key(kind, values[::-1]), ("k",))
    assert again is not None
    assert again.tolist() == hashes.tolist()[::-1]


def test_a_sliced_block_hashes_like_the_whole() -> None:
    block = block_with_key(pa.string(), ["a", "bb", "ccc"])
    whole = key_hashes(block, ("k",))
    part = key_hashes(replace(block, batch=block.batch.slice(1)), ("k",))
    assert whole is not None
    assert part is not None
    assert np.array_equal(whole[1:], part)


def test_minus_zero_is_zero() -> None:
    hashes = key_hashes(block_with_key(pa.float64(), [0.0, -0.0, 1.0]), ("k",))
    assert hashes is not None
    assert hashes[0] == hashes[1] != hashes[2]


def test_a_key_that_cannot_be_hashed_keeps_the_table_together() -> None:
    block = block_with_key(pa.list_(pa.int32()), [[1], [2], [3]])
    assert key_hashes(block, ("k",)) is None
    assert sorted(map(len, spread(block, 4))) == [0, 0, 0, 3]


def test_a_tiny_batch_gets_one_lane_and_a_large_one_all() -> None:
    assert admission.how_many(100, 10_000, 8) == 1
    assert admission.how_many(admission.ROWS_PER_LANE * 3, 0, 8) == 3
    assert admission.how_many(10, admission.BYTES_PER_LANE * 2, 8) == 2
    assert admission.how_many(10**7, 10**9, 8) == 8


def block_with_key(kind: pa.DataType, values: list[object]) -> Block:
    table = Table("d", "s", "t", (Column("k", DataType("x", kind, JsonForm.STRING)),), ("k",))
    base = make_block(len(values))
    after = pa.StructArray.from_arrays([pa.array(values, kind)], names=["k"])
    index = base.batch.schema.get_field_index("after")
    return replace(base, table=table, batch=base.batch.set_column(index, "after", after))
