"""A block's events as typed columns: what Avro, Protobuf, Arrow and Parquet encode. JSON has a program of its own.

The schema follows from the table's version and the envelope alone, never from the rows, so all batches of a version
have one schema. docs/formats.md lists the fields.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.identity import event_ids
from tidemill.model.table import Table

_OPS = pa.array([None, *(op.label for op in Op)], pa.string())
_SIDES = pa.array([side.name.lower() for side in Side])
_TIME = pa.timestamp("us", tz="UTC")
ODD = pa.list_(pa.struct([("side", pa.string()), ("column", pa.string()), ("text", pa.string())]))
NAMES = pa.list_(pa.string())
KEY_ODD = "__odd"
"""Field of a key document for values that their type cannot hold; a name that no column is likely to have."""


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """Fields and their columns. A scalar is the same in all rows; a record inside is never null itself."""

    schema: pa.Schema
    columns: tuple[pa.Array | pa.Scalar | FieldColumns, ...]
    rows: int

    def batch(self) -> pa.RecordBatch:
        arrays = [_array(column, self.rows) for column in self.columns]
        return pa.record_batch(arrays, schema=self.schema)


@functools.lru_cache(maxsize=256)
def schema(table: Table) -> pa.Schema:
    """Of our own event. Without a key there is no `key`, without columns no images: Parquet has no empty structs."""
    fields = [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("source_id", pa.string(), nullable=False),
        pa.field("database", pa.string(), nullable=False),
        pa.field("schema", pa.string(), nullable=False),
        pa.field("table", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("tx_id", pa.uint64()),
        pa.field("position", pa.string()),
        pa.field("ordinal", pa.uint32(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp", _TIME),
        pa.field("schema_version", pa.string(), nullable=False),
        pa.field("schema_sequence", pa.int64(), nullable=False),
        pa.field("ddl", pa.string()),
    ]
    if table.key:
        fields.append(pa.field("key", key_struct(table)))
    if table.columns:
        fields += [pa.field("before", table.arrow_struct()), pa.field("after", table.arrow_struct())]
    fields += [pa.field("unchanged", NAMES), pa.field("odd", ODD)]
    return pa.schema(fields, metadata=facts(table))


def native(block: Block, source: str) -> FieldColumns:
    table, batch = block.table, block.batch
    columns: dict[str, pa.Array | pa.Scalar | FieldColumns] = {
        "event_id": event_ids(block, source),
        "source_id": pa.scalar(source),
        "database": pa.scalar(table.database),
        "schema": pa.scalar(table.schema),
        "table": pa.scalar(table.name),
        "op": _OPS.take(batch.column("op")),
        "tx_id": batch.column("tx_id"),
        "position": batch.column("position").cast(pa.string()),
        "ordinal": batch.column("ordinal"),
        "offset": batch.column("offset"),
        "timestamp": batch.column("commit_time"),
        "schema_version": pa.scalar(table.fingerprint),
        "schema_sequence": pa.scalar(table.sequence, pa.int64()),
        "ddl": block.column("ddl"),
        "unchanged": unchanged_names(block),
        "odd": odd_values(block),
    }
    fields = schema(table)
    for side in ("key", "before", "after"):
        array = block.column(side)
        if array is not None and side in fields.names:
            columns[side] = fit(array, fields.field(side).type)
    return fill(fields, columns, block.rows)


def fill(schema: pa.Schema, columns: dict[str, pa.Array | pa.Scalar | FieldColumns | None], rows: int) -> FieldColumns:
    """The columns in the schema's order; those that are not there are null in every row."""
    given = [columns.get(field.name) for field in schema]
    parts = tuple(
        pa.scalar(None, f.type) if column is None else column for f, column in zip(schema, given, strict=True)
    )
    return FieldColumns(schema, parts, rows)


def key_struct(table: Table) -> pa.DataType:
    return pa.struct([(c.name, c.type.arrow) for c in table.key_columns()])


def fit(array: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    """The struct with exactly the columns of `kind`, in their order."""
    if array.type == kind:
        return array
    children = {f.name: array.field(i) for i, f in enumerate(array.type)}
    arrays = [children[f.name].cast(f.type) if f.name in children else pa.nulls(len(array), f.type) for f in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=array.is_null())


def unchanged_names(block: Block) -> pa.Array | None:
    lists = block.column("unchanged")
    if lists is None:
        return None
    return _relist(lists, pa.array([c.name for c in block.table.columns], pa.string()).take(lists.flatten()))


def odd_values(block: Block) -> pa.Array | None:
    lists = block.column("odd")
    if lists is None:
        return None
    values = lists.flatten()
    names = pa.array([c.name for c in block.table.columns], pa.string())
    arrays = [_SIDES.take(values.field(0)), names.take(values.field(1)), values.field(2)]
    return _relist(lists, pa.StructArray.from_arrays(arrays, fields=list(ODD.value_type)))


def _relist(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """The same lists over other values; rows without a list stay null."""
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null())


def _array(column: pa.Array | pa.Scalar | FieldColumns, rows: int) -> pa.Array:
    match column:
        case FieldColumns():
            batch = column.batch()
            return pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema))
        case pa.Scalar():
            return pa.repeat(column, rows) if column.is_valid else pa.nulls(rows, column.type)
        case _:
            return column


def facts(table: Table) -> dict[str, str]:
    """Metadata of a schema, for readers that look at a file's head only."""
    known = {"database": table.database, "table": table.full_name, "schema_version": table.fingerprint}
    return {f"tidemill.{name}": value for name, value in known.items()}
