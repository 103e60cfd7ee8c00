"""A column as text, the same for the same value whatever the column's type: an id is one whether it is a number, a
bigger number or text."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.encoding.program import render
from tidemill.model.table import Column


def as_text(values: pa.Array, column: Column) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.string())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return values.cast(pa.large_binary())
    # As JSON shows it, without quotes: dates in ISO 8601, decimals with all of their places.
    strings = render(values, column.type.json).array(values.is_valid().to_numpy(zero_copy_only=False))
    strings = strings.cast(pa.large_string())
    return pc.utf8_trim(strings, '"').cast(pa.string())
