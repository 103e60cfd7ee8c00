"""JavaScript values as a column of an Arrow type, all rows at once."""

from __future__ import annotations

import base64
import binascii
import enum
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.types import DataType, JsonForm
from tidemill.processors._shared.types import cast

_SAFE = 2.0**53


class ScriptKind(enum.IntEnum):
    """What a value is in the script; KIND of prelude.js."""

    NULL = 0
    NUMBER = 1
    STRING = 2
    BOOL = 3
    JSON = 4  # an object or an array, as text
    ABSENT = 5  # the property is not there, or undefined
    INTEGER = 6  # a BigInt, as text


NUMBER_KINDS = (ScriptKind.NUMBER, ScriptKind.BOOL)
TYPES = {
    "integer": DataType("bigint", pa.int64(), JsonForm.NUMBER),
    "number": DataType("double precision", pa.float64(), JsonForm.NUMBER),
    "text": DataType("text", pa.string(), JsonForm.STRING),
    "boolean": DataType("boolean", pa.bool_(), JsonForm.BOOL),
    "json": DataType("json", pa.string(), JsonForm.RAW),
    "timestamp": DataType("timestamp with time zone", pa.timestamp("us", tz="UTC"), JsonForm.STRING),
}
"""Types that a column which the table does not have can get, by the name that `columns:` uses."""
_TYPE_OF_KIND = {
    ScriptKind.NUMBER: TYPES["number"], ScriptKind.STRING: TYPES["text"], ScriptKind.BOOL: TYPES["boolean"],
    ScriptKind.JSON: TYPES["json"], ScriptKind.INTEGER: TYPES["integer"],
}  # fmt: skip
_KIND_NAMES = {
    ScriptKind.NULL: "null", ScriptKind.NUMBER: "a number", ScriptKind.STRING: "a string that does not fit",
    ScriptKind.BOOL: "a boolean", ScriptKind.JSON: "an object or an array", ScriptKind.ABSENT: "nothing",
    ScriptKind.INTEGER: "a BigInt",
}  # fmt: skip


def type_of(kinds: npt.NDArray[np.uint8]) -> DataType | None:
    """Of a new column, from the first value that is one; None while there is only null. A number is a double, whole or
    not: JavaScript does not tell 5 from 5.0, and the next event may have 5.5. A BigInt is an integer."""
    there = (kinds != ScriptKind.NULL) & (kinds != ScriptKind.ABSENT)
    return _TYPE_OF_KIND[ScriptKind(int(kinds[np.argmax(there)]))] if there.any() else None


def describe(kind: int, number: float, wanted: DataType) -> str:
    """What the script gave instead of a value of the type, in words that quote no value."""
    if kind == ScriptKind.NUMBER and pa.types.is_integer(wanted.arrow):
        if number != number or number in (np.inf, -np.inf):
            return "NaN or Infinity"
        return "a number with a fraction" if number != np.floor(number) else "a number beyond its range or beyond 2^53"
    if kind == ScriptKind.INTEGER and pa.types.is_floating(wanted.arrow):
        return "a BigInt with more digits than a double holds"
    return _KIND_NAMES[ScriptKind(kind)]


def declaration(kind: int, learned: DataType) -> str:
    """The type to declare under `columns:` for a column that met both: its learned type, and a value of this kind."""
    if kind == ScriptKind.NUMBER and pa.types.is_integer(learned.arrow):
        return "number"
    if kind == ScriptKind.INTEGER and pa.types.is_floating(learned.arrow):
        return "integer"
    return "json"


def convert(
    kinds: npt.NDArray[np.uint8], numbers: npt.NDArray[np.float64], strings: pa.StringArray, kind: DataType
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """The column, and which of its values do not fit the type."""
    arrow = kind.arrow
    null = (kinds == ScriptKind.NULL) | (kinds == ScriptKind.ABSENT)
    textual = (kinds == ScriptKind.STRING) | (kinds == ScriptKind.INTEGER)
    if kind.json is JsonForm.RAW and (pa.types.is_string(arrow) or pa.types.is_large_string(arrow)):
        return _raw(kinds, numbers, strings, null).cast(arrow), np.empty(0, np.int64)
    if pa.types.is_boolean(arrow):
        values = pa.array(numbers != 0, mask=kinds != ScriptKind.BOOL)
        return values, np.flatnonzero(~null & (kinds != ScriptKind.BOOL))
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return _numeric(kinds, numbers, strings, null, textual, arrow)
    if pa.types.is_nested(arrow):
        return _slowly(strings, kinds == ScriptKind.JSON, null, arrow, orjson.loads)
    if pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow):
        return _slowly(strings, kinds == ScriptKind.STRING, null, arrow, _from_base64)
    fits = kinds == ScriptKind.STRING if pa.types.is_string(arrow) or pa.types.is_large_string(arrow) else textual
    given = strings if fits.all() else pc.if_else(pa.array(fits), strings, pa.scalar(None, pa.string()))
    values, bad = _cast(given, arrow)
    return values, np.union1d(bad, np.flatnonzero(~null & ~fits))


def _numeric(
    kinds: npt.NDArray[np.uint8], numbers: npt.NDArray[np.float64], strings: pa.StringArray,
    null: npt.NDArray[np.bool_], textual: npt.NDArray[np.bool_], arrow: pa.DataType,
) -> tuple[pa.Array, npt.NDArray[np.int64]]:  # fmt: skip
    plain = kinds == ScriptKind.NUMBER
    fits, bad = plain, np.empty(0, np.int64)
    if pa.types.is_integer(arrow):
        with np.errstate(invalid="ignore"):
            least, most = _bounds(arrow)
            fits = plain & (numbers == np.floor(numbers)) & (numbers >= least) & (numbers <= most)
            fits &= np.abs(numbers) < _SAFE  # beyond it a number is no longer sure to be the one that was meant
        values = pa.array(np.where(fits, numbers, 0).astype(np.int64), mask=~fits).cast(arrow)
    else:
        values = pa.array(numbers, mask=~fits).cast(arrow)
    if textual.any():  # digits as a string: how a script keeps what is beyond 2**53
        given = strings if textual.all() else pc.if_else(pa.array(textual), strings, pa.scalar(None, pa.string()))
        exact, bad = _cast(given, arrow)
        if pa.types.is_floating(arrow) and not len(bad):
            bad = _find_rounded(kinds, strings, exact)
        values = pc.coalesce(values, exact)
    return values, np.union1d(bad, np.flatnonzero(~null & ~fits & ~textual))


def _find_rounded(kinds: npt.NDArray[np.uint8], strings: pa.StringArray, floats: pa.Array) -> npt.NDArray[np.int64]:
    """BigInts that lost digits: who sets one means all of them. A string of digits is read as the column reads it."""
    long = (kinds == ScriptKind.INTEGER) & (pc.utf8_length(strings).fill_null(0).to_numpy() > 15)
    lost = [n for n in np.flatnonzero(long).tolist() if int(strings[n].as_py()) != floats[n].as_py()]
    return np.array(lost, np.int64)


def _raw(
    kinds: npt.NDArray[np.uint8], numbers: npt.NDArray[np.float64], strings: pa.StringArray, null: npt.NDArray[np.bool_]
) -> pa.Array:
    """JSON text of any value. Of a column that the table has, prelude.js made it already."""
    if ((kinds == ScriptKind.JSON) | null).all():
        return strings
    made = [
        None if gone else text if kind == ScriptKind.JSON
        else orjson.dumps(text if text is not None else bool(number) if kind == ScriptKind.BOOL else number).decode()
        for kind, number, text, gone in zip(kinds, numbers.tolist(), strings.to_pylist(), null, strict=True)
    ]  # fmt: skip
    return pa.array(made, pa.string())


def _cast(strings: pa.Array, arrow: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    if pa.types.is_timestamp(arrow) and arrow.tz is None:
        strings = pc.replace_substring_regex(strings, r"Z$", "")
    try:
        return cast(strings, arrow), np.empty(0, np.int64)
    except pa.ArrowInvalid:
        pass
    bad = [n for n, text in enumerate(strings) if text.is_valid and not _casts(strings.slice(n, 1), arrow)]
    return pa.nulls(len(strings), arrow), np.array(bad or range(len(strings)), np.int64)


def _casts(text: pa.Array, arrow: pa.DataType) -> bool:
    try:
        cast(text, arrow)
    except pa.ArrowInvalid:
        return False
    return True


def _slowly(
    strings: pa.StringArray, fits: npt.NDArray[np.bool_], null: npt.NDArray[np.bool_], arrow: pa.DataType, read: Any
) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """For the rare: lists, structs and bytes that a script set."""
    made: list[Any] = []
    bad = []
    for number, (text, good) in enumerate(zip(strings.to_pylist(), fits, strict=True)):
        value = None
        if good:
            try:
                value = pa.scalar(read(text), arrow).as_py()
            except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, binascii.Error):
                bad.append(number)
        made.append(value)
    return pa.array(made, arrow), np.union1d(np.array(bad, np.int64), np.flatnonzero(~null & ~fits))


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _bounds(arrow: pa.DataType) -> tuple[float, float]:
    width = arrow.bit_width
    return (-(2.0 ** (width - 1)), 2.0 ** (width - 1) - 1) if pa.types.is_signed_integer(arrow) else (0, 2.0**width - 1)
