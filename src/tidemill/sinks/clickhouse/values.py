"""Arrow columns of a source in the form ClickHouse takes for a column's type: exact, or the row is named as poisoned.

ClickHouse would wrap an integer that is too large, clamp a date and turn a NULL into zero without a word. So whatever
its type cannot hold is found here, before it is sent (invariant 7).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from tidemill.encoding.program import render
from tidemill.model.table import Column
from tidemill.model.types import JsonForm
from tidemill.sinks._shared.images import FRAGMENT, Mask, Verdicts, digits
from tidemill.sinks.clickhouse.types import MAX_DAY, MIN_DAY, ClickHouseType

_DAY_US = 86_400_000_000
_MAX_NS_DAY = 106_751  # 2262-04-11: nanoseconds end there


def fit(
    values: pa.Array, odd: pa.Array | None, column: Column, kind: ClickHouseType, offsets: np.ndarray[Any, Any],
    live: Mask, verdicts: Verdicts,
) -> pa.Array:  # fmt: skip
    """`values` as they are sent into a column of `kind`; rows outside `live` are not judged."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    label = f'column "{column.name}" ({column.type.native})'
    if odd is not None:
        document = column.type.json is JsonForm.RAW
        if kind.core == "String" and not document:
            return pc.coalesce(odd, _text(values, column).cast(odd.type))
        strange = odd.is_valid().to_numpy(zero_copy_only=False) & live
        why = FRAGMENT if document else f"has a value that {kind.core} cannot hold"
        verdicts.condemn(offsets, strange, f"{label}: {why}" if document else f"{label} {why}")
        live = live & ~strange
    if kind.is_text:
        return _text(values, column)
    if kind.core == "JSON":
        documents = _text(values, column)
        verdicts.condemn(offsets, _no_object(documents) & live, f"{label}: JSON takes objects only, and this is none")
        return documents
    element = kind.element
    if element is not None:
        if not pa.types.is_list(values.type) and not pa.types.is_large_list(values.type):
            return values
        return _array(values, element, label, offsets, live, verdicts)
    sent, wrong = _scalar(values, kind)
    if wrong is not None and (wrong & live).any():
        verdicts.condemn(offsets, wrong & live, f"{label} has a value that {kind.core} cannot hold")
    return sent


def _array(
    values: pa.Array, element: ClickHouseType, label: str, offsets: np.ndarray[Any, Any], live: Mask, verdicts: Verdicts
) -> pa.Array:  # fmt: skip
    children = values.flatten()
    sent, wrong = _scalar(children, element)
    if wrong is not None and wrong.any():
        rows = np.zeros(len(values), bool)
        rows[pc.list_parent_indices(values).to_numpy()[wrong]] = True
        verdicts.condemn(offsets, rows & live, f"{label} has an element that {element.core} cannot hold")
    lengths = pc.list_value_length(values).fill_null(0).to_numpy()
    starts = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.ListArray.from_arrays(starts, _text_of_times(sent))


def _scalar(values: pa.Array, kind: ClickHouseType) -> tuple[pa.Array, Mask | None]:
    """What is sent, and which rows cannot be."""
    arrow = values.type
    if kind.core == "Date32" and pa.types.is_date(arrow):
        days = values.cast(pa.date32()).cast(pa.int32())
        return values, _outside(days, MIN_DAY, MAX_DAY)
    if kind.digits >= 0 and pa.types.is_timestamp(arrow):
        sent = values.cast(pa.timestamp("us", arrow.tz))
        micros = sent.cast(pa.int64())
        last = (_MAX_NS_DAY if kind.digits == 9 else MAX_DAY + 1) * _DAY_US - 1
        wrong = _outside(micros, MIN_DAY * _DAY_US, last)
        step = 10 ** max(0, 6 - kind.digits)
        if step > 1:
            numbers = _numbers(micros)
            lost = numbers % step != 0
            wrong = lost if wrong is None else wrong | lost
        return sent, wrong if wrong is not None and wrong.any() else None
    if kind.core == "UUID":
        return values, _no_uuid(values)
    if pa.types.is_duration(arrow):
        return values.cast(pa.duration("us")).cast(pa.int64()), None
    return _text_of_times(values), None


def _text_of_times(values: pa.Array) -> pa.Array:
    return values.cast(pa.string()) if pa.types.is_time(values.type) else values


def _no_object(values: pa.Array) -> Mask:
    """Documents that are something else. Of those the server makes `{}` of `null`, and refuses the others."""
    begins = pc.match_substring_regex(values, r"^[ \t\r\n]*\{").fill_null(True)
    return ~begins.to_numpy(zero_copy_only=False)


def _no_uuid(values: pa.Array) -> Mask | None:
    """Texts that are no UUID: into a nullable column the server writes NULL for them."""
    strings = values.cast(pa.large_string())
    _, ends, data = strings.buffers()
    if not len(strings) or data is None:
        return strings.is_valid().to_numpy(zero_copy_only=False) if len(strings) else None
    bounds = np.frombuffer(ends, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    wrong: Mask = _not_hexadecimal(np.frombuffer(data, np.uint8), bounds)
    if not wrong.any():
        return None
    return wrong & strings.is_valid().to_numpy(zero_copy_only=False)


@njit(cache=True, nogil=True)
def _not_hexadecimal(data, bounds):  # type: ignore[no-untyped-def]
    """Which texts are not 32 hexadecimal digits, with the four dashes or without any."""
    wrong = np.zeros(len(bounds) - 1, np.bool_)
    for row in range(len(wrong)):
        first, length = bounds[row], bounds[row + 1] - bounds[row]
        bad = length != 36 and length != 32
        if not bad:
            for at in range(length):
                byte = data[first + at]
                if length == 36 and (at == 8 or at == 13 or at == 18 or at == 23):
                    bad |= byte != 45
                else:
                    bad |= not (48 <= byte <= 57 or 97 <= byte <= 102 or 65 <= byte <= 70)
        wrong[row] = bad
    return wrong


def _outside(numbers: pa.Array, low: int, high: int) -> Mask | None:
    bounds = pc.min_max(numbers)
    if not bounds["min"].is_valid or (bounds["min"].as_py() >= low and bounds["max"].as_py() <= high):
        return None
    plain = _numbers(numbers)
    valid = numbers.is_valid().to_numpy(zero_copy_only=False)
    return valid & ((plain < low) | (plain > high))


def _numbers(values: pa.Array) -> np.ndarray[Any, Any]:
    return (values.fill_null(0) if values.null_count else values).to_numpy()


def _text(values: pa.Array, column: Column) -> pa.Array:
    arrow = values.type
    types = pa.types
    if types.is_string(arrow) or types.is_binary(arrow) or types.is_large_string(arrow) or types.is_large_binary(arrow):
        return values
    if types.is_list(arrow) or types.is_large_list(arrow):
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        strings = render(values, JsonForm.ARRAY).array(valid)
        return strings.cast(pa.large_string())
    if types.is_timestamp(arrow) and arrow.tz:
        return values.cast(pa.timestamp("us")).cast(pa.string())
    return digits(values) if types.is_decimal(arrow) else values.cast(pa.string())
