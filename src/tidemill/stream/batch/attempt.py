"""A batch while it is being delivered: what came back from its lanes, and what to send again."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson
import pyarrow as pa

from tidemill.dlq import DeadLetterRecord, unpack
from tidemill.errors import DeliveryError, ErrorData, ProcessingError, Refused, TidemillError, from_data
from tidemill.model.delivery import ProcessorCount, Receipt
from tidemill.model.position import Offset
from tidemill.stream.batch.plan import Lane
from tidemill.stream.schema.structures import Known, merge

_RECEIPT = [each.name for each in fields(Receipt)]


@dataclass(frozen=True, slots=True)
class Attempt:
    """The latest receipt of every (sink, lane) of one batch.

    `dead_letters` came with the newest lane results and are to be kept before anything is sent again, and so is what
    processors `learned`; `left_out` are the offsets of all dead letters so far, per sink and lane. `processed` is what
    each lane's processors did, packed.
    """

    start: Offset
    end: Offset
    lanes: int
    by: str
    receipts: tuple[Receipt, ...]
    dead_letters: tuple[DeadLetterRecord, ...] = ()
    left_out: Mapping[tuple[str, int], frozenset[Offset]] = field(default_factory=dict)
    learned: Known = field(default_factory=dict)
    processed: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, results: pa.Table) -> Attempt:
        """A batch always has at least one lane, and a lane at least one result."""
        rows: list[dict[str, Any]] = results.to_pylist()
        one = rows[0]
        receipts = tuple(Receipt(**{name: row[name] for name in _RECEIPT}) for row in rows)
        dead_letters = {(row["sink"], row["lane"]): unpack(row["dead_letters"] or b"") for row in rows}
        return cls(
            one["start"], one["end"], one["lanes"], one["by"], receipts,
            tuple(one for some in dead_letters.values() for one in some),
            {share: frozenset(one.offset for one in some) for share, some in dead_letters.items() if some},
            functools.reduce(merge, (orjson.loads(row["learned"]) for row in rows if row["learned"]), {}),
            {row["lane"]: row["processed"] for row in rows if row["processed"]},
        )  # fmt: skip

    def after(self, second: Attempt) -> Attempt:
        """With the results of a second try in the place of the first ones."""
        latest = {(r.sink, r.lane): r for r in (*self.receipts, *second.receipts)}
        shares = self.left_out.keys() | second.left_out.keys()
        none: frozenset[Offset] = frozenset()
        sent = {receipt.lane for receipt in second.receipts}
        processed = {lane: did for lane, did in self.processed.items() if lane not in sent}
        return replace(
            self, receipts=tuple(latest.values()), dead_letters=second.dead_letters,
            left_out={s: self.left_out.get(s, none) | second.left_out.get(s, none) for s in shares},
            learned=second.learned, processed={**processed, **second.processed},
        )  # fmt: skip

    def missing(self, sinks: Iterable[str]) -> list[str]:
        """Sinks without a good receipt from every lane: a batch that one lane failed is not at the sink."""
        good = {(receipt.sink, receipt.lane) for receipt in self.receipts if receipt.ok}
        return [sink for sink in sinks if not all((sink, lane) in good for lane in range(self.lanes))]

    def refused(self) -> set[str]:
        """Sinks for which trying again is pointless."""
        return {receipt.sink for receipt in self.receipts if not receipt.ok and not receipt.retryable}

    def failed(self) -> dict[Lane, dict[str, frozenset[Offset]]]:
        """What to send again: of each lane, the sinks that did not take it but may, and what to leave out for them."""
        lost = [receipt for receipt in self.receipts if not receipt.ok and receipt.retryable]
        return {
            Lane(self.start, self.end, lane, self.lanes, self.by): {
                r.sink: self.left_out.get((r.sink, lane), frozenset()) for r in lost if r.lane == lane
            }
            for lane in sorted({receipt.lane for receipt in lost})
        }

    def processor_counts(self) -> tuple[ProcessorCount, ...]:
        """Over all lanes, in the order of the chain."""
        total: dict[str, ProcessorCount] = {}
        for packed in self.processed.values():
            for each in orjson.loads(packed):
                count = ProcessorCount(**each)
                total[count.processor] = total.get(count.processor, ProcessorCount(count.processor)) + count
        return tuple(total.values())

    def left_out_by_sink(self) -> dict[str, set[Offset]]:
        """Events that a sink did not get although it has the batch."""
        found: dict[str, set[Offset]] = {}
        for (sink, _), offsets in self.left_out.items():
            found.setdefault(sink, set()).update(offsets)
        return found

    def error(self, sink: str) -> str:
        failed = self._failed_receipt(sink)
        return failed.error if failed else "no receipt came back"

    def problem(self, pipeline: str, sinks: Iterable[str]) -> TidemillError:
        """The error that stops the pipeline, as the class that the sink raised: of the first sink that refused, or that
        never got better."""
        refused = self.refused()
        missing = self.missing(sinks)
        sink = next((s for s in missing if s in refused), missing[0])
        kind, verb, fix = (
            (Refused, "refused", "Trying again would not help: mend what it names, then start the pipeline again.")
            if sink in refused
            else (DeliveryError, "did not take", "Nothing is lost: start the pipeline again once the sink is back.")
        )
        failed = self._failed_receipt(sink)
        reported: ErrorData = orjson.loads(failed.error_data) if failed and failed.error_data else {}
        if reported.get("code") == ProcessingError.code:
            reported["where"] = ", ".join(
                filter(None, (reported.get("where"), f'pipeline "{pipeline}", checkpoint {self.start}'))
            )
            return from_data(reported, kind)
        said: ErrorData = {
            **reported,
            "what": f'sink "{sink}" {verb} the events {self.start} to {self.end - 1}: {self.error(sink)}',
            "where": f'pipeline "{pipeline}", checkpoint {self.start}',
            "fix": fix,
        }
        return from_data(said, kind)

    def _failed_receipt(self, sink: str) -> Receipt | None:
        """A refusal, if one of its lanes has one."""
        failed = (receipt for receipt in self.receipts if receipt.sink == sink and not receipt.ok)
        return min(failed, key=lambda receipt: receipt.retryable, default=None)
