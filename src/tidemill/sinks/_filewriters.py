"""Writers of one file each: JSON lines as text, Parquet with typed columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemill.model.block import Block, Op, Side
from tidemill.model.table import Table
from tidemill.sinks._lines import Encoding, windows

_OPS = pa.array([next((op.label for op in Op if op == code), None) for code in range(max(Op) + 1)])
_SIDES = pa.array([side.name.lower() for side in Side])
_ODD = pa.list_(pa.struct([("side", pa.string()), ("column", pa.string()), ("text", pa.string())]))


class LinesWriter:
    def __init__(self, stream: Any, encoding: Encoding) -> None:
        self._stream = stream
        self._encoding = encoding

    def write(self, block: Block) -> None:
        for text in self._encoding.lines(block):
            self._stream.write(text)

    def close(self) -> None:
        self._stream.close()


class ParquetWriter:
    """All files of a table version have one schema, whatever their events happen to be."""

    def __init__(self, stream: Any, encoding: Encoding, table: Table, source: str, compression: str) -> None:
        self._stream = stream
        self._encoding = encoding
        self._source = source
        self._schema = parquet_schema(table)
        self._writer = pq.ParquetWriter(stream, self._schema, compression=compression)

    def write(self, block: Block) -> None:
        for window in windows(block):
            self._writer.write_table(pa.Table.from_batches([typed(window, self._source, self._schema)]))
            self._encoding.events += window.rows
            self._encoding.bytes += window.batch.nbytes

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


def parquet_schema(table: Table) -> pa.Schema:
    """Documented in docs/events.md. Parquet has no empty structs: a table without a key has no `key` column."""
    fields = [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("tx_id", pa.uint64()),
        pa.field("position", pa.string()),
        pa.field("ordinal", pa.uint32(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    ]
    if table.key:
        fields.append(pa.field("key", pa.struct([(c.name, c.type.arrow) for c in table.key_columns()])))
    if table.columns:
        fields += [pa.field("before", table.arrow_struct()), pa.field("after", table.arrow_struct())]
    fields += [pa.field("unchanged", pa.list_(pa.string())), pa.field("odd", _ODD)]
    facts = {"database": table.database, "table": table.full_name, "schema_version": table.fingerprint}
    return pa.schema(fields, metadata={f"tidemill.{name}": value for name, value in facts.items()})


def typed(block: Block, source: str, schema: pa.Schema) -> pa.RecordBatch:
    """The block's rows as one batch of the Parquet schema."""
    batch = block.batch
    position = batch.column("position").cast(pa.string())
    ids = pc.binary_join_element_wise(
        f"{source}:", position, pa.array([":"] * block.rows), batch.column("ordinal").cast(pa.string()), ""
    )  # fmt: skip
    columns = {
        "event_id": ids,
        "op": _OPS.take(batch.column("op")),
        "tx_id": batch.column("tx_id"),
        "position": position,
        "ordinal": batch.column("ordinal"),
        "offset": batch.column("offset"),
        "timestamp": batch.column("commit_time"),
        "unchanged": _named(block),
        "odd": _odd(block),
    }
    for side in ("key", "before", "after"):
        array = block.column(side)
        if array is not None and side in schema.names:
            columns[side] = _fitted(array, schema.field(side).type)
    arrays = [columns.get(f.name, pa.nulls(block.rows, f.type)) for f in schema]
    return pa.record_batch(arrays, schema=schema)


def _fitted(array: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    """The struct with exactly the columns of `kind`, in their order."""
    if array.type == kind:
        return array
    children = {f.name: array.field(i) for i, f in enumerate(array.type)}
    arrays = [children[f.name].cast(f.type) if f.name in children else pa.nulls(len(array), f.type) for f in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=array.is_null())


def _named(block: Block) -> pa.Array:
    lists = block.column("unchanged")
    if lists is None:
        return pa.nulls(block.rows, pa.list_(pa.string()))
    return _relisted(lists, pa.array([c.name for c in block.table.columns]).take(lists.flatten()))


def _odd(block: Block) -> pa.Array:
    lists = block.column("odd")
    if lists is None:
        return pa.nulls(block.rows, _ODD)
    values = lists.flatten()
    names = pa.array([c.name for c in block.table.columns])
    arrays = [_SIDES.take(values.field(0)), names.take(values.field(1)), values.field(2)]
    return _relisted(lists, pa.StructArray.from_arrays(arrays, fields=list(_ODD.value_type)))


def _relisted(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """The same lists over other values; rows without a list stay null."""
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return pa.ListArray.from_arrays(offsets, values, mask=lists.is_null())
