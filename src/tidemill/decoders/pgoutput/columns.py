"""Cells to Arrow arrays, one converter per Arrow type.

Every converter returns the array and a mask of values that the type cannot hold (or None). Those are null in the
array; `pgoutput` keeps their text in the block's `odd` column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.decoders._shared import eight_bytes
from tidemill.decoders._shared.decimal_text import decimals
from tidemill.decoders.pgoutput import cells, temporal
from tidemill.errors import DecodeError
from tidemill.model.columns import booleans
from tidemill.model.postgres_types import delimiter
from tidemill.model.types import DataType

Mask = npt.NDArray[np.bool_]
_PLAIN_NUMBER = r"^-?[0-9]+(\.[0-9]+)?$"


@dataclass(frozen=True, slots=True)
class PgOutputCells:
    """Where one column's values stand in `buffer`."""

    buffer: npt.NDArray[np.uint8]
    at: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    kind: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.at)

    def take(self, rows: npt.NDArray[np.int64]) -> PgOutputCells:
        return PgOutputCells(self.buffer, self.at[rows], self.size[rows], self.kind[rows])


def convert(column: PgOutputCells, kind: DataType) -> tuple[pa.Array, Mask | None]:
    """The column as `kind.arrow`; second, which values are text that this type cannot hold."""
    arrow = kind.arrow
    if pa.types.is_list(arrow):
        return _list(column, kind)
    return _CONVERTERS.get(arrow.id, _through_text)(column, arrow)


def value_of(text: str | None, kind: DataType) -> tuple[pa.Scalar, bool]:
    """One value from its text; second, whether the type cannot hold it."""
    raw = (text or "").encode()
    data = np.frombuffer(bytearray(raw + bytes(eight_bytes.ROOM)), np.uint8)
    where = np.zeros(1, np.int64), np.array([len(raw)], np.int64)
    array, odd = convert(
        PgOutputCells(data, *where, np.array([cells.NULL if text is None else cells.TEXT], np.uint8)), kind
    )
    return array[0], odd is not None and bool(odd[0])


def strings(column: PgOutputCells) -> pa.Array:
    """The values as PostgreSQL printed them. The server converts to UTF-8; a SQL_ASCII database may not comply."""
    offsets, data = _copy(column)
    nulls, bits = _validity(column.kind)
    array = pa.Array.from_buffers(pa.binary(), len(column), [bits, offsets, data], nulls)
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise DecodeError(
            "a text value is not UTF-8",
            fix="The database probably has encoding SQL_ASCII; text columns must hold UTF-8, other bytes need bytea.",
        ) from error


def _copy(column: PgOutputCells) -> tuple[pa.Buffer, pa.Buffer]:
    offsets = np.empty(len(column) + 1, np.int32)
    total = _bytes_of(column)
    data = np.empty(total + eight_bytes.ROOM, np.uint8)
    eight_bytes.copy(column.buffer, column.at, column.size, offsets, data)
    return pa.py_buffer(offsets), pa.py_buffer(data[:total])


def _bytes_of(column: PgOutputCells) -> int:
    total = int(column.size.sum())
    if total > np.iinfo(np.int32).max:
        raise DecodeError("one column of a block is larger than 2 GiB", fix="Lower gather_ms, to decode less at once.")
    return total


def _validity(kind: npt.NDArray[np.uint8], bad: Mask | None = None) -> tuple[int, pa.Buffer | None]:
    if bad is not None:
        kind = np.where(bad, np.uint8(cells.NULL), kind)
    bits = np.zeros((len(kind) + 7) // 8, np.uint8)
    nulls = int(cells.validity(kind, bits))
    return nulls, pa.py_buffer(bits) if nulls else None


def _fixed_array(
    column: PgOutputCells, arrow: pa.DataType, values: npt.NDArray[Any], bad: Mask, wrong: int
) -> tuple[pa.Array, Mask | None]:
    nulls, bits = _validity(column.kind, bad if wrong else None)
    return pa.Array.from_buffers(arrow, len(column), [bits, pa.py_buffer(values)], nulls), bad if wrong else None


def fixed_array(values: npt.NDArray[np.int64], kind: npt.NDArray[np.uint8], arrow: pa.DataType) -> pa.Array:
    """Values that `copy_rows` read, each in eight bytes; copied."""
    nulls, bits = _validity(kind)
    made: npt.NDArray[Any]
    if pa.types.is_boolean(arrow):
        made = np.packbits(values.astype(np.bool_), bitorder="little")
    elif pa.types.is_decimal(arrow):
        made = np.empty((len(values), 2), np.int64)
        made[:, 0] = values
        np.right_shift(values, 63, out=made[:, 1])
    elif pa.types.is_integer(arrow):
        made = values.astype(arrow.to_pandas_dtype())
    else:
        made = values.astype(np.int32) if arrow == pa.date32() else values.copy()
    return pa.Array.from_buffers(arrow, len(values), [bits, pa.py_buffer(made)], nulls)


def _integer(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
    dtype = np.dtype(arrow.to_pandas_dtype())
    limits = np.iinfo(dtype)
    out, bad = np.empty(len(column), np.int64), np.zeros(len(column), np.bool_)
    wrong = cells.integers(
        column.buffer, column.at, column.size, column.kind, int(limits.min), int(limits.max), out, bad
    )
    return _fixed_array(column, arrow, out.astype(dtype, copy=False), bad, wrong)


def _boolean(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
    out, bad = np.zeros((len(column) + 7) // 8, np.uint8), np.zeros(len(column), np.bool_)
    wrong = cells.booleans(column.buffer, column.at, column.size, column.kind, out, bad)
    return _fixed_array(column, arrow, out, bad, wrong)


def _decimal(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
    if arrow.precision > 18:
        return _through_text(column, arrow)
    out, bad = np.empty((len(column), 2), np.int64), np.zeros(len(column), np.bool_)
    where = column.buffer, column.at, column.size, column.kind
    wrong = decimals(*where, cells.TEXT, arrow.precision, arrow.scale, out, bad)
    return _fixed_array(column, arrow, out, bad, wrong)


def _temporal_reader(kernel: Callable[..., int], dtype: type) -> Callable[..., tuple[pa.Array, Mask | None]]:
    def convert_temporal(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
        out: npt.NDArray[Any] = np.empty(len(column), dtype)
        bad = np.zeros(len(column), np.bool_)
        zone = (arrow.tz is not None,) if pa.types.is_timestamp(arrow) else ()
        wrong = kernel(column.buffer, column.at, column.size, column.kind, *zone, out, bad)
        return _fixed_array(column, arrow, out, bad, wrong)

    return convert_temporal


def _bytes(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
    offsets, bad = np.empty(len(column) + 1, np.int32), np.zeros(len(column), np.bool_)
    data = np.empty(_bytes_of(column) // 2 + 1, np.uint8)
    wrong = cells.hexes(column.buffer, column.at, column.size, column.kind, offsets, data, bad)
    nulls, bits = _validity(column.kind, bad if wrong else None)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data[: int(offsets[-1])].copy())]
    return pa.Array.from_buffers(arrow, len(column), buffers, nulls), bad if wrong else None


def _text(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
    return strings(column), None


def _through_text(column: PgOutputCells, arrow: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """Arrow's own parser: floats, and decimals of more digits than a machine word."""
    array = strings(column)
    try:
        return array.cast(arrow), None
    except pa.ArrowInvalid:
        pass
    # What is not a plain number (numeric NaN in a wide decimal) is no decimal.
    bad = pc.fill_null(pc.invert(pc.match_substring_regex(array, _PLAIN_NUMBER)), False).to_numpy(zero_copy_only=False)
    try:
        return _without(array, bad).cast(arrow), bad
    except pa.ArrowInvalid:
        # No server sends this; find the offenders one by one, keep the rest.
        bad = np.array([not _fits(value, arrow) for value in array], np.bool_)
        return _without(array, bad).cast(arrow), bad


def _without(array: pa.Array, bad: Mask) -> pa.Array:
    return pc.if_else(booleans(bad), pa.scalar(None, pa.string()), array)


def _fits(value: pa.Scalar, arrow: pa.DataType) -> bool:
    try:
        value.cast(arrow)
    except pa.ArrowInvalid:
        return False
    return True


def _list(column: PgOutputCells, kind: DataType) -> tuple[pa.Array, Mask | None]:
    """One-dimensional arrays with the usual bounds become lists; other shapes stay text."""
    room = _bytes_of(column) + 1
    offsets, bad = np.empty(len(column) + 1, np.int32), np.zeros(len(column), np.bool_)
    text = np.empty(room, np.uint8)
    at, size, kinds = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.uint8)
    wrong, count, _ = cells.elements(
        column.buffer, column.at, column.size, column.kind, delimiter(kind.arrow), offsets, bad, text, at, size, kinds
    )
    element = DataType("", kind.arrow.value_type, kind.json)
    values, odd = convert(PgOutputCells(text, at[:count], size[:count], kinds[:count]), element)
    if odd is not None:
        # An element that its type cannot hold makes the whole array travel as text; its elements are dropped.
        owner = np.searchsorted(offsets, np.nonzero(odd)[0], side="right") - 1
        bad[owner] = True
        keep = ~np.repeat(bad, np.diff(offsets))
        sizes = np.where(bad, 0, np.diff(offsets))
        offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        values = values.filter(booleans(keep))
        wrong = int(bad.sum())
    nulls, bits = _validity(column.kind, bad if wrong else None)
    array = pa.Array.from_buffers(kind.arrow, len(column), [bits, pa.py_buffer(offsets)], nulls, children=[values])
    return array, bad if wrong else None


_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_CONVERTERS: dict[int, Callable[[PgOutputCells, pa.DataType], tuple[pa.Array, Mask | None]]] = {
    **{kind.id: _integer for kind in _INTEGERS},
    pa.bool_().id: _boolean,
    pa.decimal128(1).id: _decimal,
    pa.date32().id: _temporal_reader(temporal.dates, np.int32),
    pa.time64("us").id: _temporal_reader(temporal.times, np.int64),
    pa.timestamp("us").id: _temporal_reader(temporal.timestamps, np.int64),
    pa.binary().id: _bytes,
    pa.string().id: _text,
}
