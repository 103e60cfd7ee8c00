"""What a source's column becomes in ClickHouse, and which ClickHouse type holds all values of another.

Pure functions over type names, as `system.columns` prints them. The reference page is made of `RULES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidemill.errors import Refused
from tidemill.model.table import Column
from tidemill.model.types import JsonForm

#: (PostgreSQL, MySQL, ClickHouse, remark), in Markdown: the page of the reference.
RULES: tuple[tuple[str, str, str, str], ...] = (
    ("`boolean`", "`bit(1)`", "`Bool`", "MySQL's `bool` is `tinyint`"),
    ("`smallint`, `integer`, `bigint`", "signed integers", "`Int8` … `Int64`", "of the same width"),
    ("`oid`, `xid`, `cid`", "`unsigned` integers, `year`, `bit(n)`", "`UInt8` … `UInt64`", "all 64 bits"),
    ("`real`, `double precision`", "`float`, `double`", "`Float32`, `Float64`", "NaN and infinities are kept"),
    ("`numeric(p,s)`, p up to 76", "`decimal(p,s)`", "`Decimal(p, s)`", "NaN and infinity: dead letter"),
    ("`numeric`, `money`", "—", "`String`", "the exact text, NaN too"),
    ("`text`, `varchar`, `char`, …", "`char`, `varchar`, `text`", "`String`", ""),
    ("an enum", "`enum(…)`, `set(…)`", "`String`, from MySQL `LowCardinality(String)`",
     "its label; a new label needs no ALTER, as `Enum8` would"),
    ("`bytea`", "`binary`, `varbinary`, `blob`, geometries", "`String`", "the bytes themselves"),
    ("`uuid`", "`uuid` of MariaDB", "`UUID`", "a text that is none (a processor may make one): dead letter"),
    ("`json`, `jsonb`", "`json`", "`String`, or `JSON` with `json_type: json`",
     "`JSON` takes objects only: other documents, `null` too, are dead letters, and so is an event of which the binlog "
     "has only a change of the document. It keeps paths, not text: `{\"a\": null}` and `{\"a\": {}}` become `{}`, "
     "`{\"a.b\": 1}` becomes `{\"a\": {\"b\": 1}}`, fractions are `Float64`, integers beyond 64 bits strings"),
    ("`date`", "`date`", "`Date32`", "1900-01-01 to 2299-12-31; outside, infinity, zero dates: dead letter"),
    ("`timestamp(p)`", "`datetime(p)`", "`DateTime64(p, 'UTC')`",
     "shown as at the source; p as declared (PostgreSQL: 6, MySQL: 0, if not); 1900 to 2299, else dead letter"),
    ("`timestamp(p) with time zone`", "`timestamp(p)`", "`DateTime64(p, 'UTC')`", "likewise"),
    ("`time`", "`time`", "`String`", "`24:00:00` and `-838:59:59` too"),
    ("`element[]` NOT NULL", "`vector(n)` of MariaDB, NOT NULL", "`Array(Nullable(element))`",
     "several dimensions: dead letter, because the source sends them as text"),
    ("`element[]`", "`vector(n)` of MariaDB", "`Nullable(String)`, or `Array(…)` with `null_arrays: empty`",
     "JSON text: an array of ClickHouse cannot be NULL, and `[]` is another value"),
    ("every other type", "every other type", "`String`", "the text the source prints"),
)  # fmt: skip

MIN_DAY, MAX_DAY = -25567, 120529  # 1900-01-01, 2299-12-31: https://clickhouse.com/docs/sql-reference/data-types/date32

JsonType = Literal["string", "json"]
NullArrays = Literal["text", "empty"]

_MODIFIED = re.compile(r"^(\w[\w ]*?)\s*(?:\((\d+)\))?(\s+with(?:out)? time zone)?$")
_LABELS = re.compile(r"^(enum|set)\s*\(", re.IGNORECASE)
_UNIT_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_INTEGER = re.compile(r"^(U?)Int(8|16|32|64|128|256)$")
_DECIMAL = re.compile(r"^Decimal\((\d+), (\d+)\)$")
_DATETIME = re.compile(r"^DateTime64\((\d)(?:, '([^']*)')?\)$")


@dataclass(frozen=True, slots=True)
class ClickHouseType:
    """A ClickHouse type without its wrappers. Arrays cannot be nullable; their elements say it themselves."""

    core: str
    nullable: bool = False
    low_cardinality: bool = False

    def __str__(self) -> str:
        text = f"Nullable({self.core})" if self.nullable else self.core
        return f"LowCardinality({text})" if self.low_cardinality else text

    @property
    def element(self) -> ClickHouseType | None:
        return parse(self.core[len("Array(") : -1]) if self.core.startswith("Array(") else None

    @property
    def digits(self) -> int:
        """Of a `DateTime64`: after the second. -1 for all other types."""
        found = _DATETIME.match(self.core)
        return int(found[1]) if found else -1

    @property
    def in_utc(self) -> bool:
        return self.core.endswith("'UTC')")

    @property
    def is_text(self) -> bool:
        return self.core == "String" or self.core.startswith(("Enum8(", "Enum16("))


def parse(text: str) -> ClickHouseType:
    low = text.startswith("LowCardinality(")
    text = text[len("LowCardinality(") : -1] if low else text
    nullable = text.startswith("Nullable(")
    return ClickHouseType(text[len("Nullable(") : -1] if nullable else text, nullable, low)


def kind_of(column: Column, *, key: bool, json_type: JsonType, null_arrays: NullArrays) -> ClickHouseType:
    """The type a column is created with."""
    nullable = column.nullable and not key
    arrow, native = column.type.arrow, column.type.native
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        if nullable and null_arrays == "text":
            return ClickHouseType("String", nullable=True)
        return ClickHouseType(
            f"Array({ClickHouseType(_core(arrow.value_type, _element(native), column), nullable=True)})"
        )
    if column.type.json is JsonForm.RAW:
        return ClickHouseType("JSON" if json_type == "json" and not key else "String", nullable)
    return ClickHouseType(_core(arrow, native, column), nullable, low_cardinality=bool(_LABELS.match(native)))


def _element(native: str) -> str:
    return native.removesuffix("[]")


def _core(arrow: pa.DataType, native: str, column: Column) -> str:
    types = pa.types
    if types.is_boolean(arrow):
        return "Bool"
    if types.is_integer(arrow):
        return f"{'UInt' if types.is_unsigned_integer(arrow) else 'Int'}{arrow.bit_width}"
    if types.is_floating(arrow):
        return "Float64" if arrow.bit_width == 64 else "Float32"
    if types.is_decimal(arrow):
        return f"Decimal({arrow.precision}, {arrow.scale})"
    if types.is_date(arrow):
        return "Date32"
    if types.is_timestamp(arrow):
        # Also without a zone at the source: a column without one would be shown in the server's.
        return f"DateTime64({_digits(native, arrow)}, 'UTC')"
    if types.is_duration(arrow):  # no source has it today; microseconds
        return "Int64"
    if native == "uuid":
        return "UUID"
    if _is_text(arrow) or types.is_time(arrow):
        return "String"
    raise Refused(
        f'column "{column.name}" is of a type that has no place in ClickHouse: {native} ({arrow})',
        fix="Leave the column or the table out at the source.",
    )


def _is_text(arrow: pa.DataType) -> bool:
    types = pa.types
    text_types = (
        types.is_string,
        types.is_large_string,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return any(test(arrow) for test in text_types)


def _digits(native: str, arrow: pa.DataType) -> int:
    held = _UNIT_DIGITS[arrow.unit]
    found = _MODIFIED.match(native)
    if found is None:
        return held
    if found[2]:
        return min(int(found[2]), held)
    # MySQL writes `datetime` for whole seconds; PostgreSQL's `timestamp without time zone` has microseconds.
    return 0 if found[1].lower() in ("datetime", "timestamp") and not found[3] else held


def holds(there: ClickHouseType, wanted: ClickHouseType) -> bool:
    """Whether every value of `wanted` can be written into a column of type `there` without loss.

    What only the server can know (a label of an `Enum8`, a document of a `JSON`) counts as held: it refuses the row.
    """
    if wanted.nullable and not there.nullable and there.element is None:
        return False
    if there.core == wanted.core or there.is_text:
        return True
    if {there.core, wanted.core} <= {"String", "JSON"} or (there.core, wanted.core) == ("UInt8", "Bool"):
        return True
    mine, theirs = _INTEGER.match(there.core), _INTEGER.match(wanted.core)
    if mine and theirs:
        if mine[1] == theirs[1]:
            return int(mine[2]) >= int(theirs[2])
        return not mine[1] and int(mine[2]) > int(theirs[2])
    if wanted.core == "Float32":
        return there.core == "Float64"
    have, need = _DECIMAL.match(there.core), _DECIMAL.match(wanted.core)
    if have and need:
        return int(have[2]) >= int(need[2]) and int(have[1]) - int(have[2]) >= int(need[1]) - int(need[2])
    if there.digits >= 0 and wanted.digits >= 0:
        return 8 >= there.digits >= wanted.digits
    inner, other = there.element, wanted.element
    return inner is not None and other is not None and holds(inner, other)


def union(there: ClickHouseType, wanted: ClickHouseType) -> ClickHouseType | None:
    """A type for the values of both, if there is one to change `there` into; decimals meet in the middle."""
    nullable = (there.nullable or wanted.nullable) and there.element is None
    for candidate in (wanted, there):
        merged = ClickHouseType(candidate.core, nullable, there.low_cardinality and candidate.core == there.core)
        if holds(merged, wanted) and holds(merged, there):
            return merged
    have, need = _DECIMAL.match(there.core), _DECIMAL.match(wanted.core)
    if have and need:
        scale = max(int(have[2]), int(need[2]))
        precision = scale + max(int(have[1]) - int(have[2]), int(need[1]) - int(need[2]))
        if precision <= 76:
            return ClickHouseType(f"Decimal({precision}, {scale})", nullable)
    return None
