"""Types of MySQL and MariaDB: what each becomes in Arrow and in JSON. A pure table; the type page is made of it.

A type's name is the server's COLUMN_TYPE without what does not change its values: display widths, ZEROFILL, the sign
of a DECIMAL. So a column has the same name whether the catalog or a TABLE_MAP event with full metadata described it,
except for the few types that look like others in the binlog (`RULES` names them). The character set stands in the name
where it is not UTF-8.
"""

from __future__ import annotations

import re

import pyarrow as pa

from tidemill.decoders._shared.mysql import charsets
from tidemill.decoders._shared.mysql import table_map as m
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.errors import DecodeError
from tidemill.model.types import DataType, JsonForm

_UTC = pa.timestamp("us", tz="UTC")
_ZERO = "zero, partial and impossible dates as text, or null with `zero_dates: null`"

#: Name -> (Arrow type, JSON form, remark for the type page).
BUILT_IN: dict[str, tuple[pa.DataType, JsonForm, str]] = {
    "tinyint": (pa.int8(), JsonForm.NUMBER, "`bool` and `tinyint(1)` too"),
    "tinyint unsigned": (pa.uint8(), JsonForm.NUMBER, ""),
    "smallint": (pa.int16(), JsonForm.NUMBER, ""),
    "smallint unsigned": (pa.uint16(), JsonForm.NUMBER, ""),
    "mediumint": (pa.int32(), JsonForm.NUMBER, ""),
    "mediumint unsigned": (pa.uint32(), JsonForm.NUMBER, ""),
    "int": (pa.int32(), JsonForm.NUMBER, ""),
    "int unsigned": (pa.uint32(), JsonForm.NUMBER, ""),
    "bigint": (pa.int64(), JsonForm.NUMBER, "all 64 bits"),
    "bigint unsigned": (pa.uint64(), JsonForm.NUMBER, "all 64 bits"),
    "float": (pa.float32(), JsonForm.NUMBER, ""),
    "double": (pa.float64(), JsonForm.NUMBER, ""),
    "bit(1)": (pa.bool_(), JsonForm.BOOL, ""),
    "year": (pa.uint16(), JsonForm.NUMBER, "`0000` is 0"),
    "date": (pa.date32(), JsonForm.STRING, _ZERO),
    "datetime": (pa.timestamp("us"), JsonForm.STRING, f"`datetime(n)` too; {_ZERO}"),
    "timestamp": (_UTC, JsonForm.STRING, f"`timestamp(n)` too; in UTC; {_ZERO}"),
    "time": (pa.string(), JsonForm.STRING, "`time(n)` too; as printed, `-838:59:59.5`: Arrow's times end with the day"),
    "tinytext": (pa.string(), JsonForm.STRING, ""),
    "text": (pa.string(), JsonForm.STRING, ""),
    "mediumtext": (pa.string(), JsonForm.STRING, ""),
    "longtext": (pa.string(), JsonForm.STRING, "MariaDB's `json` is one"),
    "tinyblob": (pa.binary(), JsonForm.BASE64, ""),
    "blob": (pa.binary(), JsonForm.BASE64, ""),
    "mediumblob": (pa.binary(), JsonForm.BASE64, ""),
    "longblob": (pa.binary(), JsonForm.BASE64, ""),
    "json": (pa.string(), JsonForm.RAW, "MySQL's, as the server prints it; embedded"),
    "geometry": (pa.binary(), JsonForm.BASE64, "four bytes SRID, little-endian, then WKB"),
    "point": (pa.binary(), JsonForm.BASE64, "likewise"),
    "linestring": (pa.binary(), JsonForm.BASE64, "likewise"),
    "polygon": (pa.binary(), JsonForm.BASE64, "likewise"),
    "multipoint": (pa.binary(), JsonForm.BASE64, "likewise"),
    "multilinestring": (pa.binary(), JsonForm.BASE64, "likewise"),
    "multipolygon": (pa.binary(), JsonForm.BASE64, "likewise"),
    "geomcollection": (pa.binary(), JsonForm.BASE64, "likewise; `geometrycollection` too"),
    "uuid": (pa.string(), JsonForm.STRING, "MariaDB"),
    "inet4": (pa.string(), JsonForm.STRING, "MariaDB"),
    "inet6": (pa.string(), JsonForm.STRING, "MariaDB"),
}

#: Types with parameters: (what, Arrow type, JSON form, remark), in Markdown.
RULES: tuple[tuple[str, str, str, str], ...] = (
    ("`decimal(p,s)`, p up to 38", "`decimal128(p, s)`", "string", "every digit"),
    ("`decimal(p,s)`, p up to 65", "`decimal256(p, s)`", "string", "every digit"),
    ("`bit(n)`, n > 1", "`uint64`", "number", "the bits as a number"),
    ("`char(n)`, `varchar(n)`", "`string`", "string", "without the padding of `char`, as the server returns it"),
    ("`binary(n)`", "`binary`", "base64", "with its padding of zero bytes"),
    ("`varbinary(n)`", "`binary`", "base64", ""),
    ("`enum(…)`", "`string`", "string", "its label; empty for what was none of them; a number without a label as text"),
    ("`set(…)`", "`string`", "string", "its labels with commas between; a number with bits without a label as text"),
    ("`vector(n)`", "`list<float>`", "array", "a MariaDB `vector` needs the catalog, see below"),
    ("text in another character set", "`string`", "string", "converted to UTF-8 as the server does; bytes that are no "
     "character in it as text: `0x` and hexadecimal digits"),
    ("`uuid`, `inet4`, `inet6`, `vector` of MariaDB", "", "", "look like `binary(16)`, `binary(4)` and `varbinary` in "
     "the binlog: their names come from the catalog"),
    ("`datetime(n)`, `timestamp(n)`, `time(n)` of a MariaDB table from before 10.1", "", "", "the old format has the "
     "same name in the binlog whatever its digits: they come from the catalog; where it does not know the table, "
     "capture stops"),
    ("a JSON value of which only a change was sent, and the old value was not", "", "", "as text: the list of changes, "
     '`[{"op": "replace", "path": "$.a", "value": 1}]` (`binlog_row_value_options=PARTIAL_JSON` without full images)'),
)  # fmt: skip

_SHAPE = re.compile(r"\s*([a-z0-9]+)\s*(?:\((.*)\))?(.*)", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL)
_ALIASES = {
    "bool": "tinyint", "boolean": "tinyint", "integer": "int", "int1": "tinyint", "int2": "smallint",
    "int3": "mediumint", "int4": "int", "int8": "bigint", "middleint": "mediumint", "real": "double",
    "float8": "double", "float4": "float",
    "dec": "decimal", "numeric": "decimal", "fixed": "decimal", "character": "char", "nchar": "char",
    "nvarchar": "varchar", "varchar2": "varchar", "varcharacter": "varchar", "raw": "varbinary", "long": "mediumtext",
    "geometrycollection": "geomcollection",
}  # fmt: skip
_INTEGERS = frozenset({"tinyint", "smallint", "mediumint", "int", "bigint"})
_AS_BYTES = {"char": "binary", "varchar": "varbinary", "tinytext": "tinyblob", "text": "blob",
             "mediumtext": "mediumblob", "longtext": "longblob"}  # fmt: skip
_TEXT_TYPES = frozenset(_AS_BYTES)


def data_type(column_type: str, charset: str = "", flavor: Flavor = Flavor.MYSQL) -> DataType:
    """The type of a column as the catalog (COLUMN_TYPE and CHARACTER_SET_NAME) or a DDL statement names it.

    >>> data_type("int(10) unsigned zerofill").native
    'int unsigned'
    >>> data_type("varchar(20)", "latin1").native
    'varchar(20) character set latin1'
    """
    found = _SHAPE.match(column_type)
    if not found:
        raise DecodeError(f'"{column_type}" is no column type')
    base, inside, rest = found[1].lower(), found[2], found[3].lower()
    base = _ALIASES.get(base, base)
    if stated := re.search(r"character set\s+(\w+)", rest):
        charset = stated[1]
    charset = charset.lower()
    if base == "json" and flavor is Flavor.MARIADB:
        base, charset = "longtext", "utf8mb4"
    if charset == "binary" and base in _TEXT_TYPES:
        base = _AS_BYTES[base]
    arguments = [int(n) for n in re.findall(r"\d+", inside or "")] if base not in ("enum", "set") else []
    if base in _INTEGERS:
        unsigned = "unsigned" in rest or "zerofill" in rest
        return _built_in(f"{base} unsigned" if unsigned else base)
    match base:
        case "decimal":
            return decimal(*(arguments or [10]))
        case "float":
            return _built_in("double" if len(arguments) == 1 and arguments[0] > 24 else "float")
        case "bit":
            return _bit(arguments[0] if arguments else 1)
        case "enum" | "set":
            return _labelled_type(base, [_unquote(label) for label in _LABEL.findall(inside or "")])
        case "time" | "datetime" | "timestamp":
            return _built_in(base, digits=arguments[0] if arguments else 0)
        case "char" | "varchar" | "binary" | "varbinary":
            return _sized_type(base, arguments[0] if arguments else 1, charset)
        case "vector":
            return _vector(arguments[0] if arguments else 2048)
    if base in _TEXT_TYPES:
        return DataType(base + _suffix(charset), pa.string(), JsonForm.STRING)
    if base in BUILT_IN:
        return _built_in(base)
    raise DecodeError(
        f'the column type "{column_type}" is unknown', fix="Leave the table out of the source's tables, and report it."
    )


def of_map(shape: TableMap, column: int) -> DataType | None:
    """The type of a column from a TABLE_MAP event alone; None where its metadata does not say enough."""
    kind, meta = shape.types[column], shape.metadata[column]
    if kind in _NUMBERS:
        if not shape.signs:
            return None
        return _built_in(_NUMBERS[kind] + (" unsigned" if shape.signs[column] else ""))
    if kind in _TEMPORAL:
        return _built_in(_TEMPORAL[kind], digits=meta)
    match kind:
        case m.NEWDECIMAL:
            return decimal(meta >> 8, meta & 0xFF)
        case m.FLOAT | m.DOUBLE:
            return _built_in("float" if kind == m.FLOAT else "double")
        case m.YEAR:
            return _built_in("year")
        case m.BIT:
            return _bit((meta >> 8) * 8 + (meta & 0xFF))
        case m.JSON:
            return _built_in("json")
        case m.VECTOR:
            dimensions = shape.dimensions[column] if shape.dimensions else None
            return None if dimensions is None else _vector(dimensions)
        case m.GEOMETRY:
            number = shape.geometries[column] if shape.geometries else None
            return _built_in(_GEOMETRIES[number] if number is not None and number < len(_GEOMETRIES) else "geometry")
    charset = _charset(shape, column)
    if charset is None:
        return None
    if kind in (m.ENUM, m.SET):
        labels = shape.labels[column] if shape.labels else None
        if labels is None:
            return None
        return _labelled_type("enum" if kind == m.ENUM else "set", [_label(label, charset) for label in labels])
    if kind in (m.VARCHAR, m.VAR_STRING, m.VARCHAR_COMPRESSED, m.STRING):
        base = "char" if kind == m.STRING else "varchar"
        if charset == "binary":
            base = _AS_BYTES[base]
        return _sized_type(base, meta // charsets.longest(charset), charset)
    if kind in (m.BLOB, m.BLOB_COMPRESSED) and 1 <= meta <= 4:
        text = ("tinytext", "text", "mediumtext", "longtext")[meta - 1]
        return _built_in(_AS_BYTES[text]) if charset == "binary" else DataType(
            text + _suffix(charset), pa.string(), JsonForm.STRING
        )  # fmt: skip
    return None


def labels(native: str) -> tuple[str, ...]:
    """Of an ENUM or SET.

    >>> labels("enum('a','it''s')")
    ('a', "it's")
    """
    return tuple(_unquote(label) for label in _LABEL.findall(native))


def charset(native: str) -> str:
    """What text of this type is written in at the server."""
    found = re.search(r" character set (\w+)$", native)
    return found[1] if found else "utf8mb4"


def decimal(precision: int, scale: int = 0) -> DataType:
    if not 0 < precision <= 65 or scale > precision:
        raise DecodeError(f"there is no decimal({precision},{scale})")
    arrow = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    return DataType(f"decimal({precision},{scale})", arrow, JsonForm.STRING)


_NUMBERS = {m.TINY: "tinyint", m.SHORT: "smallint", m.INT24: "mediumint", m.LONG: "int", m.LONGLONG: "bigint"}
_TEMPORAL = {
    m.DATE: "date", m.NEWDATE: "date", m.TIME: "time", m.TIME2: "time", m.DATETIME: "datetime", m.DATETIME2: "datetime",
    m.TIMESTAMP: "timestamp", m.TIMESTAMP2: "timestamp",
}  # fmt: skip
_GEOMETRIES = ("geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
               "geomcollection")  # fmt: skip


def _charset(shape: TableMap, column: int) -> str | None:
    number = shape.collations[column] if shape.collations else None
    return None if number is None else charsets.of_collation(number)


def _built_in(name: str, *, digits: int = 0) -> DataType:
    arrow, form, _ = BUILT_IN[name]
    return DataType(f"{name}({digits})" if digits else name, arrow, form)


def _bit(bits: int) -> DataType:
    return _built_in("bit(1)") if bits == 1 else DataType(f"bit({bits})", pa.uint64(), JsonForm.NUMBER)


def _sized_type(base: str, length: int, charset: str) -> DataType:
    if base.endswith("binary"):
        return DataType(f"{base}({length})", pa.binary(), JsonForm.BASE64)
    return DataType(f"{base}({length}){_suffix(charset)}", pa.string(), JsonForm.STRING)


def _vector(dimensions: int) -> DataType:
    return DataType(f"vector({dimensions})", pa.list_(pa.float32()), JsonForm.ARRAY)


def _labelled_type(base: str, found: list[str]) -> DataType:
    quoted = ",".join(map(quoted_label, found))
    return DataType(f"{base}({quoted})", pa.string(), JsonForm.STRING)


def _suffix(charset: str) -> str:
    if not charset or charset in charsets.UTF8:
        return ""
    if not charsets.known(charset):
        raise DecodeError(f'the character set "{charset}" is unknown')
    return f" character set {charset}"


def _label(label: bytes, charset: str) -> str:
    try:
        return charsets.decode(label, "utf8mb4" if charset == "binary" else charset)
    except UnicodeDecodeError as error:
        raise DecodeError(f"a label of an ENUM or SET is no text in {charset}") from error


_ESCAPES = {"\\": "\\\\", "'": "''", "\n": "\\n", "\r": "\\r", "\0": "\\0"}
_UNESCAPED = {shown: plain for plain, shown in _ESCAPES.items()}


def quoted_label(label: str) -> str:
    """As the catalog prints a label of an ENUM or SET (`append_unescaped` of the servers)."""
    return "'" + "".join(_ESCAPES.get(c, c) for c in label) + "'"


def _unquote(text: str) -> str:
    return re.sub(r"''|\\.", lambda found: _UNESCAPED.get(found[0], found[0][1:]), text, flags=re.DOTALL)
