"""Lanes: which rows of a batch go to which task. One key is always in one lane, so its changes stay in order.

`by` says how, in a form small enough to be pinned in the batch's offset: `table`, `hash`, or `hash:<columns>`.
Whole tables go to one lane when they have no key, when their key cannot be hashed, and in a batch with a barrier
(TRUNCATE, schema change, an update that changes its key in one piece): there, rows depend on more than their own key.
"""

from __future__ import annotations

import zlib

import numpy as np

from tidemill.log import BlockRef
from tidemill.model.block import Block
from tidemill.model.keyhash import key_hashes
from tidemill.model.table import Table


def may_have(ref: BlockRef, lane: int, lanes: int, how: str) -> bool:
    """Whether the block must be read at all to know this lane's rows of it."""
    return (how != "table" and not ref.barrier) or _of_table(ref.table, lanes) == lane


def share(block: Block, ref: BlockRef, lane: int, lanes: int, how: str) -> Block | None:
    """The block's rows of this lane, in order; None if there are none."""
    if lanes == 1:
        return block if block.rows else None
    hashes = None if how == "table" or ref.barrier else key_hashes(block, _key(block.table, how))
    if hashes is None:
        return block if block.rows and _of_table(ref.table, lanes) == lane else None
    rows = np.flatnonzero(hashes % np.uint64(lanes) == lane)
    if len(rows) == block.rows:
        return block if block.rows else None
    return block.take(rows) if len(rows) else None


def _key(table: Table, how: str) -> tuple[str, ...]:
    """The columns asked for, if they are part of the key (else one key could be in two lanes); or the whole key."""
    wanted = tuple(name.strip() for name in how.partition(":")[2].split(",") if name.strip())
    return wanted if wanted and set(wanted) <= set(table.key) else table.key


def _of_table(table: str, lanes: int) -> int:
    return zlib.crc32(table.encode()) % lanes
