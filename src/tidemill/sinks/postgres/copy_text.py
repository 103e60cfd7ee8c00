"""Arrow columns as the text of COPY: one line per row, values between tabs, `\\N` for NULL. No Python object per row.

Text, not the binary form: PostgreSQL parses it with the column's own input function, so every type has it, also types
that only the target knows, and a value that Arrow could not hold (an `infinity`, a nested array) goes in as the exact
text the source printed.

Escapes of COPY: https://www.postgresql.org/docs/current/sql-copy.html#SQL-COPY-FILE-FORMATS
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import Refused

_HEX = np.array([f"{byte:02x}".encode() for byte in range(256)], "S2").view(np.uint16)
_DAY = 86_400_000_000  # microseconds
_YEAR_1, _YEAR_10000 = -719_162, 2_932_897  # in days since 1970
# What stands for itself nowhere in a line: the backslash first, or it would escape the others' backslashes.
_ESCAPES = ((b"\\", b"\\\\"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))


def lines(columns: Sequence[pa.Array]) -> pa.Buffer:
    """What goes over the wire for these rows. The columns are texts as `column` makes them, all of one length."""
    *others, last = columns
    # The end of a line belongs to its last value: whole lines would be copied once more for it.
    nothing, end = pa.scalar(b"", pa.large_binary()), pa.scalar(b"\n", pa.large_binary())
    ended = pc.binary_join_element_wise(last, nothing, end, null_handling="replace", null_replacement=b"\\N")
    if not others:
        return _data(ended)
    tab = pa.scalar(b"\t", pa.large_binary())
    return _data(pc.binary_join_element_wise(*others, ended, tab, null_handling="replace", null_replacement=b"\\N"))


def column(values: pa.Array) -> pa.Array:
    """Escaped text of each value as `large_binary`; null stays null."""
    return escape(plain(values))


def escape(strings: pa.Array) -> pa.Array:
    """For COPY. Most columns have nothing to escape, which a look at their bytes tells faster than a replacement."""
    strings = strings.cast(pa.large_binary())
    content = _data(strings).to_pybytes()
    for char, code in _ESCAPES:
        if char in content:
            strings = pc.replace_substring(strings, pattern=char, replacement=code)
    return strings


def plain(values: pa.Array) -> pa.Array:
    """The text that PostgreSQL's input function takes for each value."""
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values
    if pa.types.is_dictionary(kind):
        return plain(values.dictionary_decode())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hex(values)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _timestamps(values)
    if pa.types.is_duration(kind):
        return _durations(values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _arrays(values)
    try:
        return pc.cast(values, pa.string())
    except pa.ArrowException as error:
        raise Refused(
            f"a column of Arrow type {kind} has no text for PostgreSQL", fix="Leave the column out of the capture."
        ) from error


def _timestamps(values: pa.Array) -> pa.Array:
    if pa.types.is_timestamp(values.type):
        # The session's time zone is UTC. Arrow prints a zone fifty times slower than none.
        values = values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
        days = np.floor_divide(_numbers(values), _DAY)
    else:
        values = values.cast(pa.date32())
        days = _numbers(values)
    strings = pc.cast(values, pa.string())
    beyond = (days < _YEAR_1) | (days >= _YEAR_10000)
    if not beyond.any():
        return strings
    # Rare: PostgreSQL writes BC after the date, and Arrow's years wrap around.
    numbers = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    exact = [_beyond(v.as_py(), values.type) if v.is_valid else None for v in numbers.filter(pa.array(beyond))]
    return pc.replace_with_mask(strings, pa.array(beyond), pa.array(exact, pa.string()))


def _beyond(number: int, kind: pa.DataType) -> str:
    """A date or timestamp of any year, as PostgreSQL reads it."""
    days, rest = (number, None) if pa.types.is_date(kind) else divmod(number, _DAY)
    shifted = days + 719_468  # days since 1 March of the year 0, the calendar's own beginning
    era, day = divmod(shifted, 146_097)
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    month = month + 3 if month < 10 else month - 9
    year += era * 400 + (1 if month <= 2 else 0)
    clock = ""
    if rest is not None:
        seconds, micros = divmod(rest, 1_000_000)
        clock = f" {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micros:06}"
    return f"{year:04}-{month:02}-{day:02}{clock}" if year > 0 else f"{1 - year:04}-{month:02}-{day:02}{clock} BC"


def _durations(values: pa.Array) -> pa.Array:
    micros = values.cast(pa.duration("us")).cast(pa.int64())
    unit = pa.scalar(" microseconds")
    return pc.binary_join_element_wise(pc.cast(micros, pa.string()), unit, pa.scalar(""))


def _hex(values: pa.Array) -> pa.Array:
    values = values.cast(pa.large_binary())
    content = np.frombuffer(_data(values), np.uint8)
    offsets = _offsets(values)
    doubled = pa.Array.from_buffers(
        pa.large_binary(), len(values),
        [None, pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(_HEX[content])],
    )  # fmt: skip
    strings = pc.binary_join_element_wise(
        pa.scalar(b"\\x", pa.large_binary()), doubled, pa.scalar(b"", pa.large_binary())
    )
    return pc.if_else(values.is_valid(), strings, pa.scalar(None, pa.large_binary()))


def _arrays(values: pa.Array) -> pa.Array:
    """`{1,NULL,"a \\"b\\""}`: every element quoted, which all types take."""
    from tidemill.model.postgres_types import delimiter

    comma = bytes([delimiter(values.type)])
    offsets = values.offsets.to_numpy().astype(np.int64)
    first = int(offsets[0]) if len(offsets) else 0
    elements = plain(values.values.slice(first, (int(offsets[-1]) - first) if len(offsets) else 0))
    elements = elements.cast(pa.large_binary())
    content = _data(elements).to_pybytes()
    for char, code in ((b"\\", b"\\\\"), (b'"', b'\\"')):
        if char in content:
            elements = pc.replace_substring(elements, pattern=char, replacement=code)
    quote, none = pa.scalar(b'"', pa.large_binary()), pa.scalar(b"", pa.large_binary())
    elements = pc.binary_join_element_wise(quote, elements, quote, none).fill_null(
        pa.scalar(b"NULL", pa.large_binary())
    )
    lists = pa.LargeListArray.from_arrays(pa.array(offsets - first), elements)
    joined = pc.binary_join(lists, pa.scalar(comma, pa.large_binary()))
    opening, closing = pa.scalar(b"{", pa.large_binary()), pa.scalar(b"}", pa.large_binary())
    strings = pc.binary_join_element_wise(opening, joined, closing, none)
    return pc.if_else(values.is_valid(), strings, pa.scalar(None, pa.large_binary()))


def _numbers(values: pa.Array) -> np.ndarray[Any, Any]:
    integers = values.cast(pa.int32() if values.type.bit_width == 32 else pa.int64())
    return np.asarray(integers.fill_null(0).to_numpy())


def _offsets(strings: pa.Array) -> np.ndarray[Any, Any]:
    if not len(strings):
        return np.zeros(1, np.int64)
    return np.frombuffer(strings.buffers()[1], np.int64)[strings.offset : strings.offset + len(strings) + 1]


def _data(strings: pa.Array) -> pa.Buffer:
    """The bytes of a large_binary's values, one after the other."""
    offsets = _offsets(strings)
    content = strings.buffers()[2]
    if content is None:
        return pa.py_buffer(b"")
    return content.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
