"""A batch while it is being delivered: what came back from its lanes, and what to send again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from tidemill.errors import DeliveryError, Refused
from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset
from tidemill.stream.plan import Lane
from tidemill.stream.policy import delivered
from tidemill.stream.report import Undelivered

_RECEIPT = [field.name for field in fields(Receipt)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The latest receipt of every (sink, lane) of one batch."""

    start: Offset
    end: Offset
    lanes: int
    by: str
    newest: float
    receipts: tuple[Receipt, ...]

    @classmethod
    def of(cls, answers: pa.Table) -> Attempt:
        """A batch always has at least one lane, and a lane at least one answer."""
        rows: list[dict[str, Any]] = answers.to_pylist()
        one = rows[0]
        receipts = tuple(Receipt(**{name: row[name] for name in _RECEIPT}) for row in rows)
        return cls(one["start"], one["end"], one["lanes"], one["by"], max(row["newest"] for row in rows), receipts)

    def after(self, second: Attempt) -> Attempt:
        """With the answers of a second try in the place of the first ones."""
        latest = {(r.sink, r.lane): r for r in (*self.receipts, *second.receipts)}
        return replace(self, receipts=tuple(latest.values()), newest=max(self.newest, second.newest))

    def delivered(self, sinks: Iterable[str]) -> set[str]:
        return delivered(self.receipts, sinks, self.lanes)

    def refused(self) -> set[str]:
        """Sinks for which trying again is pointless."""
        return {receipt.sink for receipt in self.receipts if not receipt.ok and not receipt.retryable}

    def failed(self) -> dict[Lane, frozenset[str]]:
        """What to send again: of each lane, the sinks that did not take it but may."""
        lost = [receipt for receipt in self.receipts if not receipt.ok and receipt.retryable]
        return {
            Lane(self.start, self.end, lane, self.lanes, self.by): frozenset(r.sink for r in lost if r.lane == lane)
            for lane in sorted({receipt.lane for receipt in lost})
        }

    def undelivered(self, sinks: Iterable[str]) -> tuple[Undelivered, ...]:
        have = self.delivered(sinks)
        return tuple(Undelivered(s, self.start, self.end, self.error(s)) for s in sinks if s not in have)

    def error(self, sink: str) -> str:
        return next((r.error for r in self.receipts if r.sink == sink and not r.ok), "no receipt came back")

    def problem(self, pipeline: str, sinks: Iterable[str]) -> DeliveryError:
        """The error that stops the pipeline: the first sink that refused, or that never got better."""
        refused = self.refused()
        missing = [sink for sink in sinks if sink not in self.delivered(sinks)]
        sink = next((s for s in missing if s in refused), missing[0])
        kind, verb, fix = (
            (Refused, "refused", "Trying again would not help: mend what it names, then start the pipeline again.")
            if sink in refused
            else (DeliveryError, "did not take", "Nothing is lost: start the pipeline again once the sink is back.")
        )
        return kind(
            f'sink "{sink}" {verb} the events {self.start} to {self.end - 1}: {self.error(sink)}',
            where=f'pipeline "{pipeline}", checkpoint {self.start}',
            fix=fix,
        )
