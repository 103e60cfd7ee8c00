"""Deliveries for the http sink, and what its receiver got of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import orjson
import pyarrow as pa

from tests.support.blocks import make_block
from tidemill.lab.servers.http_receiver import Received, ScriptedResponse
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.table import Table


def delivery_of(*blocks: Block, start: int = 0) -> Delivery:
    end = max((int(b.offsets()[-1]) for b in blocks), default=start - 1) + 1
    return Delivery("shop", "orders", start, end, 0, 1, lambda: iter(blocks))


def moving(number: int, table: Table) -> Block:
    """Three updates of one row: of its old key, from its old key to the new one, of the new key."""
    side = "before" if table.identity == "full" else "key"
    old = make_block(1, table=table, ops=Op.UPDATE, first_id=number)
    new = make_block(1, table=table, ops=Op.UPDATE, first_id=1000 + number)
    at = new.batch.schema.get_field_index(side)
    moved = new.batch.set_column(at, new.batch.schema.field(at), old.batch.column(side))
    whole = pa.Table.from_batches([old.batch, moved, new.batch]).combine_chunks().to_batches()[0]
    offsets = pa.array(range(3 * number, 3 * number + 3), pa.uint64())
    return Block(table, whole.set_column(0, whole.schema.field(0), offsets))


def events(requests: list[Received]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for r in requests for line in r.body.splitlines()]


def first_times(status: int, times: int = 1, **headers: str) -> Callable[[Received], ScriptedResponse]:
    """Answers each identity so for the first times, then takes it."""
    seen: Counter[str] = Counter()

    def script(request: Received) -> ScriptedResponse:
        seen[request.headers["idempotency-key"]] += 1
        again = seen[request.headers["idempotency-key"]] <= times
        return ScriptedResponse(status, headers) if again else ScriptedResponse()

    return script
