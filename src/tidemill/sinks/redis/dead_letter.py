"""Events that are sent again, dead letters and replayed ranges, stand after events that came after them, so their
offsets cannot make their entry ids.

Each gets the next id after the last that leaves the offset part as it is: `60-1` after `60-0`. The event with the
next offset is still newer (`61-0`), and how far the stream is can still be read from its last id.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tidemill.contracts import Format
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.template import Template
from tidemill.sinks._shared.in_order import event_ids, groups
from tidemill.sinks._shared.routing import destinations, documents
from tidemill.sinks.redis.resume import StreamEnds

_Entry = tuple[Offset, str, dict[str, Any]]


def append(
    redis: Any, ends: StreamEnds, template: Template, format: Format, delivery: Delivery, maxlen: int | None
) -> tuple[int, int]:
    """Events and bytes added, in the order of their offsets."""
    events = size = 0
    for group in groups(delivery):
        entries = (entry for block in group for entry in _entries(block, template, format, delivery.source))
        for offset, stream, fields in sorted(entries, key=lambda entry: entry[0]):
            present = {name: value for name, value in fields.items() if value is not None}
            redis.xadd(stream, present, id=ends.next_id(delivery, stream, offset), maxlen=maxlen)
            events += 1
            size += len(fields["event"])
    return events, size


def _entries(block: Block, template: Template, format: Format, source: str) -> Iterator[_Entry]:
    named = destinations(template, block, source)
    values, keys = documents(format, block, source, named)
    ids, ops, offsets = event_ids(block, source), block.batch.column("op"), block.offsets()
    for row, stream in enumerate(named.cast("string").to_pylist()):
        yield int(offsets[row]), stream, {
            "op": Op(ops[row].as_py()).label, "table": block.table.full_name, "id": ids[row].as_py(),
            "key": keys[row].as_py(), "event": values[row].as_py(),
        }  # fmt: skip
