"""Deliveries, and what stands in a stream."""

from __future__ import annotations

import itertools
from typing import Any

import redis

from tests.support.deliveries import make_deliveries
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery

names = itertools.count(1)


def batch(blocks: Any, start: int, end: int) -> Delivery:
    (delivery,) = make_deliveries(blocks, start, end, lanes=1)
    return delivery


def delivery_of(*blocks: Block, start: int = 0) -> Delivery:
    end = max((int(b.offsets()[-1]) for b in blocks), default=start - 1) + 1
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter(blocks))


def offsets(client: redis.Redis, stream: str) -> list[int]:
    return [int(entry.partition(b"-")[0]) - 1 for entry, _ in client.xrange(stream)]


def note_of(stream: str) -> str:
    return f"tidemill:{{{stream}}}"
