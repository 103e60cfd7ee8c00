"""The schema part of Debezium's JSON: Kafka Connect's description of the payload, as its JSON converter writes it.

Values are those of docs/events.md, which Debezium sends with `decimal.handling.mode=string`,
`bigint.unsigned.handling.mode=precise` and `time.precision.mode=isostring`; the schema says so by its types and
semantic names. The order of fields is that of Debezium 3.5.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

import orjson
import pyarrow as pa

from tidemill.encoding.program import plain_type
from tidemill.formats._shared.debezium import Connector
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

_PLAIN: dict[pa.DataType, dict[str, Any]] = {
    pa.bool_(): {"type": "boolean"},
    pa.int8(): {"type": "int16"},  # Connect's int8 is Java's byte, which Debezium does not use for numbers
    pa.int16(): {"type": "int16"},
    pa.int32(): {"type": "int32"},
    pa.int64(): {"type": "int64"},
    pa.uint8(): {"type": "int16"},
    pa.uint16(): {"type": "int32"},
    pa.uint32(): {"type": "int64"},
    # As `precise`: a number beyond int64 is exact. Connect's converter reads a Decimal from base64 or from a number.
    pa.uint64(): {
        "type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "version": 1,
        "parameters": {"scale": "0", "connect.decimal.precision": "20"},
    },
    pa.float32(): {"type": "float"},
    pa.float64(): {"type": "double"},
    pa.binary(): {"type": "bytes"},
    pa.large_binary(): {"type": "bytes"},
    pa.date32(): {"type": "string", "name": "io.debezium.time.IsoDate", "version": 1},
    pa.time64("us"): {"type": "string", "name": "io.debezium.time.IsoTime", "version": 1},
    pa.timestamp("us"): {"type": "string", "name": "io.debezium.time.IsoTimestamp", "version": 1},
}  # fmt: skip
_BY_NAME = {  # texts that have a meaning of their own
    "json": "io.debezium.data.Json", "jsonb": "io.debezium.data.Json", "xml": "io.debezium.data.Xml",
    "uuid": "io.debezium.data.Uuid", "interval": "io.debezium.time.Interval", "ltree": "io.debezium.data.Ltree",
    "time with time zone": "io.debezium.time.ZonedTime", "year": "io.debezium.time.Year",
}  # fmt: skip
_TIMES = ("ts_ms", "ts_us", "ts_ns")
_MESSAGE = "io.debezium.connector.postgresql.Message"


@functools.lru_cache(maxsize=256)
def envelope(table: Table, source: str, connector: Connector, message: bool, null: frozenset[str]) -> bytes:
    """`null` are columns that have no value in some row although `required` has them: they are optional there."""
    prefix = _prefix(table, source)
    if message:
        images = [{**_struct(_MESSAGE, _columns(table.columns, frozenset()), False, "message"), "version": 1}]
    else:
        columns = _columns(table.columns, require(table) - null)
        images = [_struct(f"{prefix}.Value", columns, True, side) for side in ("before", "after")]
    block = [_field("string", "id", False), _field("int64", "total_order", False)]
    block.append(_field("int64", "data_collection_order", False))
    fields = [
        *images,
        {**_struct(f"io.debezium.connector.{connector}.Source", _source(connector), False, "source"), "version": 1},
        {**_struct("event.block", block, True, "transaction"), "version": 1},
        _field("string", "op", False),
        *(_field("int64", name, True) for name in _TIMES),
    ]
    whole = _struct(f"{_MESSAGE}Value" if message else f"{prefix}.Envelope", fields, False)
    return orjson.dumps({**whole, "version": 1 if message else 2})


@functools.lru_cache(maxsize=256)
def key(table: Table, source: str) -> bytes:
    fields = _columns(table.key_columns(), require(table))
    return orjson.dumps(_struct(f"{_prefix(table, source)}.Key", fields, False))


@functools.lru_cache(maxsize=256)
def require(table: Table) -> frozenset[str]:
    """NOT NULL columns that every image has. `before` and `after` are one type: where the source sends no more than the
    key of an old row, `before` has nulls for the rest. Debezium requires those too, and invents zeros for them."""
    return frozenset(
        c.name for c in table.columns if not c.nullable and (table.identity == "full" or c.name in table.key)
    )


def _prefix(table: Table, source: str) -> str:
    """As Debezium names topics and, after them, schemas: what a topic's name cannot hold is an underscore."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", ".".join(part for part in (source, table.schema, table.name) if part))


def _columns(columns: Iterable[Column], known: frozenset[str]) -> list[dict[str, Any]]:
    return [{**_type(c.type), "optional": c.name not in known, "field": c.name} for c in columns]


def _type(kind: DataType) -> dict[str, Any]:
    if kind.json is JsonForm.ARRAY:
        return {"type": "array", "items": {**_arrow_type(kind.arrow.value_type), "optional": True}}
    shown = _arrow_type(kind.arrow)
    if shown == {"type": "string"}:
        named = _BY_NAME.get(re.sub(r"\(.*?\)", "", kind.native).strip().lower())
        return {"type": "string", "name": named, "version": 1} if named else shown
    return shown


def _arrow_type(kind: pa.DataType) -> dict[str, Any]:
    kind = plain_type(kind) or kind
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_timestamp(kind):
        return {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "version": 1}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"type": "array", "items": {**_arrow_type(kind.value_type), "optional": True}}
    return {"type": "string"}  # texts, and decimals with every digit


def _source(connector: Connector) -> list[dict[str, Any]]:
    fields = [_field("string", name, False) for name in ("version", "connector", "name")]
    fields.append(_field("int64", "ts_ms", False))
    snapshot = {"type": "string", "optional": True, "name": "io.debezium.data.Enum", "version": 1}
    allowed = {"allowed": "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"}
    fields.append({**snapshot, "parameters": allowed, "default": "false", "field": "snapshot"})
    fields += [_field("string", "db", False), _field("string", "sequence", True)]
    fields += [_field("int64", name, True) for name in ("ts_us", "ts_ns")]
    if connector is Connector.POSTGRESQL:
        fields += [_field("string", "schema", False), _field("string", "table", False)]
        fields += [_field("int64", name, True) for name in ("txId", "lsn", "xmin")]
        return [*fields, _field("string", "origin", True), _field("int64", "origin_lsn", True)]
    fields += [_field("string", "table", True), _field("int64", "server_id", True), _field("string", "gtid", True)]
    fields += [_field("string", "file", True), _field("int64", "pos", True), _field("int32", "row", False)]
    return [*fields, _field("int64", "thread", True), _field("string", "query", True)]


def _field(kind: str, name: str, optional: bool) -> dict[str, Any]:
    return {"type": kind, "optional": optional, "field": name}


def _struct(name: str, fields: list[dict[str, Any]], optional: bool, field: str | None = None) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "struct", "fields": fields, "optional": optional, "name": name}
    return made if field is None else {**made, "field": field}
