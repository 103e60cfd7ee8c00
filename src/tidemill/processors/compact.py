"""Keeps the last change of each key in a batch and drops those before it, for sinks that keep current rows.

A change is dropped only if a later one of the same key carries all columns, or deletes the row. Rows of a table whose
key moved in the batch, and rows without a key, stay. Of a batch larger than 128 MB each such part is compacted alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.contracts import BaseProcessor, ProcessorConfig
from tidemill.model.block import Block, Op
from tidemill.model.keyhash import changes_a_key, key_hashes

Mask = npt.NDArray[np.bool_]
_SIDES = ("after", "key", "before")


class CompactConfig(ProcessorConfig):
    pass


class CompactProcessor(BaseProcessor[CompactConfig]):
    Config = CompactConfig
    holds = True
    checked = False
    whole_rows = True  # a delete that it does not see would be overtaken

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        held = list(blocks)
        by_table: dict[object, list[int]] = {}
        for number, block in enumerate(held):
            kinds = tuple(str(column.type.arrow) for column in block.table.key_columns())
            by_table.setdefault((block.table.full_name, block.table.key, kinds), []).append(number)
        for numbers in by_table.values():
            same = [held[number] for number in numbers]
            for number, kept in zip(numbers, _last(same), strict=True):
                block = held[number]
                held[number] = block if kept.all() else block.take(np.flatnonzero(kept))
        yield from held


def _last(blocks: Sequence[Block]) -> list[Mask]:
    """Which rows of each block stay."""
    everything = [np.ones(block.rows, bool) for block in blocks]
    hashes = [key_hashes(block, block.table.key, _SIDES) for block in blocks]
    if not blocks[0].table.key or any(each is None for each in hashes) or any(map(changes_a_key, blocks)):
        return everything
    found = np.concatenate([each for each in hashes if each is not None])
    whole = np.concatenate([_whole(block) for block in blocks])
    _, key = np.unique(found, return_inverse=True)
    rows = np.arange(len(found))
    last = np.full(int(key.max()) + 1 if len(key) else 0, -1)
    np.maximum.at(last, key[whole], rows[whole])
    survivor = last[key]
    dropped = np.flatnonzero(rows < survivor)
    kept = np.ones(len(found), bool)
    if len(dropped):
        kept[dropped] = ~_same_key(blocks, dropped, survivor[dropped])  # two keys may share a hash
    ends = np.cumsum([block.rows for block in blocks])
    return np.split(kept, ends[:-1])


def _whole(block: Block) -> Mask:
    """Rows that need nothing of those before them."""
    whole = np.ones(block.rows, bool)
    for name in ("unchanged", "odd"):
        lists = block.column(name)
        if lists is not None:
            whole &= pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False) == 0
    return whole | (block.batch.column("op").to_numpy() == Op.DELETE)


def _same_key(blocks: Sequence[Block], one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> Mask:
    same = np.ones(len(one), bool)
    for name in blocks[0].table.key:
        column = pa.chunked_array([_key_column(block, name) for block in blocks])
        equal = pc.equal(column.take(pa.array(one)), column.take(pa.array(other)))
        same &= pc.fill_null(equal, False).to_numpy()
    return same


def _key_column(block: Block, name: str) -> pa.Array:
    images = [image for image in (block.struct(side) for side in _SIDES) if image is not None and name in image]
    found = [image[name] for image in images]
    return found[0] if len(found) == 1 else pc.coalesce(*found)


component = CompactProcessor
