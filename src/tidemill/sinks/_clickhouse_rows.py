"""A window of a block as rows of the destination: current rows for `upsert`, events for `changelog`. Columnar."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.table import Column
from tidemill.sinks._clickhouse_tables import AFTER, BEFORE, IS_DELETED, VERSION, Destination
from tidemill.sinks._clickhouse_types import Kind
from tidemill.sinks._clickhouse_values import Mask, OddValues, Verdicts, fit, images, present, unchanged_mask

_SIDES = (Side.KEY, Side.BEFORE)


@dataclass(slots=True)
class Upsert:
    """Rows of an upsert. `holes` are cells whose value the source did not send, by column."""

    offsets: np.ndarray[Any, Any]
    keys: dict[str, pa.Array]
    old_keys: dict[str, pa.Array]  # of updates that moved a row: where it stood
    moved: Mask
    gone: Mask
    columns: dict[str, pa.Array]
    holes: dict[str, Mask] = field(default_factory=dict)

    def table(self, base: int, keep: Mask | None = None) -> pa.Table:
        """What is inserted: the rows, and a deleted row under the old key of each that moved."""
        versions = pa.array(self.offsets + np.uint64(base), pa.uint64())
        everything = {**self.keys, **self.columns, VERSION: versions, IS_DELETED: pa.array(self.gone.astype(np.uint8))}
        rows = pa.table(everything)
        if keep is not None:
            rows = rows.filter(pa.array(keep))
        if not self.moved.any():
            return rows
        moved = np.flatnonzero(self.moved if keep is None else self.moved & keep)
        at = pa.array(moved)
        left = {
            **{name: values.take(at) for name, values in self.old_keys.items()},
            **{name: pa.nulls(len(moved), values.type) for name, values in self.columns.items()},
            VERSION: versions.take(at),
            IS_DELETED: pa.array(np.ones(len(moved), np.uint8)),
        }
        return pa.concat_tables([rows, pa.table(left, schema=rows.schema)])


def upsert(block: Block, destination: Destination, verdicts: Verdicts) -> Upsert:
    """`block` has inserts, updates, deletes and snapshot rows only."""
    table, offsets = block.table, block.offsets()
    ops = block.batch.column("op").to_numpy()
    gone = ops == Op.DELETE
    live = ~gone
    odd, sides = OddValues(block), images(block)
    reader = _Reader(block, odd, offsets, verdicts)
    numbers = {column.name: i for i, column in enumerate(table.columns)}

    keys: dict[str, pa.Array] = {}
    old_keys: dict[str, pa.Array] = {}
    moved = np.zeros(block.rows, bool)
    for column in table.key_columns():
        kind, number = destination.kinds[column.name], numbers[column.name]
        new = reader.read(Side.AFTER, number, column, kind, live)
        olds = [
            reader.read(side, number, column, kind, present(block, side))
            for side in _SIDES
            if column.name in sides.get(side, {})
        ]
        old = pc.coalesce(*olds) if olds else pa.nulls(block.rows, new.type)
        keys[column.name] = own = pc.if_else(pa.array(live), new, old)
        old_keys[column.name] = old
        lacking = own.is_null().to_numpy(zero_copy_only=False)
        if lacking.any():
            verdicts.condemn(offsets, lacking, f'the event has no value for the key column "{column.name}"')
        if olds and old.null_count < block.rows:
            moved |= pc.fill_null(pc.not_equal(old, new), False).to_numpy(zero_copy_only=False) & live
    rows = Upsert(offsets, keys, old_keys, moved, gone, {})
    lists = block.column("unchanged")
    for number, column in enumerate(table.columns):
        if column.name not in keys and column.name in destination.kinds:
            _value(rows, reader, sides, number, column, destination.kinds[column.name], live, lists)
    return rows


def _value(
    rows: Upsert, reader: _Reader, sides: Any, number: int, column: Column, kind: Kind, live: Mask,
    lists: pa.Array | None,
) -> None:  # fmt: skip
    block, verdicts = reader.block, reader.verdicts
    hole = unchanged_mask(block, number, lists)
    values = reader.read(Side.AFTER, number, column, kind, live)
    if hole is not None and column.name in sides.get(Side.BEFORE, {}):
        # With the full old row (REPLICA IDENTITY FULL) the value is here.
        known = hole & present(block, Side.BEFORE)
        before = reader.read(Side.BEFORE, number, column, kind, known)
        known &= before.is_valid().to_numpy(zero_copy_only=False)
        values = pc.if_else(pa.array(known), before, values)
        hole &= ~known
    if hole is not None and hole.any():
        rows.holes[column.name] = hole
    if not kind.nullable and values.null_count and (kind.element is None or not column.nullable):
        empty = values.is_null().to_numpy(zero_copy_only=False) & live
        if hole is not None:
            empty &= ~hole
        condemned = empty & ~np.isin(rows.offsets, np.array(list(verdicts.reasons), np.uint64))
        verdicts.condemn(rows.offsets, condemned, f'column "{column.name}" is NULL, but {kind} at the destination')
    rows.columns[column.name] = values


class _Reader:
    def __init__(self, block: Block, odd: OddValues, offsets: np.ndarray[Any, Any], verdicts: Verdicts) -> None:
        self.block = block
        self.verdicts = verdicts
        self._odd = odd
        self._offsets = offsets
        self._images = images(block)

    def read(self, side: Side, number: int, column: Column, kind: Kind, judged: Mask) -> pa.Array:
        values = self._images.get(side, {}).get(column.name)
        if values is None:
            values = pa.nulls(self.block.rows, column.type.arrow)
        odd = self._odd.of(side, number)
        return fit(values, odd, column, kind, self._offsets, judged, self.verdicts)


def changelog(block: Block, destination: Destination, base: int, verdicts: Verdicts) -> pa.Table:
    """One row per event: what happened, where, and both images. Of a row known only by its key, `before` has that."""
    offsets, batch = block.offsets(), block.batch
    reader, sides = _Reader(block, OddValues(block), offsets, verdicts), images(block)
    labels = pa.array([None, *(op.label for op in Op)], pa.string())
    columns: dict[str, pa.Array] = {
        "_offset": pa.array(offsets + np.uint64(base), pa.uint64()),
        "_op": labels.take(batch.column("op")),
        "_position": batch.column("position").dictionary_decode().fill_null(""),
        "_tx_id": batch.column("tx_id"),
        "_ordinal": batch.column("ordinal"),
        "_commit_time": batch.column("commit_time"),
        "_unchanged": _names(block),
    }
    for number, column in enumerate(block.table.columns):
        kind = destination.kinds[BEFORE + column.name]
        olds = [
            reader.read(side, number, column, kind, present(block, side))
            for side in (Side.BEFORE, Side.KEY)
            if column.name in sides.get(side, {})
        ]
        kept = olds or [reader.read(Side.BEFORE, number, column, kind, np.zeros(block.rows, bool))]
        columns[BEFORE + column.name] = pc.coalesce(*kept) if len(kept) > 1 else kept[0]
        kind = destination.kinds[AFTER + column.name]
        columns[AFTER + column.name] = reader.read(Side.AFTER, number, column, kind, present(block, Side.AFTER))
    return pa.table(columns)


def _names(block: Block) -> pa.Array:
    lists = block.column("unchanged")
    if lists is None:
        return pa.ListArray.from_arrays(pa.array([0] * (block.rows + 1), pa.int32()), pa.array([], pa.string()))
    names = pa.array([c.name for c in block.table.columns], pa.string())
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(starts), names.take(lists.flatten()))
