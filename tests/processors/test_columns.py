"""rename, drop, keep and mask: other columns, the same events."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from tests.support.blocks import make_block, make_table
from tidemill.errors import TidemillError
from tidemill.model.block import ODD, Block, Op, Side
from tidemill.model.derived import with_column
from tidemill.processors.mask import MaskConfig
from tidemill.stream.lane.chain import Chain

SALT = "pepper and salt"


def passed(block: Block, *specs: tuple[str, dict[str, Any]]) -> Block:
    (out,) = (
        Chain([(kind, {"id": f"p{n}", **config}) for n, (kind, config) in enumerate(specs)], "shop")
        .begin({})
        .blocks(iter([block]))
    )
    return out


def names(block: Block) -> list[str]:
    return [column.name for column in block.table.columns]


def after(block: Block, column: str) -> list[Any]:
    found: list[Any] = (block.struct("after") or {})[column].to_pylist()
    return found


def test_a_renamed_column_keeps_values_key_and_what_is_noted_of_it() -> None:
    table = make_table(identity="full")
    block = make_block(3, table=table, ops=[Op.INSERT, Op.UPDATE, Op.DELETE])
    note = names(block).index("note")
    block = with_column(block, "unchanged", pa.array([None, [note], None], pa.list_(pa.uint16())))
    out = passed(block, ("rename", {"columns": {"id": "order_id", "note": "remark"}}))
    assert out.table.key == ("order_id",)
    assert after(out, "order_id") == after(block, "id")
    assert out.batch.column("before").type == out.table.arrow_struct()
    assert names(out).index("remark") == note
    assert out.batch.column("unchanged").to_pylist() == [None, [note], None]


def test_dropped_columns_are_gone_from_both_rows_and_from_what_is_noted() -> None:
    block = make_block(2, table=make_table(identity="full"), ops=Op.UPDATE)
    note, placed = names(block).index("note"), names(block).index("placed_at")
    block = with_column(block, "unchanged", pa.array([[note, placed], [placed]], pa.list_(pa.uint16())))
    odd = [{"side": int(Side.AFTER), "column": number, "text": "infinity"} for number in (note, placed)]
    block = with_column(block, "odd", pa.array([odd, None], ODD))
    out = passed(block, ("drop", {"columns": ["note", "pri%"]}))
    assert names(out) == ["id", "customer", "quantity", "paid", "weight", "placed_at"]
    assert out.batch.column("after").type == out.batch.column("before").type == out.table.arrow_struct()
    assert out.batch.column("unchanged").to_pylist() == [[5], [5]]
    assert out.batch.column("odd").to_pylist() == [[{"side": 2, "column": 5, "text": "infinity"}], None]


def test_keep_leaves_what_it_names_and_the_key() -> None:
    assert names(passed(make_block(1), ("keep", {"columns": ["pa*", "note"]}))) == ["id", "paid", "note"]


@pytest.mark.parametrize(
    ("kind", "config", "words"),
    [
        ("drop", {"columns": ["id"]}, "which is a column of its key"),
        ("rename", {"columns": {"note": "customer"}}, 'two columns called "customer"'),
        ("rename", {"columns": {"nose": "n"}}, 'has no column "nose"'),
        ("keep", {"columns": ["quantiti"]}, 'has no column "quantiti"'),
        ("mask", {"rules": [{"columns": ["id"], "method": "redact"}]}, "would make one key of many"),
    ],
)
def test_what_cannot_be_done_to_a_table_is_refused(kind: str, config: dict[str, Any], words: str) -> None:
    with pytest.raises(TidemillError) as stopped:
        passed(make_block(1), (kind, config))
    assert words in stopped.value.what
    assert stopped.value.fix


def test_a_column_that_is_missing_may_be_ignored() -> None:
    assert names(passed(make_block(1), ("drop", {"columns": ["nose"], "missing": "ignore"}))) == names(make_block(1))


def test_a_hash_is_keyed_and_joins_over_tables_and_types() -> None:
    def rules(column: str) -> tuple[str, dict[str, Any]]:
        return "mask", {"rules": [{"columns": [column], "method": "hash"}], "salt": SALT}

    numbers = passed(make_block(3, first_id=7), rules("id"))
    assert numbers.table.key == ("id",)
    key = hashlib.blake2s(SALT.encode()).digest()
    wanted = [hashlib.blake2s(str(n).encode(), key=key, digest_size=16).hexdigest() for n in (7, 8, 9)]
    assert after(numbers, "id") == wanted
    texts = make_block(3)
    struct = texts.batch.column("after")
    arrays = list((texts.struct("after") or {}).values())
    arrays[1] = pa.array(["7", "8", None])
    texts = with_column(texts, "after", pa.StructArray.from_arrays(arrays, fields=list(struct.type)))
    assert after(passed(texts, rules("customer")), "customer") == [*wanted[:2], None]
    other = passed(make_block(1, first_id=7), ("mask", rules("id")[1] | {"salt": "another salt"}))
    assert after(other, "id") != wanted[:1]


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 128, 1000])
def test_hashes_are_those_of_the_standard_library_at_every_length(length: int) -> None:
    from tidemill.processors.mask.blake2 import Blake2s

    for size in (8, 16, 32):
        key = hashlib.blake2s(b"salt").digest()
        (found,) = Blake2s(b"salt", size).hexdigests(pa.array(["x" * length])).to_pylist()
        assert found == hashlib.blake2s(b"x" * length, key=key, digest_size=size).hexdigest()


def test_masked_columns_are_hidden_in_every_image_and_null_stays_null() -> None:
    block = make_block(4, table=make_table(identity="full"), ops=Op.UPDATE)
    rules = [
        {"columns": ["cust*"], "method": "partial", "keep_first": 2, "keep_last": 3},
        {"columns": ["note"], "method": "redact", "text": "(hidden)"},
        {"columns": ["price", "weight"], "method": "nullify"},
        {"columns": ["customer"], "method": "redact"},
    ]
    out = passed(block, ("mask", {"rules": rules}))
    assert after(out, "customer") == ["cu***ich"] * 4, "the first rule that names it"
    assert after(out, "note") == [None, "(hidden)", "(hidden)", None]
    assert after(out, "price") == after(out, "weight") == [None] * 4
    assert out.batch.column("before").type == out.batch.column("after").type == out.table.arrow_struct()
    assert (out.struct("before") or {})["note"].to_pylist() == [None, "(hidden)", "(hidden)", None]


def test_an_odd_value_is_hidden_too() -> None:
    block = make_block(1)
    number = names(block).index("price")
    odd = pa.array([[{"side": int(Side.AFTER), "column": number, "text": "NaN"}]], ODD)
    struct = block.batch.column("after")
    arrays = [
        pa.nulls(1, array.type) if name == "price" else array for name, array in (block.struct("after") or {}).items()
    ]
    block = with_column(block, "after", pa.StructArray.from_arrays(arrays, fields=list(struct.type)))
    block = with_column(block, "odd", odd)
    out = passed(block, ("mask", {"rules": [{"columns": ["price"], "method": "redact"}]}))
    assert after(out, "price") == ["***"]
    assert out.batch.column("odd").to_pylist() == [[]]


def test_a_value_too_short_for_its_ends_shows_nothing() -> None:
    from tidemill.processors.mask import MaskRule, _partly

    rule = MaskRule.model_validate({"columns": ["x"], "method": "partial", "keep_first": 1, "keep_last": 2})
    assert _partly(pa.array(["", "abc", "abcd", "zürich", None]), rule).to_pylist() == [
        "***", "***", "a***cd", "z***ch", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rules": [{"columns": ["a"], "method": "hash"}]}, "needs a salt"),
        ({"rules": [{"columns": ["a"], "method": "hash"}], "salt": "short"}, "at least 8"),
        ({"rules": [{"columns": ["a"], "method": "redact"}], "salt": "long enough"}, "Remove it"),
    ],
)
def test_a_salt_belongs_to_hashes(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        MaskConfig.model_validate({"id": "m", **settings})
