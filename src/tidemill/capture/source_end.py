"""For `run --once`: where the source ended when capture began, and whether the log has everything up to there.

The end is the position that a snapshot of the tables would name as its high one: what committed before is at or before
it. What is written meanwhile does not move it, so a busy source comes to its end too.
"""

from __future__ import annotations

from contextlib import closing

from tidemill.contracts import SnapshotSource
from tidemill.model.position import Position


class SourceEnd:
    """For the loop's thread; `look` when everything that the source gave is in the log."""

    def __init__(self, source: SnapshotSource) -> None:
        self._source = source
        self._highs: frozenset[Position] | None = None
        self.reached = False

    def look(self, logged: Position) -> bool:
        """True once: when the end is reached. Connects to the source the first time."""
        if self.reached:
            return False
        if self._highs is None:
            with closing(self._source.snapshot_reader()) as reader:
                self._highs = frozenset(table.high for table in reader.tables())
        missing = [high for high in self._highs if not self._source.reached(high, logged)]
        for high in missing:  # an idle server may send nothing for long
            self._source.hasten(high)
        self.reached = not missing
        return self.reached
