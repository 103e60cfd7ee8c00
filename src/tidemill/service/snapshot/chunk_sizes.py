"""How many rows a chunk has.

It becomes visible as a whole, and a change that commits after that is delivered after it: so while changes come, chunks
are small (`capture/portions.py`).
"""

from __future__ import annotations

import time

from tidemill.capture.portions import QUIET_SECONDS
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset

_BESIDE_CHANGES_ROWS = 8192


class ChunkSizes:
    """Looks into the log's index for what no copy brought."""

    def __init__(self, most: int, log: LogReader) -> None:
        self._most, self._log = most, log
        self._seen: Offset = -1
        self._changed_at = -QUIET_SECONDS
        self.rows = most
        """Of the chunks that are planned now."""

    def look(self, tail: Offset) -> int:
        """`rows`, with the log's end at `tail`."""
        if self._seen < 0 or self._log.head() > self._seen:
            self._seen = tail
        if self._seen < tail:
            found = self._log.entries(self._seen)
            if any(not ref.is_copied for entry in found for ref in entry.blocks):
                self._changed_at = time.monotonic()
            self._seen = tail
        beside_changes = time.monotonic() - self._changed_at < QUIET_SECONDS
        self.rows = min(self._most, _BESIDE_CHANGES_ROWS) if beside_changes else self._most
        return self.rows
