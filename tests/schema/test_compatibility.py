"""Which versions of a table can be read as which."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.schema.compatibility import Compatibility, compare

INT = DataType("integer", pa.int32(), JsonForm.NUMBER)
BIGINT = DataType("bigint", pa.int64(), JsonForm.NUMBER)
UNSIGNED = DataType("int unsigned", pa.uint32(), JsonForm.NUMBER)
REAL = DataType("real", pa.float32(), JsonForm.NUMBER)
DOUBLE = DataType("double precision", pa.float64(), JsonForm.NUMBER)
TEXT = DataType("text", pa.string(), JsonForm.STRING)
SHORT = DataType("character varying(10)", pa.string(), JsonForm.STRING)
LONG = DataType("character varying(20)", pa.string(), JsonForm.STRING)
UUID = DataType("uuid", pa.string(), JsonForm.STRING)
SMALL = DataType("numeric(10,2)", pa.decimal128(10, 2), JsonForm.STRING)
LARGE = DataType("numeric(14,4)", pa.decimal128(14, 4), JsonForm.STRING)
FINE = DataType("numeric(10,4)", pa.decimal128(10, 4), JsonForm.STRING)


def table(*columns: Column) -> Table:
    return Table("shop", "public", "t", columns, ("id",))


def of(kind: DataType, *, nullable: bool = True) -> Table:
    return table(Column("v", kind, nullable=nullable))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (INT, INT, Compatibility.FULL),
        (INT, BIGINT, Compatibility.BACKWARD),
        (BIGINT, INT, Compatibility.FORWARD),
        (UNSIGNED, BIGINT, Compatibility.BACKWARD),
        (UNSIGNED, INT, Compatibility.NONE),
        (REAL, DOUBLE, Compatibility.BACKWARD),
        (SMALL, LARGE, Compatibility.BACKWARD),
        (SMALL, FINE, Compatibility.NONE),
        (SHORT, LONG, Compatibility.BACKWARD),
        (LONG, TEXT, Compatibility.BACKWARD),
        (TEXT, SHORT, Compatibility.FORWARD),
        (TEXT, UUID, Compatibility.NONE),
        (TEXT, INT, Compatibility.NONE),
    ],
    ids=lambda value: value.native if isinstance(value, DataType) else str(value),
)
def test_a_change_of_type_is_compatible_with_what_it_still_holds(
    old: DataType, new: DataType, expected: Compatibility
) -> None:
    assert compare(of(old), of(new)).compatibility is expected


@pytest.mark.parametrize("nullable", [True, False])
def test_a_column_that_came_or_went_matters_where_it_is_not_null(nullable: bool) -> None:
    narrow, wide = table(Column("id", INT)), table(Column("id", INT), Column("v", TEXT, nullable=nullable))
    assert compare(narrow, wide).compatibility is (Compatibility.FULL if nullable else Compatibility.FORWARD)
    assert compare(wide, narrow).compatibility is (Compatibility.FULL if nullable else Compatibility.BACKWARD)


def test_not_null_may_be_dropped_and_not_be_added() -> None:
    assert compare(of(INT, nullable=False), of(INT)).compatibility is Compatibility.BACKWARD
    found = compare(of(INT), of(INT, nullable=False))
    assert found.compatibility is Compatibility.FORWARD
    assert found.backward == ("column v may be null, and the other version does not allow it",)


def test_a_renamed_column_is_one_that_went_and_one_that_came() -> None:
    old, new = table(Column("a", INT, nullable=False)), table(Column("b", INT, nullable=False))
    assert compare(old, new).compatibility is Compatibility.NONE
