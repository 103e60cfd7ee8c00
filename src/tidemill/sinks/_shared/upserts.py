"""A window of a block as current rows by key: what ClickHouse and StarRocks make their rows of. Columnar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.keyhash import key_hashes
from tidemill.model.table import Column
from tidemill.sinks._shared.images import Mask, OddValues, Verdicts, images, present, unchanged_mask

_SIDES = (Side.KEY, Side.BEFORE)
Kind = TypeVar("Kind")
Kind_contra = TypeVar("Kind_contra", contravariant=True)
Refuses = Callable[[Kind, Column], bool]


class Fit(Protocol[Kind_contra]):
    def __call__(
        self, values: pa.Array, odd: pa.Array | None, column: Column, kind: Kind_contra, offsets: np.ndarray[Any, Any],
        live: Mask, verdicts: Verdicts,
    ) -> pa.Array: ...  # fmt: skip


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


def upsert(
    block: Block, kinds: Mapping[str, Kind], fit: Fit[Kind], verdicts: Verdicts, refuses: Refuses[Kind]
) -> Upsert:
    """`block` has inserts, updates, deletes and snapshot rows only. `fit` makes values of what the destination takes;
    `refuses` says whether a column of that kind takes no NULL. Columns without a kind are left out."""
    table, offsets = block.table, block.offsets()
    ops = block.batch.column("op").to_numpy()
    gone = ops == Op.DELETE
    live = ~gone
    reader = ImageReader(block, OddValues(block), offsets, fit, verdicts)
    sides = reader.images
    numbers = {column.name: i for i, column in enumerate(table.columns)}

    keys: dict[str, pa.Array] = {}
    old_keys: dict[str, pa.Array] = {}
    moved = np.zeros(block.rows, bool)
    for column in table.key_columns():
        kind, number = kinds[column.name], numbers[column.name]
        new = reader.read(Side.AFTER, number, column, kind, live)
        olds = [
            reader.read(side, number, column, kind, present(block, side))
            for side in _SIDES
            if column.name in sides.get(side, {})
        ]
        old = pc.coalesce(*olds) if olds else pa.nulls(block.rows, new.type)
        keys[column.name] = own = pc.if_else(pa.array(live), new, old) if gone.any() else new
        old_keys[column.name] = old
        if own.null_count:
            lacking = own.is_null().to_numpy(zero_copy_only=False)
            verdicts.condemn(offsets, lacking, f'the event has no value for the key column "{column.name}"')
        if olds and old.null_count < block.rows:
            moved |= _differs(old, new) & live
    rows = Upsert(offsets, keys, old_keys, moved, gone, {})
    lists = block.column("unchanged")
    for number, column in enumerate(table.columns):
        if column.name not in keys and column.name in kinds:
            _value(rows, reader, sides, number, column, kinds[column.name], live, lists, refuses)
    return rows


def last_of_each_offset(block: Block) -> Block:
    """Of several events that processors made of one, the last of each key, for destinations where a version orders
    rows: all of them have the same."""
    if block.column("sub") is None:
        return block
    hashes = key_hashes(block, block.table.key)
    if hashes is None:
        return block
    offsets = block.offsets()
    order = np.lexsort((np.arange(block.rows), hashes, offsets))
    last = np.ones(block.rows, bool)
    last[:-1] = (offsets[order][1:] != offsets[order][:-1]) | (hashes[order][1:] != hashes[order][:-1])
    return block if last.all() else block.take(np.sort(order[last]))


def _differs(old: pa.Array, new: pa.Array) -> Mask:
    unequal = pc.fill_null(pc.not_equal(old, new), False)
    if pa.types.is_floating(new.type):  # NaN is a value like others in a key, and Arrow's is unequal to itself
        unequal = pc.and_not(unequal, pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False))
    return unequal.to_numpy(zero_copy_only=False)


def _value(
    rows: Upsert, reader: ImageReader[Kind], sides: Any, number: int, column: Column, kind: Kind, live: Mask,
    lists: pa.Array | None, refuses: Refuses[Kind],
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
    if values.null_count and refuses(kind, column):
        empty = values.is_null().to_numpy(zero_copy_only=False) & live
        if hole is not None:
            empty &= ~hole
        condemned = empty & ~np.isin(rows.offsets, np.array(list(verdicts.reasons), np.uint64))
        verdicts.condemn(rows.offsets, condemned, f'column "{column.name}" is NULL, but {kind} at the destination')
    rows.columns[column.name] = values


class ImageReader(Generic[Kind]):
    """Columns of an image, in the form of the destination."""

    def __init__(
        self, block: Block, odd: OddValues, offsets: np.ndarray[Any, Any], fit: Fit[Kind], verdicts: Verdicts
    ) -> None:
        self.block = block
        self.verdicts = verdicts
        self._odd = odd
        self._fit = fit
        self._offsets = offsets
        self.images = images(block)

    def read(self, side: Side, number: int, column: Column, kind: Kind, judged: Mask) -> pa.Array:
        values = self.images.get(side, {}).get(column.name)
        if values is None:
            values = pa.nulls(self.block.rows, column.type.arrow)
        odd = self._odd.of(side, number)
        return self._fit(values, odd, column, kind, self._offsets, judged, self.verdicts)
