"""Whether who knows one version of a table can read the rows of another.

`backward`: with the new version, rows of the old one can be read. `forward`: with the old version, rows of the new one.
`full`: both. Columns are matched by name, as a consumer matches them: a renamed column is one that went and one that
came.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import pyarrow as pa

from tidemill.model.table import Column, Table


class Compatibility(enum.StrEnum):
    FULL = "full"
    BACKWARD = "backward"
    FORWARD = "forward"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """`backward` and `forward` are reasons why it is not that; empty where it is."""

    backward: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()

    @property
    def compatibility(self) -> Compatibility:
        match bool(self.backward), bool(self.forward):
            case False, False:
                return Compatibility.FULL
            case False, True:
                return Compatibility.BACKWARD
            case True, False:
                return Compatibility.FORWARD
            case _:
                return Compatibility.NONE


def compare(old: Table, new: Table) -> VersionComparison:
    return VersionComparison(tuple(_obstacles(old, new)), tuple(_obstacles(new, old)))


def _obstacles(written: Table, reader: Table) -> list[str]:
    """Why rows as `written` cannot all be read as rows of `reader`."""
    has = {column.name: column for column in written.columns}
    found = []
    for column in reader.columns:
        source = has.get(column.name)
        if source is None:
            if not column.nullable:
                found.append(f"column {column.name} is not null, and rows without it have no value for it")
        elif not _fits(source, column):
            found.append(f"column {column.name}: {source.type.native} does not fit into {column.type.native}")
        elif source.nullable and not column.nullable:
            found.append(f"column {column.name} may be null, and the other version does not allow it")
    return found


def _fits(source: Column, target: Column) -> bool:
    """Whether every value of one column is one of the other's, in the same form."""
    one, other = source.type, target.type
    if one.native == other.native and one.arrow == other.arrow:
        return True
    if one.json != other.json:
        return False
    a, b = one.arrow, other.arrow
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        signs = pa.types.is_signed_integer(a), pa.types.is_signed_integer(b)
        match signs:
            case (False, True):
                return bool(a.bit_width < b.bit_width)
            case (True, False):
                return False
            case _:
                return bool(a.bit_width <= b.bit_width)
    if pa.types.is_floating(a) and pa.types.is_floating(b):
        return bool(a.bit_width <= b.bit_width)
    if pa.types.is_decimal(a) and pa.types.is_decimal(b):
        return bool(a.scale <= b.scale and a.precision - a.scale <= b.precision - b.scale)
    if a != b:
        return False
    if pa.types.is_string(a) and _family(one.native) in _TEXT and _family(other.native) in _TEXT:
        return _length(one.native) <= _length(other.native)
    return False


_TEXT = {"text", "character varying", "varchar", "char", "character", "tinytext", "mediumtext", "longtext"}


def _family(native: str) -> str:
    return re.sub(r"\(.*", "", native.lower()).strip()


def _length(native: str) -> float:
    """Characters that a text type holds; without a number, as many as one likes."""
    fixed = {"tinytext": 255.0}
    found = re.search(r"\((\d+)\)", native)
    return float(found[1]) if found else fixed.get(_family(native), float("inf"))
