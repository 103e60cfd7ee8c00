"""TABLE_MAP events: the physical types of a table's columns, and what the server adds about them.

Before its first row of a statement the server describes the table. Without optional metadata (MariaDB's default) that
is only how many bytes each value takes; `binlog_row_metadata=MINIMAL` adds signs and character sets, FULL adds names,
the primary key, and the labels of ENUM and SET. Layout: MySQL's `Table_map_event` (libs/mysql/binlog/event).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tidemill.decoders._shared.mysql.fields import Bytes
from tidemill.errors import DecodeError

# Column types as the binlog numbers them (`enum_field_types`).
DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, NULL, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR = range(14)
NEWDATE, VARCHAR, BIT, TIMESTAMP2, DATETIME2, TIME2 = range(14, 20)
BLOB_COMPRESSED, VARCHAR_COMPRESSED = 140, 141  # MariaDB's COMPRESSED columns
VECTOR = 242
JSON, NEWDECIMAL, ENUM, SET, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB, VAR_STRING, STRING, GEOMETRY = range(245, 256)

_METADATA_BYTES = {
    FLOAT: 1, DOUBLE: 1, VARCHAR: 2, VARCHAR_COMPRESSED: 2, BIT: 2, TIMESTAMP2: 1, DATETIME2: 1, TIME2: 1, VECTOR: 1,
    JSON: 1, NEWDECIMAL: 2, ENUM: 2, SET: 2, TINY_BLOB: 1, MEDIUM_BLOB: 1, LONG_BLOB: 1, BLOB: 1, BLOB_COMPRESSED: 1,
    VAR_STRING: 2, STRING: 2, GEOMETRY: 1,
}  # fmt: skip
_NUMERIC = frozenset({DECIMAL, TINY, SHORT, LONG, FLOAT, DOUBLE, LONGLONG, INT24, YEAR, NEWDECIMAL})
_TEXTUAL = frozenset({VARCHAR, VARCHAR_COMPRESSED, VAR_STRING, STRING, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB,
                      BLOB_COMPRESSED})  # fmt: skip
#: Types without text that a server counts among the character columns: it writes them as binary strings.
_COUNTED_AS_TEXT = {False: frozenset({VECTOR}), True: frozenset({GEOMETRY})}  # by whether it is a MariaDB


@dataclass(frozen=True, slots=True)
class TableMap:
    """A table as the binlog describes it. Tuples have one item per column; `metadata` is the type's own (a length, a
    precision), as one little-endian number, and ENUM and SET are already told from STRING.

    What only `binlog_row_metadata` brings is empty where it is missing. `signs`: True for unsigned, None for what has
    no sign. `collations`: ids of character columns, also of ENUM and SET, None for others. `key`: (column number,
    prefix length or 0) in key order.
    """

    table_id: int
    database: str
    name: str
    types: tuple[int, ...]
    metadata: tuple[int, ...]
    nullable: tuple[bool, ...]
    signs: tuple[bool | None, ...] = ()
    collations: tuple[int | None, ...] = ()
    names: tuple[str, ...] = ()
    labels: tuple[tuple[bytes, ...] | None, ...] = ()
    key: tuple[tuple[int, int], ...] = ()
    visible: tuple[bool, ...] = ()
    geometries: tuple[int | None, ...] = ()
    dimensions: tuple[int | None, ...] = ()

    @property
    def full_name(self) -> str:
        return f"{self.database}.{self.name}"


def parse(body: bytes, *, mariadb: bool) -> TableMap:
    """The event's body, without header and checksum."""
    data = Bytes(body, "a TABLE_MAP event")
    table_id, _flags = data.number(6), data.number(2)
    database, name = _name(data), _name(data)
    types = data.take(data.packed())
    meta = Bytes(data.take(data.packed()), "the column metadata of a TABLE_MAP event")
    kinds, metadata = [], []
    for kind in types:
        number = meta.number(_METADATA_BYTES.get(kind, 0))
        if kind == STRING:
            kind, number = _string(number)
        elif kind == NEWDECIMAL:
            number = (number & 0xFF) << 8 | number >> 8
        kinds.append(kind)
        metadata.append(number)
    if meta.left:
        raise DecodeError("the column metadata of a TABLE_MAP event does not fit its columns")
    nullable = _bits(data.take((len(types) + 7) // 8), len(types), little=True)
    known = TableMap(table_id, database, name, tuple(kinds), tuple(metadata), nullable)
    return _with_optional(known, data, mariadb) if data.left else known


def _name(data: Bytes) -> str:
    text = data.text(data.number(1))
    if data.number(1):
        raise DecodeError("a name in a TABLE_MAP event has no end")
    return text


def _string(number: int) -> tuple[int, int]:
    """CHAR, ENUM and SET are all logged as STRING; the first byte says which, and holds two bits of a long length
    (Field_string::do_save_field_metadata)."""
    first, second = number & 0xFF, number >> 8
    if first in (ENUM, SET):
        return first, second
    if first & 0x30 != 0x30:
        return first | 0x30, second | ((first & 0x30) ^ 0x30) << 4
    return first, second


def _bits(data: bytes, count: int, *, little: bool) -> tuple[bool, ...]:
    return tuple(bool(data[i >> 3] & (1 << (i & 7) if little else 0x80 >> (i & 7))) for i in range(count))


def _with_optional(known: TableMap, data: Bytes, mariadb: bool) -> TableMap:
    """Fields in any order, each with its type and length; unknown ones are skipped, as the server's own reader does."""
    numeric = [j for j, kind in enumerate(known.types) if kind in _NUMERIC]
    counted = _COUNTED_AS_TEXT[mariadb]
    textual = [j for j, kind in enumerate(known.types) if kind in _TEXTUAL or kind in counted]
    listed = [j for j, kind in enumerate(known.types) if kind in (ENUM, SET)]
    count = len(known.types)
    signs: list[bool | None] = [None] * count
    collations: list[int | None] = [None] * count
    labels: list[tuple[bytes, ...] | None] = [None] * count
    geometries: list[int | None] = [None] * count
    dimensions: list[int | None] = [None] * count
    names: tuple[str, ...] = ()
    key: tuple[tuple[int, int], ...] = ()
    visible: tuple[bool, ...] = ()
    seen = set()
    while data.left:
        kind = data.number(1)
        field = Bytes(data.take(data.packed()), "the metadata of a TABLE_MAP event")
        seen.add(kind)
        match kind:
            case 1:
                for j, flag in zip(numeric, _bits(field.take((len(numeric) + 7) // 8), len(numeric), little=False),
                                   strict=True):  # fmt: skip
                    signs[j] = flag
            case 2 | 10:
                columns = textual if kind == 2 else listed
                default, given = field.packed(), list(_pairs(field))
                for j in columns:
                    collations[j] = default
                for at, collation in given:
                    collations[_at(columns, at)] = collation
            case 3 | 11:
                for j in textual if kind == 3 else listed:
                    collations[j] = field.packed()
            case 4:
                names = tuple(field.text(field.packed()) for _ in range(count))
            case 5 | 6:
                for j in (j for j in listed if known.types[j] == (SET if kind == 5 else ENUM)):
                    labels[j] = tuple(field.take(field.packed()) for _ in range(field.packed()))
            case 7:
                for j in (j for j in range(count) if known.types[j] == GEOMETRY):
                    geometries[j] = field.packed()
            case 8:
                key = tuple((_at(range(count), at), 0) for at in field.numbers())
            case 9:
                key = tuple((_at(range(count), at), prefix) for at, prefix in _pairs(field))
            case 12:
                visible = _bits(field.take((count + 7) // 8), count, little=False)
            case 13:
                for j in (j for j in range(count) if known.types[j] == VECTOR):
                    dimensions[j] = field.packed()
            case _:
                field.rest()
        if field.left:  # a server that counts other columns than we do: what was read may be its neighbours'
            raise DecodeError("the metadata of a TABLE_MAP event does not fit its columns")
    for j in (j for j in textual if known.types[j] in counted):
        collations[j] = None
    return TableMap(
        known.table_id, known.database, known.name, known.types, known.metadata, known.nullable,
        tuple(signs) if 1 in seen or not numeric else (), tuple(collations), names, tuple(labels), key, visible,
        tuple(geometries), tuple(dimensions),
    )  # fmt: skip


def _pairs(field: Bytes) -> Iterator[tuple[int, int]]:
    while field.left:
        yield field.packed(), field.packed()


def _at(columns: list[int] | range, index: int) -> int:
    if index >= len(columns):
        raise DecodeError("the metadata of a TABLE_MAP event names a column that is not there")
    return columns[index]


def fixed_size(kind: int, metadata: int) -> int:
    """Bytes of a value, or minus the number of bytes that say its length (`Field::pack` of the server).

    The old temporal types have the sizes they had before MySQL 5.6.
    """
    if kind in _FIXED:
        return _FIXED[kind]
    match kind:
        case 14 | 10:
            return 3
        case 16 if metadata >> 8 <= 8:  # BIT: odd bits in the low byte, whole bytes in the high one
            return (metadata >> 8) + (1 if metadata & 0xFF else 0)
        case 246:
            return decimal_size(metadata >> 8, metadata & 0xFF)
        case 247 | 248 if 1 <= metadata <= 8:
            return metadata
        case 17 | 18 | 19 if metadata <= 6:
            return {17: 4, 18: 5, 19: 3}[kind] + (metadata + 1) // 2
        case 15 | 141 | 253 | 254:
            return -1 if metadata < 256 else -2
        case 252 | 140 | 245 | 255 | 249 | 250 | 251 | 242:
            if 1 <= metadata <= 4:
                return -metadata
    raise DecodeError(f"a TABLE_MAP event has a column of type {kind} with metadata {metadata}, which is unknown here")


_FIXED = {NULL: 0, TINY: 1, SHORT: 2, INT24: 3, LONG: 4, LONGLONG: 8, FLOAT: 4, DOUBLE: 8, YEAR: 1, TIMESTAMP: 4,
          TIME: 3, DATETIME: 8}  # fmt: skip
_LEFTOVER = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)  # bytes for digits that do not fill a group of nine


def decimal_size(precision: int, scale: int) -> int:
    if not 0 < precision <= 65 or scale > precision:
        raise DecodeError(f"a TABLE_MAP event has a DECIMAL({precision},{scale})")
    whole = precision - scale
    return whole // 9 * 4 + _LEFTOVER[whole % 9] + scale // 9 * 4 + _LEFTOVER[scale % 9]
