"""Reads of tables that the server refused: because somebody has locked them, or again and again."""

from __future__ import annotations

import time
from collections import Counter

from tidemill.errors import ConnectionLost, TableLocked, TidemillError
from tidemill.telemetry import events

_MOST = 5
_LOCKED_SECONDS = 10.0


class Refusals:
    """Of one pipeline, by table."""

    def __init__(self) -> None:
        self._in_a_row: Counter[str] = Counter()
        self._locked_until: dict[str, float] = {}

    def is_hopeless(self, table: str, error: TidemillError) -> bool:
        """A server that is away comes back, and so does a table; a server that says no to every try does not change its
        mind."""
        if isinstance(error, ConnectionLost | TableLocked):
            return False
        self._in_a_row[table] += 1
        return self._in_a_row[table] >= _MOST

    def note_lock(self, table: str, error: TableLocked) -> None:
        """Who has the lock may hold it for hours. Other tables are read meanwhile."""
        events.warn("snapshot.table_locked", table=table, error=error.what, where=error.where, fix=error.fix)
        self._locked_until[table] = time.monotonic() + _LOCKED_SECONDS

    def is_locked(self, table: str) -> bool:
        """Whether it was found so just now, and is not worth another try."""
        return time.monotonic() < self._locked_until.get(table, 0.0)

    def note_read(self, table: str) -> None:
        del self._in_a_row[table]
