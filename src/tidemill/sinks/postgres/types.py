"""What a source's column becomes in a table that the postgres sink creates. The page of types is made of this table.

A type of PostgreSQL's own stays what it is. Everything else, MySQL's types among it, goes by what Arrow holds, which
loses nothing: `bigint unsigned` needs twenty digits, an enum is its label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from tidemill.model import postgres_types
from tidemill.model.types import DataType

#: Ranges are text in Arrow, as every type that has no other form; these names are in every PostgreSQL.
_RANGES = ("int4", "int8", "num", "ts", "tstz", "date")
_OWN: dict[str, pa.DataType] = {
    **{name: arrow for name, arrow, _, _ in postgres_types.BUILT_IN.values()},
    **{f"{kind}{suffix}": pa.string() for kind in _RANGES for suffix in ("range", "multirange")},
    "jsonpath": pa.string(),
}
_BY_ARROW: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "smallint",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",
    pa.uint16(): "integer",
    pa.uint32(): "bigint",
    pa.uint64(): "numeric(20,0)",
    pa.float16(): "real",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.large_string(): "text",
    pa.binary(): "bytea",
    pa.large_binary(): "bytea",
    pa.date32(): "date",
    pa.date64(): "date",
}
#: (what the source calls it, what is created, remark), in Markdown, for the page.
RULES: tuple[tuple[str, str, str], ...] = (
    ("PostgreSQL: a built-in type", "the same type", "with its modifiers: `numeric(12,2)`, `timestamp(3) ...`"),
    ("PostgreSQL: an enum, a composite, an extension's or unknown type", "`text`", "its printed form"),
    ("PostgreSQL: a domain", "its base type", "the domain's checks stay at the source"),
    ("PostgreSQL: `element[]`", "`element[]`", "any number of dimensions"),
    ("MySQL: `tinyint`, `smallint`; `tinyint unsigned`", "`smallint`", ""),
    ("MySQL: `mediumint`, `int`; `smallint unsigned`, `year`", "`integer`", ""),
    ("MySQL: `bigint`; `mediumint unsigned`, `int unsigned`", "`bigint`", ""),
    ("MySQL: `bigint unsigned`, `bit(n)`", "`numeric(20,0)`", "all 64 bits; `bit(1)` is `boolean`"),
    ("MySQL: `decimal(p,s)`", "`numeric(p,s)`", ""),
    ("MySQL: `float`, `double`", "`real`, `double precision`", ""),
    ("MySQL: `char`, `varchar`, `text`, `enum`, `set`", "`text`", "a text with a NUL character is refused"),
    ("MySQL: `json`", "`json`", "the text as it came. Where the binlog has only a change of the document, the event is "
     "refused"),
    ("MySQL: `binary`, `varbinary`, `blob`, geometries", "`bytea`", ""),
    ("MariaDB: `uuid`; `inet4`, `inet6`; `vector(n)`", "`uuid`; `text`; `real[]`", ""),
    ("MySQL: `date`, `datetime`", "`date`, `timestamp`", "a zero date is refused: it goes to the dead letters"),
    ("MySQL: `timestamp`", "`timestamp with time zone`", ""),
    ("MySQL: `time`", "`interval`", "MySQL's times reach from -838 to 838 hours"),
    ("any other", "`text`", "the text the source gave"),
)  # fmt: skip


def target_type(kind: DataType, overrides: Mapping[str, str] | None = None) -> str:
    """
    >>> target_type(DataType("bigint unsigned", pa.uint64(), JsonForm.NUMBER))
    'numeric(20,0)'
    """
    if overrides and (chosen := overrides.get(kind.native)):
        return chosen
    if pa.types.is_list(kind.arrow) and postgres_types.delimiter(kind.arrow) == ord(";"):
        return "box[]"  # no other type of PostgreSQL's writes semicolons, and its domains hide its name
    if kind.native.endswith("[]") and pa.types.is_list(kind.arrow):
        return target_type(DataType(kind.native[:-2], kind.arrow.value_type, kind.json), overrides) + "[]"
    if base(kind.native) in _OWN and _same_kind(kind) and _PLAIN.fullmatch(kind.native):
        return kind.native
    if base(kind.native) == "time" and pa.types.is_string(kind.arrow):
        return "interval"
    if _INTERVAL.fullmatch(kind.native) and pa.types.is_string(kind.arrow):
        return kind.native  # interval year to month
    return _of_arrow(kind.arrow)


#: What may stand in a statement as it is: the name comes from another database, which may call its types anything.
_PLAIN = re.compile(r'"char"|[a-z][a-z0-9_ ]*(?:\(\d+(?:, ?-?\d+)?\)[a-z ]*)?')
_INTERVAL = re.compile(r"interval [a-z ]+(?:\(\d\))?")


def base(native: str) -> str:
    """Without modifiers: `timestamp(3) without time zone` is `timestamp without time zone`."""
    return re.sub(r"\s*\([^)]*\)", "", native).strip()


def _same_kind(kind: DataType) -> bool:
    # MySQL has types of the same name (bit, point): it is PostgreSQL's if Arrow holds what it holds for PostgreSQL.
    own = _OWN[base(kind.native)]
    return own == kind.arrow or (base(kind.native) == "numeric" and pa.types.is_decimal(kind.arrow))


def _of_arrow(arrow: pa.DataType) -> str:
    if arrow in _BY_ARROW:
        return _BY_ARROW[arrow]
    if pa.types.is_decimal(arrow):
        return f"numeric({arrow.precision},{arrow.scale})"
    if pa.types.is_timestamp(arrow):
        return "timestamp with time zone" if arrow.tz else "timestamp without time zone"
    if pa.types.is_time(arrow):
        return "time without time zone"
    if pa.types.is_duration(arrow):
        return "interval"
    if pa.types.is_fixed_size_binary(arrow):
        return "bytea"
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return _of_arrow(arrow.value_type) + "[]"
    if pa.types.is_dictionary(arrow):
        return _of_arrow(arrow.value_type)
    return "text"


_WHOLE = ("smallint", "integer", "bigint")


def widens(old: str, new: str) -> bool:
    """Whether every value of `old` is one of `new`, so that the column can be altered without a loss."""
    if old == new:
        return True
    before, after = base(old), base(new)
    if after == "text":
        # bytea's text depends on a setting, and an array is not its text.
        return before != "bytea" and not before.endswith("[]")
    if before in _WHOLE and after in _WHOLE:
        return _WHOLE.index(before) <= _WHOLE.index(after)
    if before in _WHOLE and after == "numeric":
        whole, _ = digits(new)
        return whole >= (5, 10, 19)[_WHOLE.index(before)]
    if before == after == "numeric":
        return all(a <= b for a, b in zip(digits(old), digits(new), strict=True))
    if (before, after) == ("real", "double precision"):
        return True
    if before == after:
        return reaches(old, new)
    return {before, after} <= {"character", "character varying"} and modifier(new) is None


def reaches(old: str, new: str) -> bool:
    """Whether the modifier takes as much: varchar(10) to varchar(20) or varchar, timestamp(3) to timestamp."""
    was, now = modifier(old), modifier(new)
    return now is None or (was is not None and was <= now)


def digits(kind: str) -> tuple[int, int]:
    """Digits before and after the point; a bare numeric takes any number."""
    found = re.search(r"\((\d+)(?:,\s*(-?\d+))?\)", kind)
    if not found:
        return 1 << 20, 1 << 20
    scale = int(found[2] or 0)
    return int(found[1]) - scale, scale


def modifier(kind: str) -> int | None:
    found = re.search(r"\((\d+)\)", kind)
    return int(found[1]) if found else None
