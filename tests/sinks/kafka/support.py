"""Deliveries, and what was read back of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tidemill.model.block import Block
from tidemill.model.delivery import Delivery


def delivery_of(
    *blocks: Block, start: int = 0, end: int | None = None, lane: int = 0, lanes: int = 1, pipeline: str = "shop"
) -> Delivery:
    last = max((int(b.batch.column("offset")[-1].as_py()) for b in blocks), default=start - 1) + 1
    return Delivery(pipeline, "orders-db", start, last if end is None else end, lane, lanes, lambda: iter(blocks))


def cut(block: Block, first: int, last: int) -> Block:
    """These rows without a copy, as the log's reader gives a part of a block."""
    return Block(block.table, block.batch.slice(first, last - first))


def ids(messages: Sequence[Any]) -> list[int]:
    return sorted(orjson.loads(m.key())["id"] for m in messages)
