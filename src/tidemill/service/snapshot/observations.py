"""Observations of the server that reads may prove, each with where the log ended before it
(`contracts/snapshot.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tidemill.contracts import SnapshotRecord
from tidemill.model.position import Offset

Observation = tuple[Offset, str]
_MOST = 64


@dataclass(slots=True)
class Observations:
    """Of one snapshot, oldest first."""

    all: list[Observation] = field(default_factory=list)

    @classmethod
    def of(cls, record: SnapshotRecord, gap: Offset) -> Observations:
        """What a run before this one saved, unless the log's stream begins after it, at `gap`."""
        return cls([(record.since, record.observation)] if record.observation and record.since >= gap else [])

    def add(self, logged: Offset, observe: Callable[[], str]) -> None:
        """`logged`: where the log ended before it is made. Of a transaction that stays open none is proven, and they
        become many; a window may begin too early, so that half of them do: the oldest serves all."""
        if len(self.all) >= _MOST:
            self.all = self.all[::2]
        self.all.append((logged, observe()))

    def prove(self, seen: Iterable[Observation]) -> bool:
        """What one read has seen to its end, every later one has: older observations serve nobody. Whether that is
        news."""
        newest = max(seen, key=lambda each: each[0], default=None)
        if newest is None or (self.all and (newest[0] < self.all[0][0] or newest == self.all[0])):
            return False
        self.all = [newest, *(each for each in self.all if each[0] >= newest[0] and each != newest)]
        return True
