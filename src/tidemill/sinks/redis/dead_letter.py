"""A dead letter that is sent again stands after events that came after it, so its offset cannot make its entry id.

It gets the next id after the last that leaves the offset part as it is: `60-1` after `60-0`. The event with the
next offset is still newer (`61-0`), and how far the stream is can still be read from its last id.
"""

from __future__ import annotations

from typing import Any

from tidemill.contracts import Format
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery
from tidemill.model.template import Template
from tidemill.sinks._shared.in_order import event_ids
from tidemill.sinks._shared.routing import documents, names
from tidemill.sinks.redis.resume import StreamEnds


def append(
    redis: Any, ends: StreamEnds, template: Template, format: Format, delivery: Delivery, maxlen: int | None
) -> tuple[int, int]:
    """Events and bytes added."""
    events = size = 0
    for block in delivery:
        named = names(template, block, delivery.source)
        values, keys = documents(format, block, delivery.source, named)
        ids = event_ids(block, delivery.source)
        for row, stream in enumerate(named.cast("string").to_pylist()):
            fields = {
                "op": Op(block.batch.column("op")[row].as_py()).label, "table": block.table.full_name,
                "id": ids[row].as_py(), "key": keys[row].as_py(), "event": values[row].as_py(),
            }  # fmt: skip
            entry = ends.next_id(delivery, stream, int(block.offsets()[row]))
            present = {name: value for name, value in fields.items() if value is not None}
            redis.xadd(stream, present, id=entry, maxlen=maxlen)
            events += 1
            size += len(fields["event"])
    return events, size
