"""What the tests of the postgres sink share: a small table, and deliveries of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import psycopg

from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks.postgres import PostgresSink

numbers = itertools.count(1)

Make = Callable[..., PostgresSink]


def write(sink: PostgresSink, *deliveries: Delivery) -> int:
    return sum(sink.write(d).events for d in deliveries)


def delivery_of(*blocks: Block, start: int = 0, end: int | None = None) -> Delivery:
    last = max(int(b.offsets()[-1]) for b in blocks) + 1
    return Delivery("shop", "orders", start, last if end is None else end, 0, 1, lambda: iter(blocks))


def types(db: psycopg.Connection[Any]) -> dict[str, str]:
    found = db.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return dict(found.fetchall())
