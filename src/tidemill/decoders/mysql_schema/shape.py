"""Whether a table of the schema history can be the one that a TABLE_MAP event describes.

The event always has physical types, lengths and which columns may be NULL; signs and charsets only with metadata. What
it does not say is not judged. A difference means that a column was added, dropped or changed unseen (invariant 6).
"""

from __future__ import annotations

import re

from tidemill.decoders._shared.mysql import charsets
from tidemill.decoders._shared.mysql import table_map as m
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogTable
from tidemill.decoders.mysql_schema.column_definition import bytes_of_character

_FIXED = {
    "tinyint": {m.TINY}, "smallint": {m.SHORT}, "mediumint": {m.INT24}, "int": {m.LONG}, "bigint": {m.LONGLONG},
    "float": {m.FLOAT}, "double": {m.DOUBLE}, "year": {m.YEAR}, "date": {m.DATE, m.NEWDATE}, "json": {m.JSON},
    "geometry": {m.GEOMETRY}, "point": {m.GEOMETRY}, "linestring": {m.GEOMETRY}, "polygon": {m.GEOMETRY},
    "multipoint": {m.GEOMETRY}, "multilinestring": {m.GEOMETRY}, "multipolygon": {m.GEOMETRY},
    "geometrycollection": {m.GEOMETRY}, "uuid": {m.STRING}, "inet4": {m.STRING}, "inet6": {m.STRING},
}  # fmt: skip
_TEMPORAL = {"time": (m.TIME2, m.TIME), "datetime": (m.DATETIME2, m.DATETIME), "timestamp": (m.TIMESTAMP2, m.TIMESTAMP)}
_BLOBS = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_NAMES = {
    m.TINY: "tinyint", m.SHORT: "smallint", m.INT24: "mediumint", m.LONG: "int", m.LONGLONG: "bigint", m.FLOAT: "float",
    m.DOUBLE: "double", m.YEAR: "year", m.DATE: "date", m.NEWDATE: "date", m.JSON: "json", m.GEOMETRY: "geometry",
    m.STRING: "char", m.VARCHAR: "varchar", m.BLOB: "blob", m.NEWDECIMAL: "decimal", m.ENUM: "enum", m.SET: "set",
    m.BIT: "bit", m.TIME2: "time", m.DATETIME2: "datetime", m.TIMESTAMP2: "timestamp", m.TIME: "time",
    m.DATETIME: "datetime", m.TIMESTAMP: "timestamp", m.VECTOR: "vector",
    m.VARCHAR_COMPRESSED: "varchar compressed", m.BLOB_COMPRESSED: "blob compressed",
}  # fmt: skip


def difference(table: CatalogTable, shape: TableMap) -> str:
    """The first thing that does not fit, in words; empty if all does."""
    if len(table.columns) != len(shape.types):
        return f"{_columns(len(table.columns))} expected, but the binlog has {len(shape.types)}"
    for j, column in enumerate(table.columns):
        if not _fits(column, shape.types[j], shape.metadata[j]):
            return f'column {j + 1}, "{column.name}", expected as {column.type}, but the binlog has {_came(shape, j)}'
        # TIMESTAMP without a word about NULL depends on a session's explicit_defaults_for_timestamp.
        if column.nullable != shape.nullable[j] and not column.type.startswith("timestamp"):
            wanted, came = ("NULL", "NOT NULL") if column.nullable else ("NOT NULL", "NULL")
            return f'column {j + 1}, "{column.name}", expected as {wanted}, but the binlog has {came}'
        if difference := _metadata(column, shape, j):
            return f'column {j + 1}, "{column.name}", expected as {difference}'
    return ""


def _metadata(column: CatalogColumn, shape: TableMap, j: int) -> str:
    sign = shape.signs[j] if shape.signs else None
    if sign is not None and not column.type.startswith("year") and sign != ("unsigned" in column.type):
        return f"{column.type}, but the binlog has {'unsigned' if sign else 'signed'} numbers"
    number = shape.collations[j] if shape.collations else None
    charset = None if number is None else charsets.of_collation(number)
    if charset and column.charset and charsets.known(column.charset) and charset != column.charset:
        return f"{column.charset}, but the binlog has {charset}"
    return ""


def _fits(column: CatalogColumn, kind: int, meta: int) -> bool:
    base, _, rest = column.type.partition("(")
    base = base.removesuffix(" zerofill").removesuffix(" unsigned")
    if base in _FIXED:
        return kind in _FIXED[base]
    numbers = [int(n) for n in re.findall(r"\d+", rest)] if base not in ("enum", "set") else []
    if base in _TEMPORAL:
        new, old = _TEMPORAL[base]
        return kind == old or (kind == new and meta == (numbers or [0])[0])
    match base:
        case "decimal":
            return kind == m.NEWDECIMAL and [meta >> 8, meta & 0xFF] == numbers
        case "bit":
            return kind == m.BIT and m.fixed_size(kind, meta) == (numbers[0] + 7) // 8
        case "enum":
            return kind == m.ENUM and meta == (1 if _labels(rest) < 256 else 2)
        case "set":
            size = (_labels(rest) + 7) // 8
            return kind == m.SET and meta == (8 if size > 4 else size)
        case "char" | "varchar" | "binary" | "varbinary":
            kinds = {m.STRING} if base in ("char", "binary") else {m.VARCHAR, m.VARCHAR_COMPRESSED}
            if kind not in kinds:
                return False
            if not column.charset and base in ("char", "varchar"):
                return True  # the charset is not known, nor its bytes
            # A compressed value has a byte for the method.
            return meta - (kind == m.VARCHAR_COMPRESSED) == numbers[0] * bytes_of_character(column.charset)
    for suffix in ("text", "blob"):
        if base.endswith(suffix) and base.removesuffix(suffix) in _BLOBS:
            return kind in (m.BLOB, m.BLOB_COMPRESSED) and meta == _BLOBS[base.removesuffix(suffix)]
    return True  # vector and what newer servers have: not judged


def _labels(rest: str) -> int:
    return len(re.findall(r"'(?:[^']|'')*'", rest))


def _came(shape: TableMap, j: int) -> str:
    kind, meta = shape.types[j], shape.metadata[j]
    name = _NAMES.get(kind, f"type {kind}")
    if kind == m.NEWDECIMAL:
        return f"{name}({meta >> 8},{meta & 0xFF})"
    if kind in (m.STRING, m.VARCHAR, m.VARCHAR_COMPRESSED):
        return f"{name} of {meta} bytes"
    if kind in (m.TIME2, m.DATETIME2, m.TIMESTAMP2) and meta:
        return f"{name}({meta})"
    if kind in (m.BLOB, m.BLOB_COMPRESSED, m.ENUM, m.SET):
        return f"{name} with {meta} byte{'s' if meta > 1 else ''}{' of length' if kind not in (m.ENUM, m.SET) else ''}"
    return name


def _columns(count: int) -> str:
    return "1 column" if count == 1 else f"{count} columns"
