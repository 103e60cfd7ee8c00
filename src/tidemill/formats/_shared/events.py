"""The record of an event in the chosen envelope, and of its key, for the formats with typed columns."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import Poisoned
from tidemill.formats._shared import debezium
from tidemill.formats._shared import record as records
from tidemill.formats._shared.base import Envelope
from tidemill.formats._shared.record import KEY_ODD, ODD, FieldColumns
from tidemill.model.block import Block, Side
from tidemill.model.table import Table


def schema(table: Table, envelope: Envelope) -> pa.Schema:
    return debezium.schema(table) if envelope is Envelope.DEBEZIUM else records.schema(table)


def record(block: Block, source: str, envelope: Envelope) -> FieldColumns:
    """A CloudEvent's data is our own event."""
    return debezium.record(block, source) if envelope is Envelope.DEBEZIUM else records.native(block, source)


@functools.lru_cache(maxsize=256)
def key_schema(table: Table) -> pa.Schema:
    """The key columns. Where one of them has a type that cannot hold all of its values, `__odd` has their texts."""
    fields = [pa.field(c.name, c.type.arrow) for c in table.key_columns()]
    if any(_may_be_odd(c.type.arrow) for c in table.key_columns()):
        fields.append(pa.field(KEY_ODD, ODD))
    return pa.schema(fields)


def key(block: Block) -> tuple[FieldColumns, np.ndarray[Any, np.dtype[np.bool_]]]:
    """The key columns, from the newest image that has them, and which rows have a key at all."""
    images = [(side, a) for side in (Side.AFTER, Side.BEFORE, Side.KEY) if (a := _image(block, side)) is not None]
    found = np.zeros(block.rows, np.bool_)
    newest = np.full(block.rows, -1, np.int8)
    for side, array in images:
        there = np.asarray(array.is_valid())
        newest[there & ~found] = side
        found |= there
    if not block.table.key or not images:
        return FieldColumns(pa.schema([]), (), block.rows), np.zeros(block.rows, np.bool_)
    fields = key_schema(block.table)
    columns: dict[str, Any] = {}
    for column in block.table.key_columns():
        values = [image[column.name] for image in _children(block, images) if column.name in image]
        columns[column.name] = pc.coalesce(*values) if values else None
    if block.column("odd") is not None:
        columns[KEY_ODD] = _odd_keys(block, newest, KEY_ODD in fields.names)
    return records.fill(fields, columns, block.rows), found


def _odd_keys(block: Block, newest: np.ndarray[Any, np.dtype[np.int8]], room: bool) -> pa.Array | None:
    """The odd values of key columns in the image that the key is taken from. The image's name is left out, so that a
    row has one key whichever image it came from."""
    odd: pa.Array = records.odd_values(block)
    flat = odd.flatten()
    parents = np.repeat(np.arange(block.rows), pc.list_value_length(odd).fill_null(0).to_numpy(zero_copy_only=False))
    sides = np.array([s.name.lower() for s in Side] + [""])[newest[parents]]
    keep = np.isin(flat.field(1).to_numpy(zero_copy_only=False), list(block.table.key))
    keep &= flat.field(0).to_numpy(zero_copy_only=False) == sides
    if not keep.any():
        return None
    if not room:
        offsets = block.offsets()[np.unique(parents[keep])]
        raise Poisoned(
            {int(offset): "its key is a value that the key's type cannot hold" for offset in offsets},
            fix="Use JSON, whose keys show such values as text.",
        )
    kept = flat.filter(pa.array(keep))
    blank = pa.StructArray.from_arrays(
        [pa.nulls(len(kept), pa.string()), kept.field(1), kept.field(2)], fields=list(ODD.value_type)
    )
    counts = np.bincount(parents[keep], minlength=block.rows)
    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int32())
    return pa.ListArray.from_arrays(ends, blank, mask=pa.array(counts == 0))


def _image(block: Block, side: Side) -> pa.StructArray | None:
    return block.column(side.name.lower())


def _children(block: Block, images: list[tuple[Side, pa.StructArray]]) -> list[dict[str, pa.Array]]:
    """With the struct's own nulls applied: a null image may have anything beneath it."""
    return [dict(block.struct(side.name.lower()) or {}) for side, _ in images]


def _may_be_odd(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_temporal(kind) or pa.types.is_nested(kind))
