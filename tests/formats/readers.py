"""Other people's readers of our formats: fastavro, google.protobuf, pyarrow. Each gives events as plain dictionaries.

Moments stay numbers (days, microseconds): Python's clock ends with the year 9999, the databases' do not. NaN becomes
text, so that it equals itself.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.internal.decoder import _DecodeVarint32

from tidemill.formats._shared.base import BaseFormat
from tidemill.formats.avro import AvroFormat
from tidemill.formats.protobuf import ProtobufFormat
from tidemill.lab.protofile import load_messages
from tidemill.model.block import Block, Op, Side
from tidemill.model.table import Table

Row = dict[str, Any]
SOURCE = "orders-db"


def read_one(format: BaseFormat, table: Table, document: bytes) -> Row:
    """One event, without framing."""
    return _ONE[type(format).__name__](format, table, document)


def read_batch(format: BaseFormat, table: Table, data: bytes) -> list[Row]:
    return _MANY[type(format).__name__](format, table, data)


def expected(block: Block, source: str = SOURCE) -> list[Row]:
    """Our own event as the documentation has it, built row by row from the block."""
    table, names = block.table, [c.name for c in block.table.columns]
    return [_expected(row, table, names, source) for row in _plain_batch(block.batch)]


def _expected(row: Row, table: Table, names: list[str], source: str) -> Row:
    return {
        "event_id": f"{source}:{row['position']}:{row['ordinal']}",
        "source_id": source, "database": table.database, "schema": table.schema, "table": table.name,
        "op": Op(row["op"]).label, "tx_id": row["tx_id"], "position": row["position"],
        "ordinal": row["ordinal"], "offset": row["offset"], "timestamp": row["commit_time"],
        "schema_version": table.fingerprint, "schema_sequence": table.sequence, "ddl": row.get("ddl"),
        **({"key": row.get("key")} if table.key else {}),
        **({"before": row.get("before"), "after": row.get("after")} if names else {}),
        "unchanged": None if row.get("unchanged") is None else [names[i] for i in row["unchanged"]],
        "odd": None if row.get("odd") is None else [
            {"side": Side(o["side"]).name.lower(), "column": names[o["column"]], "text": o["text"]} for o in row["odd"]
        ],
    }  # fmt: skip


def shown(value: Any) -> Any:
    """A value that can be compared."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return value.hex()
        case dict():
            return {name: shown(inner) for name, inner in value.items()}
        case list() | tuple():
            return [shown(inner) for inner in value]
    return value


def numbers(array: pa.Array) -> pa.Array:
    """The same array with moments as numbers, at every depth."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return numbers(array.dictionary_decode())
    if pa.types.is_date32(kind):
        return array.cast(pa.int32())
    if pa.types.is_time64(kind) or pa.types.is_timestamp(kind):
        return array.cast(pa.int64())
    if pa.types.is_struct(kind):
        children = [numbers(array.field(i)) for i in range(kind.num_fields)]
        fields = [pa.field(f.name, child.type) for f, child in zip(kind, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=array.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, numbers(array.values), mask=array.is_null())
    return array


def _plain_batch(batch: pa.RecordBatch) -> list[Row]:
    fresh = pa.concat_batches([batch])  # lists of a slice cannot be rebuilt
    if batch.num_rows:
        fresh = fresh.take(pa.array(range(batch.num_rows)))
    arrays = [numbers(column) for column in fresh.columns]
    return [shown(row) for row in pa.record_batch(arrays, names=batch.schema.names).to_pylist()]


def avro_schema(text: str) -> Any:
    """Without the logical types of moments, so that fastavro gives numbers."""

    def strip(part: Any) -> Any:
        match part:
            case {"logicalType": "date" | "time-micros" | "timestamp-micros" | "local-timestamp-micros"}:
                return part["type"]
            case dict():
                return {name: strip(inner) for name, inner in part.items()}
            case list():
                return [strip(inner) for inner in part]
        return part

    return strip(json.loads(text))


def _avro_one(format: BaseFormat, table: Table, document: bytes) -> Row:
    assert isinstance(format, AvroFormat)
    schema = format.schema(table, SOURCE)
    assert document[:2] == b"\xc3\x01"
    assert document[2:10] == schema.fingerprint
    stream = io.BytesIO(document[10:])
    row = fastavro.schemaless_reader(stream, fastavro.parse_schema(avro_schema(schema.text)), None)
    assert not stream.read(), "bytes behind the datum"
    return _renamed_avro(row, json.loads(schema.text))


def _avro_many(format: BaseFormat, table: Table, data: bytes) -> list[Row]:
    head = fastavro.reader(io.BytesIO(data)).metadata["avro.schema"].encode()
    # The file's own schema, blanks in the place of what was taken out, keeps every length in the file right.
    stripped = json.dumps(avro_schema(head.decode()), separators=(",", ":")).encode().ljust(len(head))
    rows = fastavro.reader(io.BytesIO(data.replace(head, stripped, 1)))
    return [_renamed_avro(row, json.loads(head)) for row in rows]


def _renamed_avro(row: Any, schema: Any, known: dict[str, Any] | None = None) -> Any:
    """Columns under their own names, where Avro would not have them."""
    known = _records(schema) if known is None else known
    if isinstance(schema, str):
        schema = known.get(schema, schema)
    match schema:
        case list():
            return None if row is None else _renamed_avro(row, schema[1], known)
        case {"type": "record"}:
            return {
                field.get("tidemill.name", field["name"]): _renamed_avro(row[field["name"]], field["type"], known)
                for field in schema["fields"]
            }
        case {"type": "array"}:
            return [_renamed_avro(item, schema["items"], known) for item in row]
        case {"precision": 20, "scale": 0}:
            return int(row)  # unsigned 64 bits
    return shown(row)


def _records(schema: Any) -> dict[str, Any]:
    match schema:
        case list():
            return {name: found for part in schema for name, found in _records(part).items()}
        case {"type": "record"}:
            inner = _records([field["type"] for field in schema["fields"]])
            return {schema["name"]: schema, **inner}
        case {"type": "array"}:
            return _records(schema["items"])
    return {}


def _proto_one(format: BaseFormat, table: Table, document: bytes) -> Row:
    assert isinstance(format, ProtobufFormat)
    schema = format.schema(table, SOURCE)
    message = load_messages(schema.text)[schema.name]()
    assert message.ParseFromString(document) == len(document)
    return proto_row(message)


def _proto_many(format: BaseFormat, table: Table, data: bytes) -> list[Row]:
    rows, at = [], 0
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        rows.append(_proto_one(format, table, data[at : at + size]))
        at += size
    return rows


def proto_row(message: Any) -> Row:
    row: Row = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            items = [proto_row(item) if field.message_type else item for item in value]
            row[field.json_name] = items or None
        elif not message.HasField(field.name):
            row[field.json_name] = None
        elif field.message_type and field.message_type.name.startswith("ListOf"):
            row[field.json_name] = _list(value)
        else:
            row[field.json_name] = proto_row(value) if field.message_type else shown(value)
    return row


def _list(message: Any) -> list[Any]:
    items: list[Any] = []
    for item in message.items:
        if not item.HasField("value"):
            items.append(None)
        else:
            nested = item.DESCRIPTOR.fields_by_name["value"].message_type
            items.append(_list(item.value) if nested else shown(item.value))
    return items


def _arrow_many(format: BaseFormat, table: Table, data: bytes) -> list[Row]:
    return _rows(pa.ipc.open_stream(data).read_all())


def _parquet_many(format: BaseFormat, table: Table, data: bytes) -> list[Row]:
    return _rows(pq.read_table(io.BytesIO(data)))


def _rows(table: pa.Table) -> list[Row]:
    return [row for batch in table.to_batches() for row in _plain_batch(batch)]


def _json_many(format: BaseFormat, table: Table, data: bytes) -> list[Row]:
    return [json.loads(line) for line in data.splitlines()]


def _only(read: Callable[[BaseFormat, Table, bytes], list[Row]]) -> Callable[[BaseFormat, Table, bytes], Row]:
    def one(format: BaseFormat, table: Table, document: bytes) -> Row:
        (row,) = read(format, table, document)
        return row

    return one


_MANY = {
    "AvroFormat": _avro_many, "ProtobufFormat": _proto_many, "ArrowFormat": _arrow_many,
    "ParquetFormat": _parquet_many, "JsonFormat": _json_many,
}  # fmt: skip
_ONE = {name: _only(read) for name, read in _MANY.items()} | {"AvroFormat": _avro_one, "ProtobufFormat": _proto_one}
