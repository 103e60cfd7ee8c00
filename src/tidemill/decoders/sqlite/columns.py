"""Cells of one column as an Arrow array, and the exact text of values that it cannot hold.

SQLite tells keys apart by their storage class too: 1, '1' and X'31' may be three keys of a column without a type. So in
a key no two values have one text, neither in a block nor in JSON: a text that looks like a value of another class that
the column may hold stands in quotes, and beside base64 so does every text, and a number in a CAST.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.decoders.sqlite.cells import ABSENT, BLOB, INTEGER, NULL, REAL, TEXT, SqliteCells, gather
from tidemill.decoders.sqlite.types import SqliteKind, kind_of
from tidemill.model.columns import booleans, column
from tidemill.model.types import DataType

_EXACT = 1 << 53  # integers up to here are doubles, too
_LITERAL = r"(?:[Xx]'|CAST\(X'|').*'(?: AS TEXT\))?"
_NUMBER = r"-?(?:[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|Infinity)"
_FORM = re.compile(f"{_LITERAL}|{_NUMBER}", re.DOTALL)

Mask = npt.NDArray[np.bool_]


def to_arrow(cells: SqliteCells, j: int, kind: pa.DataType) -> tuple[pa.Array, Mask | None]:
    """The array, and where it is null although the database has a value; None where that is nowhere."""
    storage, number = cells.kind[j], cells.number[j]
    if pa.types.is_integer(kind):
        held = storage == INTEGER
        array = column(np.where(held, number, 0), kind, ~held)
    elif pa.types.is_floating(kind):
        whole = storage == INTEGER
        held = (storage == REAL) | (whole & (number <= _EXACT) & (number >= -_EXACT))
        reals = np.where(whole, number.astype(np.float64), np.ascontiguousarray(number).view(np.float64))
        array = column(np.where(held, reals, 0.0), kind, ~held)
    elif pa.types.is_boolean(kind):
        held = (storage == INTEGER) & ((number == 0) | (number == 1))
        bits = pa.py_buffer(np.packbits(held & (number == 1), bitorder="little"))
        array = pa.Array.from_buffers(kind, len(held), [booleans(held).buffers()[1], bits])
    else:
        held = storage == (BLOB if pa.types.is_binary(kind) else TEXT)
        array = _strings(cells, j, held, kind)
        if pa.types.is_string(kind) and not _is_utf8(array):
            held &= _valid(cells, j, held)
            array = _strings(cells, j, held, kind)
    bad = ~held & (storage != NULL) & (storage != ABSENT)
    return array, bad if bad.any() else None


def key_to_arrow(cells: SqliteCells, j: int, kind: DataType) -> tuple[pa.Array, Mask | None]:
    """As `to_arrow`, of a key: a text that could be taken for another value does not stand in the array."""
    array, bad = to_arrow(cells, j, kind.arrow)
    if not pa.types.is_string(kind.arrow):
        return array, bad
    form = f"{_LITERAL}|{_NUMBER}" if _may_hold_numbers(kind) else _LITERAL
    like = pc.fill_null(pc.match_substring_regex(array, f"(?s)^(?:{form})$"), False)
    if not pc.any(like).as_py():
        return array, bad
    shown = like.to_numpy(zero_copy_only=False)
    return pc.if_else(like, pa.scalar(None, kind.arrow), array), shown if bad is None else bad | shown


def shows_number(text: str, kind: DataType) -> bool:
    """Whether a text that stands for a key of a column of strings is that of a number."""
    return _may_hold_numbers(kind) and re.fullmatch(_NUMBER, text) is not None


def _may_hold_numbers(kind: DataType) -> bool:
    """Of columns of strings. One of type TEXT makes a text of every number."""
    return kind_of(kind.native) is not SqliteKind.TEXT


def odd_strings(cells: SqliteCells, j: int, rows: npt.NDArray[Any], *, beside_base64: bool = False) -> pa.Array:
    """As docs/reference/sqlite-types.md lists them."""
    if (cells.kind[j, rows] == INTEGER).all() and not beside_base64:
        return column(np.ascontiguousarray(cells.number[j, rows]), pa.int64()).cast(pa.string())
    return pa.array([odd_text(cells, j, row, beside_base64=beside_base64) for row in rows.tolist()], pa.string())


def odd_text(cells: SqliteCells, j: int, row: int, *, beside_base64: bool = False) -> str:
    """`beside_base64`: of a key whose blobs JSON shows in base64, which looks like a number or any text."""
    match int(cells.kind[j, row]):
        case 1:
            number = str(int(cells.number[j, row]))
            return f"CAST({number} AS INTEGER)" if beside_base64 else number
        case 2:
            real = float(cells.number[j, row : row + 1].view(np.float64)[0])
            number = ("Infinity" if real > 0 else "-Infinity") if math.isinf(real) else repr(real)
            return f"CAST({number} AS REAL)" if beside_base64 else number
        case 3:
            data = cells.bytes_of(j, row)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                return f"CAST(X'{data.hex().upper()}' AS TEXT)"
            quoted = beside_base64 or _FORM.fullmatch(text)
            return "'" + text.replace("'", "''") + "'" if quoted else text
        case _:
            return f"X'{cells.bytes_of(j, row).hex().upper()}'"


def _strings(cells: SqliteCells, j: int, held: Mask, kind: pa.DataType) -> pa.Array:
    sizes = np.where(held, cells.size[j], 0)
    offsets = np.zeros(len(held) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.empty(int(offsets[-1]), np.uint8)
    gather(cells.heap, cells.number[j], cells.size[j], held, offsets, data)
    valid = None if held.all() else booleans(held).buffers()[1]
    return pa.Array.from_buffers(kind, len(held), [valid, pa.py_buffer(offsets), pa.py_buffer(data)])


def _is_utf8(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _valid(cells: SqliteCells, j: int, held: Mask) -> Mask:
    found = np.zeros(len(held), np.bool_)
    for row in np.flatnonzero(held).tolist():
        try:
            cells.bytes_of(j, row).decode()
            found[row] = True
        except UnicodeDecodeError:
            pass
    return found
