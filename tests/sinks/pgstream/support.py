"""Messages that are delivered, and their consumers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from tests.support.blocks import make_block
from tests.support.deliveries import make_deliveries, make_events
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.sinks.pgstream import PgstreamSink

Make = Callable[..., PgstreamSink]

LONG = 600.0


def batch(events: int = 40, start: int = 0, **options: Any) -> Delivery:
    (delivery,) = make_deliveries(make_events(events), start, events, lanes=1, **options)
    return delivery


def of_keys(keys: list[int], start: int = 0) -> Delivery:
    """One update per key given, in this order."""
    blocks = [
        make_block(1, first_id=key, offsets=[start + i], positions=f"0/{start + i + 1:X}00", ops=Op.UPDATE)
        for i, key in enumerate(keys)
    ]
    return Delivery("shop", "orders", start, start + len(keys), 0, 1, lambda: iter(blocks))


def key_of(message: Any) -> int:
    return int(orjson.loads(message.key)["id"])
