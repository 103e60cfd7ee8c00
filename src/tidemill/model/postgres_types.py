"""PostgreSQL types: what each becomes in Arrow and in JSON. A pure table; the catalog is asked elsewhere.

The type page of the documentation is generated from this table. Types not listed travel as the text that
PostgreSQL prints, under their own name, so an unknown type loses nothing.
"""

from __future__ import annotations

import pyarrow as pa

from tidemill.model.types import DataType, JsonForm

_UTC = pa.timestamp("us", tz="UTC")

#: Type OID -> (name, Arrow type, JSON form, remark for the type page). OIDs of built-in types never change.
BUILT_IN: dict[int, tuple[str, pa.DataType, JsonForm, str]] = {
    16: ("boolean", pa.bool_(), JsonForm.BOOL, ""),
    21: ("smallint", pa.int16(), JsonForm.NUMBER, ""),
    23: ("integer", pa.int32(), JsonForm.NUMBER, ""),
    20: ("bigint", pa.int64(), JsonForm.NUMBER, ""),
    26: ("oid", pa.uint32(), JsonForm.NUMBER, ""),
    28: ("xid", pa.uint32(), JsonForm.NUMBER, ""),
    29: ("cid", pa.uint32(), JsonForm.NUMBER, ""),
    700: ("real", pa.float32(), JsonForm.NUMBER, "NaN and infinities are JSON strings"),
    701: ("double precision", pa.float64(), JsonForm.NUMBER, "NaN and infinities are JSON strings"),
    1700: ("numeric", pa.string(), JsonForm.STRING, "without precision: its exact text"),
    790: ("money", pa.string(), JsonForm.STRING, "as printed with lc_monetary=C"),
    25: ("text", pa.string(), JsonForm.STRING, ""),
    1043: ("character varying", pa.string(), JsonForm.STRING, ""),
    1042: ("character", pa.string(), JsonForm.STRING, "with its padding"),
    18: ('"char"', pa.string(), JsonForm.STRING, ""),
    19: ("name", pa.string(), JsonForm.STRING, ""),
    17: ("bytea", pa.binary(), JsonForm.BASE64, ""),
    1082: ("date", pa.date32(), JsonForm.STRING, "ISO 8601: 44 BC is -0043; infinity as text"),
    1083: ("time without time zone", pa.time64("us"), JsonForm.STRING, "24:00:00 as text"),
    1266: ("time with time zone", pa.string(), JsonForm.STRING, ""),
    1114: (
        "timestamp without time zone",
        pa.timestamp("us"),
        JsonForm.STRING,
        "infinity, and from the year 294247 on, as text",
    ),
    1184: ("timestamp with time zone", _UTC, JsonForm.STRING, "in UTC; infinity, and from the year 294247 on, as text"),
    1186: ("interval", pa.string(), JsonForm.STRING, "ISO 8601"),
    2950: ("uuid", pa.string(), JsonForm.STRING, ""),
    114: ("json", pa.string(), JsonForm.RAW, "embedded"),
    3802: ("jsonb", pa.string(), JsonForm.RAW, "embedded"),
    142: ("xml", pa.string(), JsonForm.STRING, ""),
    1560: ("bit", pa.string(), JsonForm.STRING, "as zeros and ones"),
    1562: ("bit varying", pa.string(), JsonForm.STRING, "as zeros and ones"),
    869: ("inet", pa.string(), JsonForm.STRING, ""),
    650: ("cidr", pa.string(), JsonForm.STRING, ""),
    829: ("macaddr", pa.string(), JsonForm.STRING, ""),
    774: ("macaddr8", pa.string(), JsonForm.STRING, ""),
    3614: ("tsvector", pa.string(), JsonForm.STRING, ""),
    3615: ("tsquery", pa.string(), JsonForm.STRING, ""),
    600: ("point", pa.string(), JsonForm.STRING, ""),
    601: ("lseg", pa.string(), JsonForm.STRING, ""),
    602: ("path", pa.string(), JsonForm.STRING, ""),
    603: ("box", pa.string(), JsonForm.STRING, ""),
    604: ("polygon", pa.string(), JsonForm.STRING, ""),
    628: ("line", pa.string(), JsonForm.STRING, ""),
    718: ("circle", pa.string(), JsonForm.STRING, ""),
    3220: ("pg_lsn", pa.string(), JsonForm.STRING, ""),
    3904: ("int4range", pa.string(), JsonForm.STRING, "likewise every other range and multirange"),
    4451: ("int4multirange", pa.string(), JsonForm.STRING, ""),
}

#: What `data_type` does with types that have parameters or parts: (what, Arrow type, JSON form, remark), in Markdown.
RULES: tuple[tuple[str, str, str, str], ...] = (
    ("`numeric(p,s)`, p up to 38", "`decimal128(p, s)`", "string", "NaN as text"),
    ("`numeric(p,s)`, p up to 76", "`decimal256(p, s)`", "string", "NaN as text"),
    ("`numeric(p,s)`, larger p", "`string`", "string", "its exact text"),
    ("`numeric(p,s)`, s < 0", "`decimal(p - s, 0)`", "string", "`numeric(3,-2)` holds whole hundreds: five digits"),
    ("`numeric(p,s)`, s > p", "`decimal(s, s)`", "string", "`numeric(2,5)` is below 0.001: five fraction digits"),
    ("`element[]`", "`list<element>`", "array", "elements by their own type; several dimensions, explicit bounds, or "
     "an element that its type cannot hold: the whole array as text"),
    ("a domain", "of its base", "of its base", "under the domain's name"),
    ("an enum", "`string`", "string", "its label"),
    ("a composite, a range, a multirange", "`string`", "string", "the text PostgreSQL prints"),
    ("any other type", "`string`", "string", "the text PostgreSQL prints, under the type's own name"),
)  # fmt: skip

_NUMERIC = 1700
_DELIMITER = b"tidemill.delimiter"


def data_type(oid: int, typmod: int, native: str, *, element: DataType | None = None, delimiter: str = ",") -> DataType:
    """The type of a column. Domains come resolved to their base; `element` is given for arrays, with what stands
    between them (`pg_type.typdelim` of the element: a semicolon for boxes, a comma for all others PostgreSQL has).

    >>> data_type(1700, ((12 << 16) | 2) + 4, "numeric(12,2)").arrow
    Decimal128Type(decimal128(12, 2))
    """
    if element is not None:
        return DataType(native, pa.list_(_item(element.arrow, delimiter)), JsonForm.ARRAY)
    if oid == _NUMERIC and typmod >= 4:
        return DataType(native, _decimal(typmod - 4), JsonForm.STRING)
    if oid in BUILT_IN:
        _, arrow, form, _ = BUILT_IN[oid]
        return DataType(native, arrow, form)
    return DataType(native, pa.string(), JsonForm.STRING)


def delimiter(array: pa.DataType) -> int:
    """The byte between the elements of an array's text."""
    return ord((array.value_field.metadata or {}).get(_DELIMITER, b","))


def _item(arrow: pa.DataType, delimiter: str) -> pa.Field:
    # In the Arrow type, because a domain over an array has a name that says nothing of its elements.
    return pa.field("item", arrow, metadata=None if delimiter == "," else {_DELIMITER: delimiter})


def _decimal(modifier: int) -> pa.DataType:
    precision, scale = modifier >> 16, modifier & 0x7FF
    if scale >= 1024:  # eleven bits, signed since PostgreSQL 15
        scale -= 2048
    if scale < 0:  # numeric(3,-2): whole hundreds
        precision, scale = precision - scale, 0
    precision = max(precision, scale)  # numeric(2,4): 0.0012
    if precision <= 38:
        return pa.decimal128(precision, scale)
    return pa.decimal256(precision, scale) if precision <= 76 else pa.string()
