"""A delivery's events in the order of their offsets, a bounded group at a time, for destinations whose ids must rise.

Blocks come sorted by their first offset, but the tables of one transaction interleave, so neighbours overlap. Nothing
is sorted row by row here: a group is a few block slices, and no event of a later group is older than one of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidemill.errors import Refused
from tidemill.model import identity
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.lines import WINDOW

_BEYOND = 2**63
_MOST_BYTES = 1 << 25


def groups(delivery: Delivery) -> Iterator[list[Block]]:
    """At most about two windows of rows each, fewer of large ones; small blocks of many transactions share one.

    When a table's next block comes, nothing before the end of its last one is still to come: blocks are sorted by where
    they begin, and a table's blocks do not overlap. That holds also where rows were cut off or filtered out.
    """
    held: list[Block] = []
    ends: dict[str, Offset] = {}
    rows, size, complete, sent = 0, 0, -1, -1
    for block in delivery:
        if not block.rows:
            continue
        name, first = block.table.full_name, int(block.offsets()[0])
        if first <= sent:
            raise Refused(
                f"a block of {name} begins at offset {first}, but events up to {sent} were sent",
                fix="The log's order is at fault, not the destination. Report it.",
            )
        complete = max(complete, min(ends.get(name, -1), first - 1))
        ends[name] = int(block.offsets()[-1])
        if (rows >= WINDOW or size >= _MOST_BYTES) and complete > sent:
            yield from _windows([part for b in held if (part := b.slice(0, complete + 1)).rows])
            held = [part for b in held if (part := b.slice(complete + 1, _BEYOND)).rows]
            rows, size, sent = sum(b.rows for b in held), sum(b.batch.nbytes for b in held), complete
        held.append(block)
        rows, size = rows + block.rows, size + block.batch.nbytes
    yield from _windows(held)


def event_ids(block: Block, source: str) -> pa.LargeBinaryArray:
    """As bytes that go out."""
    return identity.event_ids(block, source).cast(pa.large_binary())


def _windows(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    rows = sum(b.rows for b in blocks)
    if not rows:
        return
    if rows <= 2 * WINDOW:
        yield list(blocks)
        return
    offsets = np.sort(np.concatenate([b.offsets() for b in blocks]))
    # Events that processors added share an offset, and stay together.
    bounds: list[Offset] = sorted({*(int(o) for o in offsets[::WINDOW]), int(offsets[-1]) + 1})
    for low, high in itertools.pairwise(bounds):
        yield [part for b in blocks if (part := b.slice(low, high)).rows]
