"""Blocks of one table never overlap in offsets: whoever reads a table's blocks one after the other reads its events in
order. The writer checks it before an append becomes visible, by the blocks' first and last offsets and not by rows.

Logs that were written before there was a check may have such blocks. The reader cuts them into runs that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tidemill.errors import BadAppend
from tidemill.log.entry import BlockRef
from tidemill.model.block import Block


def check(refs: Iterable[BlockRef], where: str) -> None:
    """`BadAppend` if blocks of one table overlap: a decoder's defect, which no retry mends."""
    for earlier, later in _overlaps(sorted(refs, key=lambda ref: ref.first)):
        raise BadAppend(
            f"two blocks of {later.table} overlap: offsets {earlier.first} to {earlier.last - 1} and "
            f"{later.first} to {later.last - 1}",
            where=where,
        )


def in_order(refs: Iterable[BlockRef], read: Callable[[BlockRef], Block]) -> list[BlockRef]:
    """By where they begin. Blocks of one table that overlap are read, and handed out as runs that do not."""
    found = sorted(refs, key=lambda ref: ref.first)
    tangled = {later.table for _, later in _overlaps(found)}
    if not tangled:
        return found
    kept = [ref for ref in found if ref.table not in tangled]
    for table in tangled:
        kept += _runs([ref for ref in found if ref.table == table], read)
    return sorted(kept, key=lambda ref: ref.first)


def _overlaps(refs: list[BlockRef]) -> Iterable[tuple[BlockRef, BlockRef]]:
    """Pairs of one table, of `refs` that are sorted by `first`."""
    furthest: dict[str, BlockRef] = {}
    for ref in refs:
        before = furthest.get(ref.table)
        if before is not None and ref.first < before.last:
            yield before, ref
        if before is None or ref.last > before.last:
            furthest[ref.table] = ref


def _runs(refs: list[BlockRef], read: Callable[[BlockRef], Block]) -> list[BlockRef]:
    offsets = [read(ref).offsets() for ref in refs]
    owner = np.repeat(np.arange(len(refs)), [len(own) for own in offsets])
    every = np.concatenate(offsets)
    order = np.argsort(every, kind="stable")
    every, owner = every[order], owner[order]
    begins = np.append(0, np.flatnonzero(np.diff(owner)) + 1)
    ends = np.append(begins[1:], len(every)) - 1
    return (
        [
            refs[int(owner[begin])].clip(int(every[begin]), int(every[end]) + 1)
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
        ]
        if len(every)
        else []
    )
