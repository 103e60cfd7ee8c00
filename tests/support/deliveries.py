"""Deliveries for sink tests: a stretch of events cut into batches and lanes as the stream would cut it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.support.blocks import make_change, make_table
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.table import Table

Deal = Callable[[int, str], int]
"""(offset, table) -> a number whose remainder by the lane count is the lane."""


def by_offset(offset: int, table: str) -> int:
    return offset


def by_table(offset: int, table: str) -> int:
    return len(table)


def make_events(events: int = 100, tables: Sequence[Table] = ()) -> tuple[Block, ...]:
    """Blocks whose offsets run from 0 to `events`, in transactions of ten, over two tables."""
    tables = tables or (make_table("orders"), make_table("customers"))
    return make_change(*[10] * (events // 10), tables=tables).blocks


def make_deliveries(
    blocks: Sequence[Block], start: Offset, end: Offset, *, lanes: int = 2, deal: Deal = by_offset
) -> list[Delivery]:
    """One batch: every lane's share of `start`..`end`."""
    return [_delivery(blocks, start, end, lane, lanes, deal) for lane in range(lanes)]


def _delivery(blocks: Sequence[Block], start: Offset, end: Offset, lane: int, lanes: int, deal: Deal) -> Delivery:
    shares = []
    for block in blocks:
        part = block.slice(start, end)
        offsets = part.batch.column("offset").to_pylist()
        mine = [i for i, offset in enumerate(offsets) if deal(offset, part.table.name) % lanes == lane]
        if mine:
            shares.append(part.take(mine))
    return Delivery("shop", "orders", start, end, lane, lanes, lambda: iter(shares))
