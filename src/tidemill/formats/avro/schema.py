"""Avro schemas from a table's version. docs/formats.md has the rules in words.

Names come from the table, never from its version. Every column may be null and defaults to null, so a reader with an
older or newer schema of the table can read both.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from tidemill.encoding.program import plain_type
from tidemill.errors import Refused
from tidemill.formats._shared import events
from tidemill.formats._shared import names as schema_names
from tidemill.formats._shared.base import Envelope
from tidemill.model.table import Table

_PLAIN: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.uint8(): "int",
    pa.uint16(): "int",
    pa.uint32(): "long",
    pa.uint64(): {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0},
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
    pa.null(): "null",
}


@dataclass(frozen=True, slots=True)
class AvroSchema:
    """`fingerprint` is the CRC-64-AVRO of the canonical form, little-endian."""

    name: str
    text: str
    fingerprint: bytes


@functools.lru_cache(maxsize=256)
def event(table: Table, source: str, envelope: Envelope) -> AvroSchema:
    schema = events.schema(table, envelope)
    if envelope is Envelope.DEBEZIUM:
        space = schema_names.namespace(table, source)
        names = {"": f"{space}.Envelope", "before": f"{space}.Value", "after": f"{space}.Value"}
        names |= {"source": "io.tidemill.debezium.Source", "transaction": "event.block"}
    else:
        space = schema_names.namespace(table)
        names = {"": f"{space}.Event", "key": f"{space}.Key", "before": f"{space}.Row", "after": f"{space}.Row"}
    return _finish(schema, {**names, "odd": "io.tidemill.Odd"}, space)


@functools.lru_cache(maxsize=256)
def key(table: Table, source: str = "", envelope: Envelope = Envelope.NATIVE) -> AvroSchema:
    space = schema_names.namespace(table, source if envelope is Envelope.DEBEZIUM else None)
    return _finish(events.key_schema(table), {"": f"{space}.Key", "__odd": "io.tidemill.Odd"}, space)


def type_of(kind: pa.DataType) -> Any:
    """What a column of this type is in a schema, apart from the union with null."""
    return _Writer({}, "")._type(kind, "")


def _finish(schema: pa.Schema, names: dict[str, str], space: str) -> AvroSchema:
    document = _Writer(names, space).record(list(schema), "", envelope=True)
    crc = _crc64(orjson.dumps(_canonical(document)))
    return AvroSchema(names[""], orjson.dumps(document).decode(), crc.to_bytes(8, "little"))


class _Writer:
    """Walks a schema. A record is written out where it first stands and named where it stands again."""

    def __init__(self, names: dict[str, str], space: str) -> None:
        self._names = names
        self._space = space
        self._written: set[str] = set()

    def record(self, fields: list[pa.Field], path: str, *, envelope: bool = False) -> Any:
        name = self._names.get(path) or f"{self._space}.{schema_names.identifier(path)}"
        if name in self._written:
            return name
        self._written.add(name)
        return {
            "type": "record",
            "name": name,
            "fields": [
                self._field(field, text, path, envelope)
                for field, text in zip(fields, schema_names.identifiers(f.name for f in fields), strict=True)
            ],
        }

    def _field(self, field: pa.Field, name: str, path: str, envelope: bool) -> dict[str, Any]:
        inner = f"{path}.{field.name}" if path else field.name
        # The envelope's unsigned numbers are counts that a long holds; a column may use all 64 bits.
        counted = envelope and field.type == pa.uint64()
        kind = "long" if counted else self._type(field.type, inner)
        written: dict[str, Any] = {"name": name, "type": kind}
        if field.nullable:
            written |= {"type": "null" if kind == "null" else ["null", kind], "default": None}
        if name != field.name:
            written["tidemill.name"] = field.name
        return written

    def _type(self, kind: pa.DataType, path: str) -> Any:
        if pa.types.is_dictionary(kind):
            return self._type(kind.value_type, path)
        kind = plain_type(kind) or kind
        if kind in _PLAIN:
            return _PLAIN[kind]
        if pa.types.is_timestamp(kind):
            return {"type": "long", "logicalType": "timestamp-micros"}
        if pa.types.is_decimal(kind):
            return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            element = self._type(kind.value_type, path)
            return {"type": "array", "items": "null" if element == "null" else ["null", element]}
        if pa.types.is_struct(kind):
            return self.record(list(kind), path)
        raise Refused(f"a column of type {kind} has no Avro form", fix="Leave the column out, or use JSON.")


def _canonical(schema: Any) -> Any:
    """The specification's "Parsing Canonical Form": what matters to a reader, in one order. Our names are full."""
    match schema:
        case list():
            return [_canonical(part) for part in schema]
        case {"type": "record"}:
            fields = [{"name": f["name"], "type": _canonical(f["type"])} for f in schema["fields"]]
            return {"name": schema["name"], "type": "record", "fields": fields}
        case {"type": "array"}:
            return {"type": "array", "items": _canonical(schema["items"])}
        case {"type": str(primitive)}:
            return primitive
        case _:
            return schema


_EMPTY = 0xC15D213AA4D7A795


@functools.lru_cache(maxsize=1)
def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (_EMPTY if value & 1 else 0)
        table.append(value)
    return table


def _crc64(data: bytes) -> int:
    table, crc = _crc_table(), _EMPTY
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc
