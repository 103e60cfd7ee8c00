"""A table whose rows wait in the log at a schema change, while the other tables go on (ADR 53)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.model.position import Offset


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Rows of `table` at and after `first` are delivered to nobody, since schema change `number` begins there. When it
    is `decided`, capture appends them once more at the log's end, in order: those before `through` are there again.
    All of them are before `ended`, from which on the table's rows are delivered as they come. `lost_at` says when it
    was found that rows went with a log that was moved away before they were appended again; empty if none did. Times
    are ISO 8601."""

    number: int
    table: str
    first: Offset
    through: Offset
    ended: Offset | None = None
    since: str = ""
    decided: bool = False
    lost_at: str = ""

    @property
    def is_open(self) -> bool:
        return self.ended is None

    def keeps(self, offset: Offset, requeued: int) -> bool:
        """Whether a row of the table waits. `requeued` is the number of the change for which it was appended again, 0
        for what the source sent. Numbers rise: a row that an earlier quarantine let go may wait in a later one."""
        return self.first <= offset and (self.ended is None or offset < self.ended) and requeued < self.number

    def to_hold(self) -> list[Any]:
        """What a lane has to know of it."""
        return [self.number, self.table, self.first, self.ended]

    @classmethod
    def from_hold(cls, hold: list[Any]) -> Quarantine:
        number, table, first, ended = hold
        return cls(number, table, first, first, ended)
