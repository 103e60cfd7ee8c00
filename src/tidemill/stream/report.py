"""What the loop tells of each batch, to whoever watches: the live table, metrics, tests."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.dlq import DeadLetterRecord
from tidemill.model.barrier import Barrier
from tidemill.model.delivery import ProcessorCount, Receipt
from tidemill.model.position import Offset, Position


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One batch that the sinks of a `group` have. `seconds` are those until its checkpoint was saved,
    `delivery_seconds` those until the last sink had it. `lag_events` wait in the log after it. `retries` counts tries
    beyond the first; `dead_letters` are events that became dead letters, `dropped` older ones that had to go
    for them. `barrier` is why the batch is one of its own."""

    number: int
    start: Offset
    end: Offset
    position: Position
    lanes: int
    seconds: float
    lag_events: int
    receipts: tuple[Receipt, ...]
    retries: int = 0
    group: str = ""
    dead_letters: tuple[DeadLetterRecord, ...] = ()
    dropped: tuple[DeadLetterRecord, ...] = ()
    barrier: Barrier = Barrier.NONE
    processors: tuple[ProcessorCount, ...] = ()
    delivery_seconds: float = 0.0

    @property
    def events(self) -> int:
        return self.end - self.start

    @property
    def bytes(self) -> int:
        return sum(receipt.bytes for receipt in self.receipts)
