"""What the binlog decoder asks its caller: tables' structures, and what statements did to them.

`mysql_schema` answers for a source; the parts that ask are `control` and `statements`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tidemill.decoders._shared.mysql.session import NO_SESSION, StatementSession
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.model.barrier import Barrier
from tidemill.model.position import Position
from tidemill.model.table import Table


@dataclass(frozen=True, slots=True)
class DdlChange:
    """What a statement did to one captured table. `document` is the block's `ddl` column; `table` is as it left it.
    With `truncate` the event is a TRUNCATE instead."""

    table: Table
    document: str
    barrier: bool = True
    truncate: bool = False


def barrier_of(changes: Iterable[DdlChange]) -> Barrier:
    """Of a statement that did all this."""
    found = Barrier.NONE
    for change in changes:
        if change.barrier:
            found |= Barrier.TRUNCATE if change.truncate else Barrier.SCHEMA_CHANGE
    return found


class TableLookup(Protocol):
    """Answers what the stream does not say."""

    def resolve(self, shape: TableMap, position: Position) -> Table | None:
        """The table's structure at this place, None if it is not captured. Asked once per number and description.
        `position` is the transaction's GTID, or the end of the event in its file where positions are of that kind."""

    def defaults(self, shape: TableMap) -> tuple[str | None, ...]:
        """Of a table that was resolved just now: what its columns get where an INSERT does not name them, in the form
        of `defaults`."""

    def server_started(self, seconds: int, position: Position) -> None:
        """What follows was written by a server that started then: no session of before is left. May come again for the
        same start, when a stream begins anew with the same file."""

    def writes(self, text: str, database: str, session: StatementSession = NO_SESSION) -> bool:
        """Whether a statement that changes rows, and stands in the binlog in their place, may have changed rows of a
        captured table."""

    def ddl(
        self, text: str, database: str, position: Position, session: StatementSession = NO_SESSION
    ) -> list[DdlChange]:
        """Applies a statement. Asked in order for every statement that is not about a transaction; `position` as
        above, after the statement."""
