"""What a state sink promises for a recovery: after tables were copied again, it removes what the source no longer has.

The copy and the stream since the recovery began name every row that the source has. So a row of a table that was not
written since then is not in the source. Three calls:

    begin_recovery    before the log has an event from `since` on: the sink can tell from then on what is written
    write             of everything from `since` on, until the last chunk of the copy is delivered
    end_recovery      removes what was not written since

Each may be repeated, also after a crash in the middle of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tidemill.model.position import Offset
from tidemill.model.table import Table


@runtime_checkable
class RecoverableSink(Protocol):
    """A sink that keeps the current row of each key (`Capabilities.upsert`). `source` as in a delivery."""

    def begin_recovery(self, tables: Sequence[Table], source: str, since: Offset) -> None:
        """Events from the offset `since` on are still to come. A recovery of the same table that was not ended is
        forgotten."""

    def end_recovery(self, table: Table, source: str, since: Offset, *, remove: bool) -> int:
        """How many rows were removed: those that no event from `since` on has written. Without `remove` none, and the
        sink forgets what it noted. Nothing is left to do where it was ended before, or the sink has no such table.
        `Refused` where it cannot tell."""
