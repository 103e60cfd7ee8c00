"""Blocks with every type that a source can bring, at their limits, with nulls, odd values and unchanged columns."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tests.support.blocks import EPOCH_US
from tidemill.model.block import COMMIT_TIME, ODD, POSITION, UNCHANGED, Block, Op
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

_WIDE = decimal.Context(prec=80)


def _decimals(precision: int, scale: int) -> list[decimal.Decimal]:
    last = 10**precision - 1
    return [_WIDE.scaleb(decimal.Decimal(n), -scale) for n in (0, 1, -1, 127, 128, -128, -129, 255, 32768, last, -last)]


def _integers(bits: int, signed: bool) -> list[int]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    return [n for n in (0, 1, -1, 63, 64, 127, 128, -64, -65, 8191, 8192, low, high) if low <= n <= high]


_TEXTS = ["", "a", "żółw 🦆", '"\\\n\0', "x" * 127, "y" * 128, "z" * 20_000]
_DAYS = [0, -1, 1, 20_000, -719_528, 2_932_896, 2_147_483_647, -2_147_483_648]
_MICROS = [0, 1, -1, EPOCH_US, 2**62, -(2**62)]

#: Name -> Arrow type, JSON form, values.
TYPES: dict[str, tuple[pa.DataType, JsonForm, list[Any]]] = {
    "a bool": (pa.bool_(), JsonForm.BOOL, [True, False]),
    **{f"int{b}": (getattr(pa, f"int{b}")(), JsonForm.NUMBER, _integers(b, True)) for b in (8, 16, 32, 64)},
    **{f"uint{b}": (getattr(pa, f"uint{b}")(), JsonForm.NUMBER, _integers(b, False)) for b in (8, 16, 32, 64)},
    "real": (pa.float32(), JsonForm.NUMBER, [0.0, -0.0, 1.5, float("inf"), float("nan"), 3.4028234663852886e38]),
    "double": (pa.float64(), JsonForm.NUMBER, [0.0, -0.0, 0.1, float("-inf"), float("nan"), 5e-324]),
    "money": (pa.decimal128(12, 2), JsonForm.STRING, _decimals(12, 2)),
    "wide": (pa.decimal128(38, 37), JsonForm.STRING, _decimals(38, 37)),
    "widest": (pa.decimal256(65, 30), JsonForm.STRING, _decimals(65, 30)),
    "whole": (pa.decimal256(76, 0), JsonForm.STRING, _decimals(76, 0)),
    "text": (pa.string(), JsonForm.STRING, _TEXTS),
    "large text": (pa.large_string(), JsonForm.STRING, _TEXTS),
    "json": (pa.string(), JsonForm.RAW, ['{"a": [1, null]}', "null", '"x"', "[]"]),
    "bytes": (pa.binary(), JsonForm.BASE64, [b"", b"\0", b"\xff" * 300]),
    "large bytes": (pa.large_binary(), JsonForm.BASE64, [b"", b"\0\xff"]),
    "größe": (pa.dictionary(pa.int32(), pa.string()), JsonForm.STRING, ["klein", "groß", "klein"]),
    "date": (pa.date32(), JsonForm.STRING, _DAYS),
    "time": (pa.time64("us"), JsonForm.STRING, [0, 1, 86_399_999_999]),
    "timestamp": (pa.timestamp("us"), JsonForm.STRING, _MICROS),
    "timestamptz": (pa.timestamp("us", tz="UTC"), JsonForm.STRING, _MICROS),
    "ints": (pa.list_(pa.int32()), JsonForm.ARRAY, [[], [1], [None, -5, None], [2**31 - 1] * 200]),
    "texts": (pa.list_(pa.string()), JsonForm.ARRAY, [[], ["", None, "ä"], ["x" * 200]]),
    "moments": (pa.list_(pa.timestamp("us", tz="UTC")), JsonForm.ARRAY, [[0, None], [EPOCH_US]]),
    "prices": (pa.list_(pa.decimal128(8, 3)), JsonForm.ARRAY, [_decimals(8, 3), [None]]),
    "nested": (pa.list_(pa.list_(pa.float64())), JsonForm.ARRAY, [[[1.0], [], None], []]),
    "1st": (pa.large_list(pa.binary()), JsonForm.ARRAY, [[b"a", None], []]),
}


def typed_block(names: list[str] | None = None, *, key: tuple[str, ...] = ("int64",), rows: int = 24) -> Block:
    """Inserts, updates and deletes over columns of these types; every fifth value is null."""
    chosen = {name: TYPES[name] for name in names or TYPES}
    columns = tuple(Column(name, DataType(name, kind, form)) for name, (kind, form, _) in chosen.items())
    table = Table("shop", "public", "all types", columns, key, "full", version=3, sequence=9).with_fingerprint()
    image = pa.StructArray.from_arrays(
        [column_of(kind, values, rows) for kind, _, values in chosen.values()], fields=list(table.arrow_struct())
    )
    ops = [(Op.INSERT, Op.UPDATE, Op.DELETE)[row % 3] for row in range(rows)]
    gone = np.array([op is Op.DELETE for op in ops])
    new = np.array([op is Op.INSERT for op in ops])
    return block_of(table, ops, before=_masked(image, new), after=_masked(image, gone))


def block_of(table: Table, ops: list[Op], **columns: pa.Array) -> Block:
    rows = len(ops)
    fields = {
        "offset": pa.array(range(100, 100 + rows), pa.uint64()),
        "op": pa.array([int(op) for op in ops], pa.uint8()),
        "position": pa.array([f"0/{1 + row // 4:X}" for row in range(rows)]).dictionary_encode().cast(POSITION),
        "tx_id": pa.array([None if row == 1 else 700 + row for row in range(rows)], pa.uint64()),
        "ordinal": pa.array([row % 4 for row in range(rows)], pa.uint32()),
        "commit_time": pa.array([EPOCH_US + row for row in range(rows)], pa.int64()).cast(COMMIT_TIME),
        **columns,
    }
    return Block(table, pa.record_batch(list(fields.values()), names=list(fields)))


def odd_block() -> Block:
    """Odd values in every image, unchanged columns, and rows with neither."""
    block = typed_block(["int64", "money", "date", "text", "uint64"], key=("int64", "date"), rows=6)
    side = {"key": 0, "before": 1, "after": 2}
    gone = [{"side": side["before"], "column": 2, "text": "infinity"}]
    gone.append({"side": side["before"], "column": 1, "text": "NaN"})
    new = [{"side": side["after"], "column": 1, "text": "NaN"}]
    odd = [new, None, gone, [], [{"side": side["after"], "column": 2, "text": "-infinity"}], None]
    batch = block.batch.append_column("odd", pa.array(odd, ODD))
    unchanged = pa.array([None, [3], None, None, [3, 4], None], UNCHANGED)
    return Block(block.table, batch.append_column("unchanged", unchanged))


def column_of(kind: pa.DataType, values: list[Any], rows: int) -> pa.Array:
    given = [None if row % 5 == 4 else values[row % len(values)] for row in range(rows)]
    return _array(given, kind)


def _array(given: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_temporal(kind):
        return pa.array(given, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind)
    if pa.types.is_list(kind) and pa.types.is_temporal(kind.value_type):
        return pa.array(given, pa.list_(pa.int64())).cast(kind)
    return pa.array(given, kind)


def _masked(image: pa.StructArray, mask: np.ndarray[Any, Any]) -> pa.StructArray:
    children = [image.field(i) for i in range(image.type.num_fields)]
    return pa.StructArray.from_arrays(children, fields=list(image.type), mask=pa.array(mask))
