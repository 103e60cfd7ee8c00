"""The type of a column that a processor makes, from its Arrow type."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import ConfigError
from tidemill.model.types import DataType, JsonForm


def cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """As Arrow does it, but a text is read as a decimal number alone: "0x10" is `ArrowInvalid`, not 16."""
    textual = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    if textual and pa.types.is_integer(kind) and pc.any(pc.match_substring_regex(values, "^0[xX]")).as_py():
        raise pa.ArrowInvalid("a text holds a hexadecimal number")
    return values.cast(kind)


def data_type(kind: pa.DataType) -> DataType:
    """With PostgreSQL's name for it, which sinks with tables of their own understand."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_boolean(kind):
        return DataType("boolean", kind, JsonForm.BOOL)
    if pa.types.is_integer(kind):
        names = {8: "smallint", 16: "smallint", 32: "integer", 64: "bigint"}
        return DataType(names[kind.bit_width], kind, JsonForm.NUMBER)
    if pa.types.is_floating(kind):
        return DataType("double precision" if kind.bit_width == 64 else "real", kind, JsonForm.NUMBER)
    if pa.types.is_decimal(kind):
        return DataType(f"numeric({kind.precision},{kind.scale})", kind, JsonForm.STRING)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return DataType("text", pa.string(), JsonForm.STRING)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return DataType("bytea", pa.binary(), JsonForm.BASE64)
    if pa.types.is_date(kind):
        return DataType("date", pa.date32(), JsonForm.STRING)
    if pa.types.is_time(kind):
        return DataType("time without time zone", pa.time64("us"), JsonForm.STRING)
    if pa.types.is_timestamp(kind):
        zone = "with" if kind.tz else "without"
        return DataType(f"timestamp {zone} time zone", pa.timestamp("us", "UTC" if kind.tz else None), JsonForm.STRING)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = data_type(kind.value_type)
        return DataType(f"{inner.native}[]", pa.list_(inner.arrow), JsonForm.ARRAY)
    raise ConfigError(
        f"a processor made a column of type {kind}, which no sink could be told about",
        fix="Make it a number, a text, a time, bytes, a boolean or a list of those.",
    )
