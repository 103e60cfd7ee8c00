"""How many rows a chunk has, and how many chunks are read ahead.

A chunk becomes visible as a whole, and a change that commits after that is delivered after it: so while changes come,
chunks are small (`capture/portions.py`). And they are adopted slowly then: what is read far ahead takes the processor
from those that deliver, and waits.
"""

from __future__ import annotations

import time

from tidemill.capture.portions import QUIET_SECONDS
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset

_BESIDE_CHANGES_ROWS = 8192
_JUST_NOW_SECONDS = 1.0  # who has not looked for a while takes a change since then for one of many
_PREFETCH, _PREFETCH_BESIDE_CHANGES = 24, 3


class ChunkSizes:
    """Looks into the log's index for what no copy brought."""

    def __init__(self, most: int, log: LogReader) -> None:
        self._most, self._log = most, log
        self._seen: Offset = -1
        self._looked_at = self._changed_at = -QUIET_SECONDS
        self.rows = most
        """Of the chunks that are planned now."""
        self.prefetch = _PREFETCH
        """Chunks that each reader may have at a time, and as many that may be read and not adopted."""

    def look(self, tail: Offset) -> int:
        """`rows`, with the log's end at `tail`."""
        now = time.monotonic()
        if self._seen < 0 or now - self._looked_at > QUIET_SECONDS or self._log.head() > self._seen:
            self._seen = self._log.offset_at(int((time.time() - _JUST_NOW_SECONDS) * 1000))
        if self._seen < tail:
            found = self._log.entries(self._seen)
            if any(not ref.is_copied for entry in found for ref in entry.blocks):
                self._changed_at = now
        self._seen, self._looked_at = tail, now
        beside_changes = now - self._changed_at < QUIET_SECONDS
        self.rows = min(self._most, _BESIDE_CHANGES_ROWS) if beside_changes else self._most
        self.prefetch = _PREFETCH_BESIDE_CHANGES if beside_changes else _PREFETCH
        return self.rows
