"""Rows of several blocks in one, and in order: for the chain of processors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import UNCHANGED, Block, Op
from tidemill.model.derived import SIDES, sub_ordinals, with_column, with_sub
from tidemill.model.table import Table

_JOINED_ROWS = 4096
_ROW_OPS = np.array([Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ], np.uint8)


def join(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same rows in the same order, small neighbours of one structure in one block: small transactions make blocks
    of a row each, and a processor is called per block."""
    held: list[Block] = []
    rows = 0
    for block in blocks:
        if held and (rows + block.rows > _JOINED_ROWS or not _are_alike(held[0], block)):
            yield stack(held)
            held, rows = [], 0
        held.append(block)
        rows += block.rows
    if held:
        yield stack(held)


def _are_alike(one: Block, other: Block) -> bool:
    """Whether their rows may stand in one block. DDL and TRUNCATE stay alone."""
    if one.table.lineage != other.table.lineage or one.table.full_name != other.table.full_name:
        return False
    return all(np.isin(block.batch.column("op").to_numpy(), _ROW_OPS).all() for block in (one, other))


def stack(blocks: Sequence[Block]) -> Block:
    """One after the other; they have one structure. Columns that only some have are null in the others."""
    if len(blocks) == 1:
        return blocks[0]
    fields: dict[str, pa.Field] = {}
    for block in blocks:
        for field in block.batch.schema:
            fields.setdefault(field.name, field)
    parts = [[_column(block, field) for field in fields.values()] for block in blocks]
    columns = [pa.concat_arrays(_one_dictionary(each)) for each in zip(*parts, strict=True)]
    return Block(blocks[0].table, pa.record_batch(columns, schema=pa.schema(list(fields.values()))))


def in_order(block: Block) -> Block:
    """By offset, and numbered where several share one; rows that share an offset stay as they stand, unless `sub` says
    otherwise."""
    offsets, sub = block.offsets(), sub_ordinals(block)
    if sub is None:
        if len(offsets) > 1 and (offsets[1:] < offsets[:-1]).any():
            block = block.take(np.argsort(offsets, kind="stable"))
        return with_sub(block)
    order = np.lexsort((sub, offsets))
    if (np.diff(order) != 1).any():
        block = block.take(order)
    offsets, sub = block.offsets(), sub_ordinals(block)
    assert sub is not None
    same = (offsets[1:] == offsets[:-1]) & (sub[1:] == sub[:-1])
    return with_sub(block) if same.any() else block


def without_images(block: Block, table: Table) -> Block:
    """Rows that have none (DDL, TRUNCATE), as rows of `table`."""
    kept = [name for name in block.batch.schema.names if name not in (*SIDES, "unchanged", "odd")]
    return Block(table, block.batch.select(kept))


def unsent(block: Block, table: Table) -> Block:
    """Updates of `table` that a processor did not see, in the structure that it gives: columns which only it fills are
    `unchanged` in them, so that sinks keep what they have."""
    own = {c.name for c in table.columns}
    new = [number for number, c in enumerate(block.table.columns) if c.name not in own]
    updates = block.batch.column("op").to_numpy() == Op.UPDATE
    if not new or not updates.any():
        return block
    lists = block.column("unchanged")
    sizes, old = np.zeros(block.rows, np.int64), np.empty(0, np.uint16)
    if lists is not None:
        sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        old = lists.flatten().to_numpy()
    ends = np.concatenate([[0], np.cumsum(sizes + updates * len(new))])
    numbers = np.tile(np.array(new, np.uint16), int(ends[-1]))[: int(ends[-1])]
    shift = ends[:-1] - np.concatenate([[0], np.cumsum(sizes)[:-1]])
    at = np.arange(len(old)) + np.repeat(shift, sizes)
    added = (ends[1:][updates] - len(new))[:, None] + np.arange(len(new))
    numbers[added.ravel()] = np.tile(np.array(new, np.uint16), int(updates.sum()))
    numbers[at] = old
    return with_column(block, "unchanged", pa.ListArray.from_arrays(ends.astype(np.int32), numbers, type=UNCHANGED))


def _column(block: Block, field: pa.Field) -> pa.Array:
    found = block.column(field.name)
    return pa.nulls(block.rows, field.type) if found is None else found.cast(field.type)


def _one_dictionary(arrays: Sequence[pa.Array]) -> list[pa.Array]:
    if not pa.types.is_dictionary(arrays[0].type):
        return list(arrays)
    return pa.chunked_array(arrays).unify_dictionaries().chunks
