"""Rows that the log has a second time, because their table waited in quarantine, and rows that still wait (ADR 53).

Capture stages the waiting rows and adopts them at the log's end (`staging.py`). The id under which it does says which
of them they are, and becomes part of the segment's name: whoever has a `BlockRef` knows, and no other record is needed
to go on after a crash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import orjson

from tidemill.log.entry import BlockRef
from tidemill.log.store import Store
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine

_WAITING = "quarantine.json"
_SEGMENT = re.compile(r"-requeue\.(\d+)\.(\d+)\.(\d+)-")


def staging_id(number: int, start: Offset, end: Offset) -> str:
    """For rows between these offsets of a table that waited since schema change `number`."""
    return f"requeue.{number}.{start}.{end}"


def requeued_for(ref: BlockRef) -> int:
    """The number of that schema change; 0 for a block that the source sent."""
    found = _SEGMENT.search(ref.segment)
    return int(found[1]) if found else 0


def find_staged(names: Iterable[str], number: int, start: Offset) -> dict[str, Offset]:
    """Ids of pieces that begin at `start` and have names in the log, and where each ends."""
    matches = (_SEGMENT.search(name) for name in names)
    return {
        staging_id(number, start, int(found[3])): int(found[3])
        for found in matches
        if found and (int(found[1]), int(found[2])) == (number, start)
    }


def is_kept_back(ref: BlockRef, quarantines: Sequence[Quarantine]) -> bool:
    """Whether the block's rows wait. Blocks of one table do not overlap, and a quarantine begins with one: a block
    waits as a whole."""
    mine = [each for each in quarantines if each.table == ref.table]
    return bool(mine) and any(each.keeps(ref.first, requeued_for(ref)) for each in mine)


def read_waiting(store: Store) -> dict[str, Offset]:
    """Tables that wait, and from where on, as capture last noted it: a state store that was lost does not know them."""
    data = store.read(_WAITING)
    found: dict[str, Offset] = orjson.loads(data) if data else {}
    return found


def write_waiting(store: Store, tables: Mapping[str, Offset]) -> None:
    store.replace(_WAITING, orjson.dumps(tables))
