"""Protobuf messages from a table's version. docs/formats.md has the rules in words.

A worker knows one version of a table, not those before it, so the number of a column's field cannot come from counting.
It comes from the column's name and kind (`field_number`): the same in every version, whatever was added or dropped.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa

from tidemill.encoding.program import plain_type
from tidemill.errors import Refused
from tidemill.formats._shared import events, names
from tidemill.formats._shared.base import Envelope
from tidemill.formats._shared.record import KEY_ODD
from tidemill.model.table import Table

# Numbers below are for fields of ours; tags up to the last one take four bytes.
_FIRST, _COUNT = 1 << 16, (1 << 25) - (1 << 16)

#: Fields of our own messages. A number, once given, is never given to another field.
NATIVE = {
    "event_id": 1, "source_id": 2, "database": 3, "schema": 4, "table": 5, "op": 6, "tx_id": 7, "position": 8,
    "ordinal": 9, "offset": 10, "timestamp": 11, "schema_version": 12, "schema_sequence": 13, "ddl": 14, "key": 15,
    "before": 16, "after": 17, "unchanged": 18, "odd": 19,
}  # fmt: skip
DEBEZIUM = {
    "before": 1, "after": 2, "source": 3, "transaction": 4, "op": 5, "ts_ms": 6, "ts_us": 7, "ts_ns": 8,
    "unchanged": 9, "odd": 10, "ddl": 11,
}  # fmt: skip
SOURCE = {
    "version": 1, "connector": 2, "name": 3, "ts_ms": 4, "ts_us": 5, "ts_ns": 6, "snapshot": 7, "db": 8, "sequence": 9,
    "schema": 10, "table": 11, "txId": 12, "lsn": 13, "xmin": 14, "server_id": 15, "gtid": 16, "file": 17, "pos": 18,
    "row": 19, "thread": 20, "query": 21, "origin": 22, "origin_lsn": 23,
}  # fmt: skip
_TRANSACTION = {"id": 1, "total_order": 2, "data_collection_order": 3}
_ODD = {"side": 1, "column": 2, "text": 3}
_KEY_ODD_NUMBER = 1

#: Arrow type -> (Protobuf type, kind). Types of one kind read each other's bytes.
TYPES: dict[pa.DataType, tuple[str, str]] = {
    pa.bool_(): ("bool", "bool"),
    pa.int8(): ("sint32", "integer"),
    pa.int16(): ("sint32", "integer"),
    pa.int32(): ("sint32", "integer"),
    pa.int64(): ("sint64", "integer"),
    pa.uint8(): ("uint32", "unsigned"),
    pa.uint16(): ("uint32", "unsigned"),
    pa.uint32(): ("uint32", "unsigned"),
    pa.uint64(): ("uint64", "unsigned"),
    pa.float32(): ("float", "float"),
    pa.float64(): ("double", "double"),
    pa.string(): ("string", "string"),
    pa.large_string(): ("string", "string"),
    pa.binary(): ("bytes", "bytes"),
    pa.large_binary(): ("bytes", "bytes"),
    pa.date32(): ("sint32", "date"),
    pa.time64("us"): ("sint64", "time"),
    pa.timestamp("us"): ("sint64", "timestamp"),
}
_REMARKS = {
    "date": "days since 1970-01-01",
    "time": "microseconds since midnight",
    "timestamp": "microseconds since 1970-01-01T00:00:00, local",
    "timestamptz": "microseconds since 1970-01-01T00:00:00Z",
    "decimal": "every digit",
}


@dataclass(frozen=True, slots=True)
class Field:
    number: int
    name: str
    type: str
    json_name: str
    repeated: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ProtoSchema:
    """`text` is the .proto file; the event's message is its first. `numbers` are those of the columns."""

    name: str
    text: str
    numbers: Mapping[str, int]


def field_number(name: str, kind: str, taken: Sequence[int] = ()) -> int:
    """From the SHA-256 of the column's name, a zero byte and its kind; the next free one if a column before has it."""
    digest = hashlib.sha256(f"{name}\0{kind}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") % _COUNT
    while _FIRST + place in taken:
        place = (place + 1) % _COUNT
    return _FIRST + place


def column_numbers(fields: Iterable[pa.Field]) -> Mapping[str, int]:
    """In the order of the columns: of two that want one number the older, which stands first, has it."""
    return _numbers(tuple(fields))


@functools.lru_cache(maxsize=1024)
def _numbers(fields: tuple[pa.Field, ...]) -> Mapping[str, int]:
    numbers: dict[str, int] = {}
    for field in fields:
        if field.name == KEY_ODD and pa.types.is_list(field.type):
            numbers[field.name] = _KEY_ODD_NUMBER
        else:
            numbers[field.name] = field_number(field.name, kind_of(field.type), list(numbers.values()))
    return numbers


def kind_of(type: pa.DataType) -> str:
    """What a number depends on beside the name. A column that changes within its kind keeps its number."""
    if pa.types.is_dictionary(type):
        return kind_of(type.value_type)
    type = plain_type(type) or type
    if type in TYPES:
        return TYPES[type][1]
    if pa.types.is_timestamp(type):
        return "timestamptz"
    if pa.types.is_decimal(type):
        return "decimal"
    if pa.types.is_list(type) or pa.types.is_large_list(type):
        return f"list of {kind_of(type.value_type)}"
    if pa.types.is_null(type):
        return "null"
    raise Refused(f"a column of type {type} has no Protobuf form", fix="Leave the column out, or use JSON.")


def scalar_type(type: pa.DataType) -> str:
    if pa.types.is_timestamp(type):
        return "sint64"
    return "string" if pa.types.is_decimal(type) else TYPES[type][0]


def type_of(type: pa.DataType) -> tuple[str, str]:
    """What a column of this type is in a message, and what its numbers mean."""
    return _File("")._type(type), _REMARKS.get(kind_of(type), "")


@functools.lru_cache(maxsize=256)
def event(table: Table, source: str, envelope: Envelope) -> ProtoSchema:
    space = names.namespace(table, source if envelope is Envelope.DEBEZIUM else None)
    file = _File(space)
    if envelope is Envelope.DEBEZIUM:
        name, numbers, row = "Envelope", DEBEZIUM, "Value"
    else:
        name, numbers, row = "Event", NATIVE, "Row"
    messages = {"key": "Key", "before": row, "after": row, "source": "Source", "transaction": "Transaction"}
    file.envelope(name, events.schema(table, envelope), numbers, messages)
    columns = [pa.field(c.name, c.type.arrow) for c in table.columns]
    if columns:
        file.columns(row, columns)
    if envelope is Envelope.DEBEZIUM:
        file.fixed("Source", events.schema(table, envelope).field("source").type, SOURCE)
        file.fixed("Transaction", events.schema(table, envelope).field("transaction").type, _TRANSACTION)
    elif table.key:
        file.columns("Key", [pa.field(c.name, c.type.arrow) for c in table.key_columns()])
    file.fixed("Odd", events.schema(table, envelope).field("odd").type.value_type, _ODD)
    return ProtoSchema(f"{space}.{name}", file.text(), column_numbers(columns))


@functools.lru_cache(maxsize=256)
def key(table: Table, source: str = "", envelope: Envelope = Envelope.NATIVE) -> ProtoSchema:
    space = names.namespace(table, source if envelope is Envelope.DEBEZIUM else None)
    file = _File(f"{space}.key")
    schema = events.key_schema(table)
    file.columns("Key", list(schema))
    if KEY_ODD in schema.names:
        file.fixed("Odd", schema.field(KEY_ODD).type.value_type, _ODD)
    return ProtoSchema(f"{space}.key.Key", file.text(), column_numbers(schema))


class _File:
    """Collects messages; those of lists come after the message that first names them."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._messages: list[str] = []
        self._lists: dict[str, str] = {}

    def text(self) -> str:
        head = f'syntax = "proto3";\n\npackage {self._package};\n'
        return "\n".join([head, *self._messages, *self._lists.values()])

    def envelope(self, name: str, schema: pa.Schema, numbers: Mapping[str, int], messages: Mapping[str, str]) -> None:
        fields = []
        for field in schema:
            number = numbers[field.name]
            if field.name in ("unchanged", "odd"):
                kind = "Odd" if field.name == "odd" else "string"
                fields.append(Field(number, field.name, kind, field.name, repeated=True))
            elif field.name in messages:
                fields.append(Field(number, field.name, messages[field.name], field.name))
            else:
                fields.append(self._column(field, field.name, number))
        self._add(name, fields)

    def fixed(self, name: str, kind: pa.DataType, numbers: Mapping[str, int]) -> None:
        self._add(name, [self._column(field, field.name, numbers[field.name]) for field in kind])

    def columns(self, name: str, columns: Sequence[pa.Field]) -> None:
        strings, numbers = names.identifiers(c.name for c in columns), column_numbers(columns)
        fields = []
        for column, text in zip(columns, strings, strict=True):
            if numbers[column.name] == _KEY_ODD_NUMBER:
                fields.append(Field(_KEY_ODD_NUMBER, text, "Odd", column.name, repeated=True))
            elif not pa.types.is_null(column.type):
                fields.append(self._column(column, text, numbers[column.name]))
        self._add(name, fields)

    def _column(self, field: pa.Field, name: str, number: int) -> Field:
        return Field(number, name, self._type(field.type), field.name, remark=_REMARKS.get(kind_of(field.type), ""))

    def _type(self, type: pa.DataType) -> str:
        if pa.types.is_dictionary(type):
            return self._type(type.value_type)
        type = plain_type(type) or type
        if not (pa.types.is_list(type) or pa.types.is_large_list(type)):
            return scalar_type(type)
        # A list may be null, and so may its elements; a repeated field can say neither.
        element = self._type(type.value_type)
        name = f"ListOf{element[0].upper()}{element[1:]}"
        self._lists[name] = (
            f"message {name} {{\n  message Item {{\n    optional {element} value = 1;\n  }}\n"
            "  repeated Item items = 1;\n}\n"
        )
        return name

    def _add(self, name: str, fields: Sequence[Field]) -> None:
        lines = []
        for field in fields:
            label = "repeated" if field.repeated else "optional"
            json_name = orjson.dumps(field.json_name).decode()
            remark = f"  // {field.remark}" if field.remark else ""
            lines.append(f"  {label} {field.type} {field.name} = {field.number} [json_name = {json_name}];{remark}\n")
        self._messages.append(f"message {name} {{\n{''.join(lines)}}}\n")
