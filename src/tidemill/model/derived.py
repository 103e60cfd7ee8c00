"""Blocks that processors make of blocks: other columns, other rows, the same events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import SUB, Block, Op
from tidemill.model.columns import column, values
from tidemill.model.table import Column, Table

SIDES = ("key", "before", "after")
MOST_OF_ONE = 1 << 16
"""Events that may share an offset: `sub` has 16 bits."""
Images = Mapping[str, pa.StructArray | None]


def with_column(block: Block, name: str, array: pa.Array | None) -> Block:
    """The block with a column set, added at the end, or (None) removed."""
    batch, at = block.batch, block.batch.schema.get_field_index(name)
    if array is None:
        return block if at < 0 else Block(block.table, batch.remove_column(at))
    if at < 0:
        return Block(block.table, batch.append_column(pa.field(name, array.type), array))
    return Block(block.table, batch.set_column(at, batch.schema.field(at).with_type(array.type), array))


def sub_ordinals(block: Block) -> npt.NDArray[np.uint16] | None:
    """None: no row of the block was added, all are 0."""
    found = block.column("sub")
    return None if found is None else values(found, np.uint16)


def with_sub(block: Block) -> Block:
    """Numbers rows that share an offset, in their order, from 0. The block itself where none do. `ValueError` where
    more than `MOST_OF_ONE` do: two events must not have one id."""
    offsets = block.offsets()
    same = np.zeros(block.rows, bool)
    same[1:] = offsets[1:] == offsets[:-1]
    if not same.any():
        return with_column(block, "sub", None)
    starts = np.flatnonzero(~same)
    counts = np.arange(block.rows) - np.repeat(starts, np.diff(np.append(starts, block.rows)))
    if counts.max() >= MOST_OF_ONE:
        raise ValueError(f"more than {MOST_OF_ONE} rows have one offset")
    return with_column(block, "sub", column(counts.astype(np.uint16), SUB))


def unfit_images(made: Block, of: Block) -> dict[int, str]:
    """Rows of `made`, by offset, whose images do not fit their operation: no sink would know which row they are about.
    An insert or an update needs the new row, a delete the old one or its key, and no new row. Rows that came so in `of`
    are left out: nobody changed them."""
    bad = _unfit(made)
    already = _unfit(of) if bad else {}
    return {offset: reason for offset, reason in bad.items() if offset not in already}


def _unfit(block: Block) -> dict[int, str]:
    ops, names = block.batch.column("op").to_numpy(), block.table.key
    there = {side: _present(block, side) for side in SIDES}
    old = there["before"] | there["key"]
    if (ops == Op.DELETE).any():
        for name in names:
            known = np.zeros(block.rows, bool)
            for side in ("key", "before"):
                if name in (fields := block.struct(side) or {}):
                    known |= fields[name].is_valid().to_numpy(zero_copy_only=False)
            old &= known
    deleted, written = ops == Op.DELETE, np.isin(ops, (Op.INSERT, Op.UPDATE, Op.READ))
    bad: dict[int, str] = {}
    for mask, reason in (
        (written & ~there["after"], 'op "{}" needs the row in `after`'),
        (deleted & there["after"], 'op "{}" has no row in `after`: set it to null'),
        (deleted & ~there["after"] & ~old, 'op "{}" needs the old row or its key in `before`'),
    ):
        for row in np.flatnonzero(mask).tolist():
            bad.setdefault(int(block.offsets()[row]), reason.format(Op(int(ops[row])).label))
    return bad


def reshape(
    block: Block, table: Table, images: Images, sources: Sequence[str | None], plain: Collection[str] = ()
) -> Block:
    """The same rows with the columns of `table`. `images` are the new `key`, `before` and `after`; `sources` says for
    each column of `table` which column of the block's own table it was, None for a new one: `unchanged` and `odd`
    follow it, and what belonged to columns that are gone goes with them. Columns of `table` that are `plain` have no
    odd values any more: their images have all there is to know."""
    old = {c.name: number for number, c in enumerate(block.table.columns)}
    places = np.full(len(old) or 1, -1, np.int64)
    for number, name in enumerate(sources):
        if name is not None:
            places[old[name]] = number
    arrays = dict(zip(block.batch.schema.names, block.batch.columns, strict=True))
    arrays = {name: array for name, array in arrays.items() if name not in SIDES}
    arrays |= {side: image for side, image in images.items() if image is not None}
    if "unchanged" in arrays:
        arrays["unchanged"] = _renumber(arrays["unchanged"], places, nested=False)
    if "odd" in arrays:
        odd = places.copy()
        odd[np.isin(places, [number for number, c in enumerate(table.columns) if c.name in plain])] = -1
        arrays["odd"] = _renumber(arrays["odd"], odd, nested=True)
    order = [name for name in block.batch.schema.names if name in arrays]
    order += [name for name in arrays if name not in order]
    fields = [_field(block, name, arrays[name]) for name in order]
    return Block(table, pa.record_batch([arrays[name] for name in order], schema=pa.schema(fields)))


def image(columns: Sequence[pa.Array], table_columns: Sequence[Column], of: pa.StructArray) -> pa.StructArray:
    """A struct of these columns that is null where `of` is."""
    fields = [pa.field(c.name, array.type) for c, array in zip(table_columns, columns, strict=True)]
    if not fields:
        return pa.StructArray.from_buffers(pa.struct([]), len(of), [_validity(of)], of.null_count)
    return pa.StructArray.from_arrays(list(columns), fields=fields, mask=of.is_null() if of.null_count else None)


def derived_table(table: Table, columns: Sequence[Column], renames: Mapping[str, str] | None = None) -> Table:
    """`table` with these columns; `renames` are (old, new) names, which its key and its history follow."""
    names = dict(renames or {})
    there = {c.name for c in columns}
    key = tuple(names.get(name, name) for name in table.key)
    pairs = ((names.get(old, old), names.get(new, new)) for old, new in table.renamed)
    return replace(
        table, columns=tuple(columns), key=key if there.issuperset(key) else (),
        renamed=tuple((old, new) for old, new in pairs if old != new),
    )  # fmt: skip


def same_structure(one: Table, other: Table) -> bool:
    return one is other or (one.columns == other.columns and one.key == other.key)


def _present(block: Block, side: str) -> npt.NDArray[np.bool_]:
    struct = block.column(side)
    found: npt.NDArray[np.bool_] = (
        np.zeros(block.rows, bool) if struct is None else struct.is_valid().to_numpy(zero_copy_only=False)
    )
    return found


def _field(block: Block, name: str, array: pa.Array) -> pa.Field:
    at = block.batch.schema.get_field_index(name)
    return pa.field(name, array.type) if at < 0 else block.batch.schema.field(at).with_type(array.type)


def _renumber(lists: pa.ListArray, places: npt.NDArray[np.int64], *, nested: bool) -> pa.ListArray:
    entries = lists.flatten()
    numbers = (entries.field("column") if nested else entries).to_numpy(zero_copy_only=False)
    new = places[numbers] if len(numbers) else np.empty(0, np.int64)
    kept = new >= 0
    if nested:
        there = entries.filter(pa.array(kept))
        parts = [there.field("side"), pa.array(new[kept].astype(np.uint16)), there.field("text")]
        entries = pa.StructArray.from_arrays(parts, fields=list(lists.type.value_type))
    else:
        entries = pa.array(new[kept].astype(np.uint16))
    rows: Any = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    ends = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=len(lists)))]).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(ends), entries, type=lists.type, mask=mask)


def _validity(of: pa.Array) -> pa.Buffer | None:
    return (
        pa.py_buffer(np.packbits(of.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
        if of.null_count
        else None
    )
