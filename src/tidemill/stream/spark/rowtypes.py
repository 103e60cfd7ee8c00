"""Arrow types of blocks as Spark SQL knows them, for the row view. Nothing loses digits: what has no equal is text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_SAME = {
    pa.bool_(): "boolean", pa.int8(): "tinyint", pa.int16(): "smallint", pa.int32(): "int", pa.int64(): "bigint",
    pa.uint8(): "smallint", pa.uint16(): "int", pa.uint32(): "bigint", pa.uint64(): "decimal(20,0)",
    pa.float16(): "float", pa.float32(): "float", pa.float64(): "double", pa.date32(): "date",
}  # fmt: skip


def spark_type(kind: pa.DataType) -> str:
    """In DDL. Unsigned integers go one size up, `uint64` to decimal(20,0); times of day, decimals beyond 38 digits and
    anything unknown are strings."""
    if kind in _SAME:
        return _SAME[kind]
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    return "string"


def convert(column: pa.Array, target: pa.DataType) -> pa.Array:
    """To the Arrow type that Spark expects. Raises `pa.ArrowInvalid` when a value does not fit."""
    if column.type == target:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_list(target):
        values = convert(column.flatten(), target.value_type)
        offsets = pc.subtract(column.offsets, column.offsets[0])
        return pa.ListArray.from_arrays(offsets.cast(pa.int32()), values, type=target, mask=column.is_null())
    try:
        return column.cast(target)
    except pa.ArrowNotImplementedError:
        strings = [None if value is None else str(value) for value in column.to_pylist()]
        return pa.array(strings, pa.string()).cast(target)
