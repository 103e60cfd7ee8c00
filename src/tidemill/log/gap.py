"""Where the log lacks something of the stream: `gap.json`, written before capture begins anew after a lost position.

A chunk of a snapshot is compared with the events of its window. A window that reaches across a gap proves nothing: what
changed in the gap is in no event, and an event before it is older than the chunk's row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import orjson

from tidemill.log.store import Store
from tidemill.model.position import Offset

_NAME = "gap.json"


@dataclass(frozen=True, slots=True)
class Gap:
    """From `offset` on the log has the whole stream. `snapshot`: the copy that makes the gap good, 0 for none: what it
    reads counts only from now on, since the source has begun anew before this was noted."""

    offset: Offset = 0
    snapshot: int = 0


def read_gap(store: Store) -> Gap:
    """Of offset 0 where there has never been one."""
    data = store.read(_NAME)
    return Gap(**orjson.loads(data)) if data else Gap()


def write_gap(store: Store, gap: Gap) -> None:
    store.replace(_NAME, orjson.dumps(asdict(gap)))
