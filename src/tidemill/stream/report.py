"""What the loop tells of each batch, to whoever watches: the live table, metrics, tests."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset, Position


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Events that a sink never got although the checkpoint moved on: the commit policy did not need that sink."""

    sink: str
    start: Offset
    end: Offset
    error: str

    @property
    def events(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One delivered batch. `lag_events` wait in the log behind it; `newest_commit` (seconds since 1970, 0 if not
    known) is the commit time of its last event. `retries` counts the jobs it took beyond the first."""

    number: int
    start: Offset
    end: Offset
    position: Position
    lanes: int
    seconds: float
    lag_events: int
    newest_commit: float
    receipts: tuple[Receipt, ...]
    retries: int = 0
    undelivered: tuple[Undelivered, ...] = ()

    @property
    def events(self) -> int:
        return self.end - self.start

    @property
    def bytes(self) -> int:
        return sum(receipt.bytes for receipt in self.receipts)
