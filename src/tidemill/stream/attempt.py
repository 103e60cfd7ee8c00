"""A batch while it is being delivered: what came back from its lanes, and what to send again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from tidemill.dlq import Letter, unpack
from tidemill.errors import DeliveryError, Refused
from tidemill.model.delivery import Receipt
from tidemill.model.position import Offset
from tidemill.stream.plan import Lane

_RECEIPT = [field.name for field in fields(Receipt)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The latest receipt of every (sink, lane) of one batch, and the letters that came with the good ones."""

    start: Offset
    end: Offset
    lanes: int
    by: str
    newest: float
    receipts: tuple[Receipt, ...]
    letters: tuple[Letter, ...] = ()

    @classmethod
    def of(cls, answers: pa.Table) -> Attempt:
        """A batch always has at least one lane, and a lane at least one answer."""
        rows: list[dict[str, Any]] = answers.to_pylist()
        one = rows[0]
        receipts = tuple(Receipt(**{name: row[name] for name in _RECEIPT}) for row in rows)
        letters = tuple(letter for row in rows for letter in unpack(row["letters"] or b""))
        newest = max(row["newest"] for row in rows)
        return cls(one["start"], one["end"], one["lanes"], one["by"], newest, receipts, letters)

    def after(self, second: Attempt) -> Attempt:
        """With the answers of a second try in the place of the first ones."""
        latest = {(r.sink, r.lane): r for r in (*self.receipts, *second.receipts)}
        newest = max(self.newest, second.newest)
        return replace(self, receipts=tuple(latest.values()), newest=newest, letters=self.letters + second.letters)

    def missing(self, sinks: Iterable[str]) -> list[str]:
        """Sinks without a good receipt from every lane: a batch that one lane failed is not at the sink."""
        good = {(receipt.sink, receipt.lane) for receipt in self.receipts if receipt.ok}
        return [sink for sink in sinks if not all((sink, lane) in good for lane in range(self.lanes))]

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

    def error(self, sink: str) -> str:
        return next((r.error for r in self.receipts if r.sink == sink and not r.ok), "no receipt came back")

    def problem(self, pipeline: str, sinks: Iterable[str]) -> DeliveryError:
        """The error that stops the pipeline: the first sink that refused, or that never got better."""
        refused = self.refused()
        missing = self.missing(sinks)
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
