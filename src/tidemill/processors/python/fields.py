"""Columns of an image by name, for functions that are given a batch: `get(batch, "after.status")`."""

from __future__ import annotations

import pyarrow as pa


def get(batch: pa.RecordBatch, path: str) -> pa.Array | None:
    """A column of `before`, `after` or `key`; null in rows without that image. None where the batch has none."""
    side, _, name = path.partition(".")
    at = batch.schema.get_field_index(side)
    if at < 0 or not name:
        return None if at < 0 else batch.column(at)
    struct = batch.column(at)
    number = struct.type.get_field_index(name)
    return None if number < 0 else struct.flatten()[number]


def put(batch: pa.RecordBatch, path: str, values: pa.Array) -> pa.RecordBatch:
    """The batch with a column of an image set or added. Rows without the image stay without it."""
    side, _, name = path.partition(".")
    at = batch.schema.get_field_index(side)
    if at < 0:
        raise KeyError(side)
    struct = batch.column(at)
    columns = {field.name: struct.field(number) for number, field in enumerate(struct.type)} | {name: values}
    mask = struct.is_null() if struct.null_count else None
    made = pa.StructArray.from_arrays(list(columns.values()), names=list(columns), mask=mask)
    return batch.set_column(at, side, made)
