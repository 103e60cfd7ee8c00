"""Ranges, enumerations and formats of a column's values, computed on whole columns."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.columns import values
from tidemill.schema.sensing.options import DeclaredColumn
from tidemill.schema.sensing.profile import Range

_LEAP_YEAR = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    r"(\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d"

# What a whole text must look like. The first five are formats of JSON Schema 2020-12, and days are those that there
# are: a validator may know better than a pattern.
FORMATS = {
    "date": rf"^{_DATE}$",
    "date-time": rf"^{_DATE}[Tt]{_CLOCK}:[0-5]\d(\.\d+)?([Zz]|[+-]{_CLOCK})$",
    "uuid": r"^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$",
    "email": r"^[^\s@]+@[^\s@.]+(\.[^\s@.]+)+$",
    "uri": r"^[A-Za-z][A-Za-z0-9+.-]*://[^\s]+$",
    "integer": r"^[+-]?\d+$",
    "number": r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$",
}

Mask = npt.NDArray[np.bool_]


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def range_of(column: pa.Array) -> Range | None:
    """Of numbers, dates and times; None for other types (durations among them), and where there is no value."""
    kind = column.type
    spans = pa.types.is_interval(kind) or pa.types.is_duration(kind)  # Arrow does not order them
    if not (is_number(kind) or pa.types.is_temporal(kind)) or spans:
        return None
    found = pc.min_max(column)
    bounds = [found["min"], found["max"]]
    if not all(bound.is_valid for bound in bounds):
        return None
    if pa.types.is_floating(kind) and not all(math.isfinite(bound.as_py()) for bound in bounds):
        return None
    low, high = (_bounds(bound) for bound in bounds)
    return low, high


def _bounds(value: pa.Scalar) -> tuple[str, str]:
    if pa.types.is_temporal(value.type):
        return str(value.value), str(value.cast(pa.string()).as_py())
    text = str(value.as_py())
    return text, text


def enumeration_of(column: pa.Array, most: int) -> frozenset[str] | None:
    """The distinct values as text, or None for too many of them. Of texts, integers and booleans."""
    distinct = pc.unique(column).drop_null()
    if len(distinct) > most:
        return None
    return frozenset(str(text) for text in distinct.cast(pa.string()).to_pylist())


def can_be_listed(kind: pa.DataType) -> bool:
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)


def formats_of(column: pa.Array, candidates: Iterable[str]) -> frozenset[str]:
    """Which of the formats every value has. The column has no nulls and at least one value."""
    return frozenset(name for name in candidates if pc.all(pc.match_substring_regex(column, FORMATS[name])).as_py())


def out_of_range(column: pa.Array, declared: DeclaredColumn) -> Mask | None:
    """Where a value is beyond what is declared; of texts their length counts. NULL is never beyond."""
    wrong = np.zeros(len(column), np.bool_)
    if declared.values is not None and can_be_listed(column.type):
        known = pc.is_in(column.cast(pa.string()), value_set=pa.array(declared.values, pa.string()))
        wrong |= ~booleans(pc.or_(known, pc.is_null(column)))
    if declared.min is not None or declared.max is not None:
        numbers = pc.utf8_length(column) if is_text(column.type) else column
        if is_number(numbers.type):
            numbers = numbers.cast(pa.float64(), safe=False)
            if declared.min is not None:
                wrong |= booleans(pc.less(numbers, declared.min))
            if declared.max is not None:
                wrong |= booleans(pc.greater(numbers, declared.max))
    return wrong if wrong.any() else None


def mismatches(column: pa.Array, declared: DeclaredColumn) -> Mask | None:
    """Where a text is not what is declared of it: an integer, a number, a format."""
    wrong = np.zeros(len(column), np.bool_)
    if is_text(column.type):
        for name in (declared.type, declared.format):
            if name is not None and name in FORMATS:
                wrong |= ~booleans(pc.match_substring_regex(column, FORMATS[name]), null=True)
    return wrong if wrong.any() else None


def booleans(column: pa.Array, *, null: bool = False) -> Mask:
    return values(column.fill_null(null).cast(pa.uint8()), np.uint8).astype(np.bool_)
