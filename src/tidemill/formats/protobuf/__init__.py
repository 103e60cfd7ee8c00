"""Protobuf: one message per event, or many of them, each after its length.

The .proto file of a table's version is in `schema`; the columns' bytes are laid out here. Messages inside a
message are laid out first, because their length stands before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidemill.encoding.program import StringColumn
from tidemill.formats._shared import events
from tidemill.formats._shared.base import BaseFormat, Envelope
from tidemill.formats._shared.binary import LayoutStep
from tidemill.formats._shared.layout import Layout, list_values, plain, varint
from tidemill.formats._shared.record import KEY_ODD, FieldColumns
from tidemill.formats.protobuf import schema as protobuf_schema
from tidemill.formats.protobuf.schema import DEBEZIUM, NATIVE, SOURCE, ProtoSchema, column_numbers
from tidemill.model.block import Block
from tidemill.model.table import Table
from tidemill.net.schema_registry import Schema, SubjectPart

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_REPEATED = ("unchanged", "odd", KEY_ODD)
_STEPS: dict[pa.DataType, tuple[LayoutStep, int]] = {
    pa.bool_(): (LayoutStep.BOOL, _VARINT),
    pa.int8(): (LayoutStep.ZIGZAG8, _VARINT),
    pa.int16(): (LayoutStep.ZIGZAG16, _VARINT),
    pa.int32(): (LayoutStep.ZIGZAG32, _VARINT),
    pa.int64(): (LayoutStep.ZIGZAG64, _VARINT),
    pa.uint8(): (LayoutStep.VARINT8, _VARINT),
    pa.uint16(): (LayoutStep.VARINT16, _VARINT),
    pa.uint32(): (LayoutStep.VARINT32, _VARINT),
    pa.uint64(): (LayoutStep.VARINT64, _VARINT),
    pa.float32(): (LayoutStep.FIXED32, _FIXED32),
    pa.float64(): (LayoutStep.FIXED64, _FIXED64),
    pa.date32(): (LayoutStep.ZIGZAG32, _VARINT),
    pa.time64("us"): (LayoutStep.ZIGZAG64, _VARINT),
    pa.string(): (LayoutStep.BYTES32, _BYTES),
    pa.binary(): (LayoutStep.BYTES32, _BYTES),
    pa.large_string(): (LayoutStep.BYTES64, _BYTES),
    pa.large_binary(): (LayoutStep.BYTES64, _BYTES),
}


class ProtobufFormat(BaseFormat):
    content_type = "application/protobuf"
    batch_content_type = "application/protobuf; delimited=true"
    suffix = ".pb"
    schema_in_file = False  # but readers want one .proto for a file, and versions are compatible

    def schema(self, table: Table, source: str) -> ProtoSchema:
        """Of an event; what a reader needs to know."""
        return protobuf_schema.event(table, source, self.envelope)

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        frame = b""
        if self.schemas is not None:
            frame = self._frame(self.schema(block.table, source), SubjectPart.VALUE)
        return self._messages(block, source, frame).array()

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        record, found = events.key(block)
        if not found.any():
            return pa.nulls(block.rows, pa.large_binary())
        frame = b""
        if self.schemas is not None:
            frame = self._frame(protobuf_schema.key(block.table, source, self.envelope), SubjectPart.KEY)
        layout = Layout(record.rows)
        layout.constant(frame)
        _lay_record(layout, record, column_numbers(record.schema))
        return layout.run().array(found)

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> DelimitedWriter:
        return DelimitedWriter(self, stream, source)

    def stack(self, block: Block, source: str) -> pa.LargeBinaryArray:
        return self.delimit(block, source).array()

    def delimit(self, block: Block, source: str) -> StringColumn:
        """Messages, each after its length as a varint."""
        strings = self._messages(block, source, b"")
        layout = Layout(block.rows)
        layout.strings(strings)
        return layout.run()

    def _messages(self, block: Block, source: str, frame: bytes) -> StringColumn:
        record = events.record(block, source, self.envelope)
        layout = Layout(record.rows)
        layout.constant(frame)
        _lay_record(layout, record, DEBEZIUM if self.envelope is Envelope.DEBEZIUM else NATIVE)
        return layout.run()

    def _frame(self, schema: ProtoSchema, part: SubjectPart) -> bytes:
        """The zero at the end says: the first message of the file."""
        assert self.schemas is not None
        return self.schemas.frame(Schema(schema.name, "PROTOBUF", schema.text), part, self.topic) + b"\x00"


class DelimitedWriter:
    def __init__(self, format: ProtobufFormat, stream: Any, source: str) -> None:
        self._format = format
        self._stream = stream
        self._source = source

    def write(self, block: Block) -> None:
        self._stream.write(self._format.delimit(block, self._source).data)

    def close(self) -> None:
        pass


def _lay_record(layout: Layout, record: FieldColumns, numbers: Mapping[str, int]) -> None:
    for field, column in zip(record.schema, record.columns, strict=True):
        number = numbers[field.name]
        match column:
            case FieldColumns():
                inner = Layout(record.rows)
                _lay_record(inner, column, SOURCE)
                layout.strings(inner.run(), _tag(number, _BYTES))
            case pa.Scalar():
                layout.constant(_constant(number, column) if column.is_valid else b"")
            case _ if field.name in _REPEATED:
                elements = _elements(column, number)
                layout.elements(LayoutStep.REPEATED32, column, elements, b"")
            case _ if pa.types.is_struct(column.type):
                layout.strings(_message(column, column_numbers(column.type)), _tag(number, _BYTES), column)
            case _:
                _lay(layout, column, number)


def _lay(layout: Layout, array: pa.Array, number: int) -> None:
    array = plain(array)
    kind = array.type
    if kind in _STEPS:
        step, wire = _STEPS[kind]
        layout.value(step, array, _tag(number, wire))
    elif pa.types.is_timestamp(kind):
        layout.value(LayoutStep.ZIGZAG64, array, _tag(number, _VARINT))
    elif pa.types.is_decimal(kind):
        step = LayoutStep.DECIMAL128 if pa.types.is_decimal128(kind) else LayoutStep.DECIMAL256
        layout.value(step, array, _tag(number, _BYTES), parameter=kind.scale)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = list_values(array)
        item = Layout(len(values))
        _lay(item, values, 1)
        items = Layout(len(values))
        items.strings(item.run(), _tag(1, _BYTES))
        layout.elements(LayoutStep.MESSAGE32, array, items.run(), _tag(number, _BYTES))
    elif not pa.types.is_null(kind):  # `schema` has said that there is no such type
        raise TypeError(f"no Protobuf for {kind}")


def _message(struct: pa.StructArray, numbers: Mapping[str, int]) -> StringColumn:
    """One message per row; empty where the struct is null."""
    layout = Layout(len(struct))
    skip = layout.skip_if_null(struct, b"", -1)
    for place, field in enumerate(struct.type):
        _lay(layout, struct.field(place), numbers[field.name])
    layout.land(skip)
    return layout.run()


def _elements(lists: pa.Array, number: int) -> StringColumn:
    """Elements of a repeated field, each with its tag: texts, or messages with fields numbered from 1."""
    values = list_values(lists)
    layout = Layout(len(values))
    if pa.types.is_struct(values.type):
        numbers = {field.name: place + 1 for place, field in enumerate(values.type)}
        layout.strings(_message(values, numbers), _tag(number, _BYTES))
    else:
        _lay(layout, values, number)
    return layout.run()


def _constant(number: int, scalar: pa.Scalar) -> bytes:
    value = scalar.as_py()
    if isinstance(value, int):
        return _tag(number, _VARINT) + varint((value << 1) ^ (value >> 63))
    data = str(value).encode()
    return _tag(number, _BYTES) + varint(len(data)) + data


def _tag(number: int, wire: int) -> bytes:
    return varint(number << 3 | wire)


component = ProtobufFormat
