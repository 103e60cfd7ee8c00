"""How busy capture is, and with which tables: for the metrics, which the server shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.log.entry import Entry

_MOST_TABLES = 500  # that the status file names


class Effort:
    """Fed by the loop's thread and by the one that writes the log, read by whoever reports."""

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self.appends = self.bytes = 0
        self._idle_seconds = 0.0
        self._tables: Counter[str] = Counter()
        self._table_bytes: Counter[str] = Counter()

    def busiest(self) -> tuple[dict[str, int], dict[str, int]]:
        """Events by table, of those with the most, and their bytes in the log."""
        tables = dict(self._tables.copy().most_common(_MOST_TABLES))
        return tables, {table: self._table_bytes[table] for table in tables}

    def note(self, entry: Entry) -> None:
        self.appends += 1
        self.bytes += entry.bytes
        for block in entry.blocks:
            self._tables[block.table] += block.rows
            self._table_bytes[block.table] += block.size

    @contextmanager
    def turn(self) -> Iterator[None]:
        """One turn of the loop: busy, without what is spent in `idle`."""
        began, idle = time.monotonic(), self._idle_seconds
        try:
            yield
        finally:
            self.busy_seconds += max(0.0, time.monotonic() - began - (self._idle_seconds - idle))

    def idle(self, seconds: float) -> None:
        """The source had nothing for so long, or delivery held capture back."""
        self._idle_seconds += seconds
