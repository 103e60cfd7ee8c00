"""Small files beside the segments that say where something stands: `acknowledged.json`, `position.json`.

What is written with each batch is written in place where the log is in a directory (`Store.note`).
"""

from __future__ import annotations

from collections.abc import Hashable

import orjson

from tidemill.disk.slots import read_document
from tidemill.log.entry import Tail
from tidemill.log.store import NOTE, Store
from tidemill.model.position import Position

ACKNOWLEDGED = "acknowledged.json"
"""What the stream has delivered and saved in its checkpoint; written by the stream, read by capture (invariant 2)."""

POSITION = "position.json"
"""Where the source stands when the log is at this offset, if that is further than the last append says: an empty
log's beginning, or transactions that touched none of our tables. Ignored at any other offset."""


class Bookmark:
    """Looks at the file only when it may have changed."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._name = name
        self._seen: Hashable = None
        self._tail: Tail | None = None

    def get(self) -> Tail | None:
        """None when it was never written, or did not survive a power failure."""
        signature = self._store.signature(self._name)
        if signature != self._seen:
            self._tail = _parse(self._store.read(self._name))
            self._seen = signature
        return self._tail

    def put(self, tail: Tail, *, durable: bool = True) -> None:
        fields = {"offset": tail.offset, "position": tail.position}
        if durable:
            self._store.replace(self._name, orjson.dumps(fields))
        else:
            self._store.note(self._name, fields)
        self._seen = None


def _parse(data: bytes) -> Tail | None:
    try:
        doc = read_document(data, NOTE)
        return Tail(doc["offset"], Position(doc["position"])) if doc is not None else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
