"""Avro: one datum per event, or an object container file with its schema inside.

A single event begins with what tells its schema: the number from a schema registry, or without one the fingerprint of
Avro's single-object encoding. Schemas are in `schema`, the columns' bytes are laid out here.
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

import pyarrow as pa

from tidemill.encoding.program import StringColumn
from tidemill.formats._shared import events
from tidemill.formats._shared.base import BaseFormat
from tidemill.formats._shared.binary import LayoutStep
from tidemill.formats._shared.layout import Layout, list_values, plain, varint
from tidemill.formats._shared.record import FieldColumns
from tidemill.formats.avro import schema as avro_schema
from tidemill.formats.avro.schema import AvroSchema
from tidemill.model.block import Block
from tidemill.model.table import Table
from tidemill.net.schema_registry import Schema, SubjectPart

_NULL, _THERE = 0, b"\x02"  # branches 0 and 1 of a union, zigzag
_MARKED = 65536  # bytes of the first block that the sync marker is made of
_CODECS = {"none": "null", "gzip": "deflate", "zstd": "zstandard"}

_STEPS: dict[pa.DataType, LayoutStep] = {
    pa.bool_(): LayoutStep.BOOL,
    pa.int8(): LayoutStep.ZIGZAG8,
    pa.int16(): LayoutStep.ZIGZAG16,
    pa.int32(): LayoutStep.ZIGZAG32,
    pa.int64(): LayoutStep.ZIGZAG64,
    pa.uint8(): LayoutStep.ZIGZAG_U8,
    pa.uint16(): LayoutStep.ZIGZAG_U16,
    pa.uint32(): LayoutStep.ZIGZAG_U32,
    pa.uint64(): LayoutStep.BIG_ENDIAN_U64,
    pa.float32(): LayoutStep.FIXED32,
    pa.float64(): LayoutStep.FIXED64,
    pa.date32(): LayoutStep.ZIGZAG32,
    pa.time64("us"): LayoutStep.ZIGZAG64,
    pa.string(): LayoutStep.BYTES32,
    pa.binary(): LayoutStep.BYTES32,
    pa.large_string(): LayoutStep.BYTES64,
    pa.large_binary(): LayoutStep.BYTES64,
}


class AvroFormat(BaseFormat):
    content_type = "application/avro"
    batch_content_type = "application/avro"
    suffix = ".avro"

    def schema(self, table: Table, source: str) -> AvroSchema:
        """Of an event; what a reader of single events needs to know."""
        return avro_schema.event(table, source, self.envelope)

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        frame = self._frame(self.schema(block.table, source), SubjectPart.VALUE)
        return _datums(events.record(block, source, self.envelope), frame).array()

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        record, found = events.key(block)
        if not found.any():
            return pa.nulls(block.rows, pa.large_binary())
        frame = self._frame(avro_schema.key(block.table, source, self.envelope), SubjectPart.KEY)
        return _datums(record, frame).array(found)

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> ContainerWriter:
        return ContainerWriter(self, stream, table, source, compression)

    def _frame(self, schema: AvroSchema, part: SubjectPart) -> bytes:
        if self.schemas is None:
            return b"\xc3\x01" + schema.fingerprint
        return self.schemas.frame(Schema(schema.name, "AVRO", schema.text), part, self.topic)


class ContainerWriter:
    """An object container file, a block of it per block of ours. The sync marker comes from what the file begins with,
    so that a replay writes the same file (invariant 5)."""

    def __init__(self, format: AvroFormat, stream: Any, table: Table, source: str, compression: str) -> None:
        self._format = format
        self._stream = stream
        self._source = source
        self._schema = format.schema(table, source)
        self._codec = _CODECS[compression]
        self._sync = b""

    def write(self, block: Block) -> None:
        strings = _datums(events.record(block, self._source, self._format.envelope), b"")
        data = _compress(strings.data, self._codec)
        self._begin(data)
        self._stream.write(_long(block.rows) + _long(len(data)))
        self._stream.write(data)
        self._stream.write(self._sync)

    def close(self) -> None:
        self._begin(b"")

    def _begin(self, first: bytes | pa.Buffer) -> None:
        if self._sync:
            return
        facts = {"avro.schema": self._schema.text.encode(), "avro.codec": self._codec.encode()}
        pairs = b"".join(_long(len(k)) + k.encode() + _long(len(v)) + v for k, v in facts.items())
        head = b"Obj\x01" + _long(len(facts)) + pairs + b"\x00"
        digest = hashlib.sha256(head)
        digest.update(memoryview(first)[:_MARKED])
        self._sync = digest.digest()[:16]
        self._stream.write(head + self._sync)


def _datums(record: FieldColumns, frame: bytes) -> StringColumn:
    layout = Layout(record.rows)
    layout.constant(frame)
    _lay_record(layout, record)
    return layout.run()


def _lay_record(layout: Layout, record: FieldColumns) -> None:
    for field, column in zip(record.schema, record.columns, strict=True):
        match column:
            case FieldColumns():
                _lay_record(layout, column)
            case pa.Scalar() if column.is_valid:
                text = _constant(column)
                layout.constant(_THERE + text if field.nullable else text)
            case pa.Scalar():
                layout.constant(bytes([_NULL]) if not pa.types.is_null(field.type) else b"")
            case _ if field.type == pa.uint64():  # of the envelope: counts, far from 2**63
                _lay(layout, column.cast(pa.int64()), field.nullable)
            case _:
                _lay(layout, column, field.nullable)


def _lay(layout: Layout, array: pa.Array, nullable: bool) -> None:
    array = plain(array)
    kind = array.type
    null, there = (_NULL, _THERE) if nullable else (-1, b"")
    if kind in _STEPS:
        layout.value(_STEPS[kind], array, there, null, parameter=1)
    elif pa.types.is_timestamp(kind):
        layout.value(LayoutStep.ZIGZAG64, array, there, null)
    elif pa.types.is_decimal128(kind):
        layout.value(LayoutStep.BIG_ENDIAN128, array, there, null)
    elif pa.types.is_decimal256(kind):
        layout.value(LayoutStep.BIG_ENDIAN256, array, there, null)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = list_values(array)
        elements = Layout(len(values))
        _lay(elements, values, nullable=True)
        layout.elements(LayoutStep.ARRAY32, array, elements.run(), there, null)
    elif pa.types.is_struct(kind):
        skip = layout.skip_if_null(array, there, null)
        for number in range(kind.num_fields):
            _lay(layout, array.field(number), nullable=True)
        layout.land(skip)
    elif not pa.types.is_null(kind):  # `schema` has said that there is no such type
        raise TypeError(f"no Avro for {kind}")


def _constant(scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    if isinstance(value, int):
        return _long(value)
    data = str(value).encode()
    return _long(len(data)) + data


def _long(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63))


def _compress(data: pa.Buffer, codec: str) -> bytes | pa.Buffer:
    match codec:
        case "null":
            return data
        case "deflate":
            packer = zlib.compressobj(6, zlib.DEFLATED, -15)  # without zlib's own head, as the specification wants it
            return packer.compress(data) + packer.flush()
        case _:
            return pa.compress(data, "zstd", asbytes=True)


component = AvroFormat
