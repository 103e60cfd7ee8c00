"""A lane's note of its batch in the files sink: which files it made of which events.

The events are marked by their positions (`resume`), so a later attempt can tell whether files that are there hold
the events that come now, or those of another log at the same offsets.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import orjson

from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.resume import Delivered, ShareRecord, fingerprints
from tidemill.sinks._shared.resume import DeliveryShare as Marking

_SHARE = re.compile(r"(\d{20})-(\d{20})-(\d{4})of(\d{4})\b.*")


@dataclass(frozen=True, slots=True)
class LaneShare:
    """One lane's part of one batch; its text begins the names of all files made of it, and sorts by offset."""

    start: Offset
    end: Offset
    lane: int
    lanes: int

    @classmethod
    def of(cls, delivery: Delivery) -> LaneShare:
        return cls(delivery.start, delivery.end, delivery.lane, delivery.lanes)

    @classmethod
    def parse(cls, name: str) -> LaneShare | None:
        match = _SHARE.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None

    def __str__(self) -> str:
        return f"{self.start:020}-{self.end:020}-{self.lane:04}of{self.lanes:04}"

    @property
    def plan(self) -> tuple[Offset, Offset, int]:
        return self.start, self.end, self.lanes

    def same_plan(self, other: LaneShare) -> bool:
        return self.plan == other.plan


@dataclass(frozen=True, slots=True)
class BatchNote:
    """`records` mark the events of `files`; none if it was written before any file was made."""

    share: LaneShare
    files: tuple[str, ...] = ()
    records: tuple[ShareRecord, ...] = ()

    @classmethod
    def decode(cls, share: LaneShare, content: bytes | None) -> BatchNote:
        document = orjson.loads(content) if content else {"files": (), "records": ()}
        records = (ShareRecord.decode(base64.b64decode(text)) for text in document["records"])
        return cls(share, tuple(document["files"]), tuple(records))

    def encode(self) -> bytes:
        records = [base64.b64encode(record.encode()).decode() for record in self.records]
        return orjson.dumps({"files": sorted(self.files), "records": records})

    def agrees(self, block: Block) -> bool | None:
        """Whether these are the same events, as far as the two have offsets in common; None if they have none."""
        offsets, marks = block.offsets().astype(np.int64), fingerprints(block)
        answers = [record.delivered(offsets, marks, block) for record in self.records]
        if any(named is None for named in answers):
            return False
        return True if any(named is not None and named.any() for named in answers) else None

    def overlaps(self, other: BatchNote) -> bool:
        """Whether the two have events in common. Lanes of one attempt never have."""
        return any(_common(one, two) for one in self.records for two in other.records)


class Evidence:
    """What the events of a delivery tell of the notes that were there before it."""

    def __init__(self, delivery: Delivery, notes: Collection[BatchNote]) -> None:
        self.notes = tuple(notes)
        self.other_log = False
        self._same: set[LaneShare] = set()
        self._marking = Marking(delivery, "", Delivered())

    def see(self, block: Block) -> None:
        self._marking.note(block)
        for note in self.notes:
            agrees = note.agrees(block)
            if agrees:
                self._same.add(note.share)
            self.other_log |= agrees is False

    @property
    def records(self) -> tuple[ShareRecord, ...]:
        return tuple(self._marking.records().values()) if self._marking.events else ()

    def proven(self, note: BatchNote) -> bool:
        """Whether the note is of this log: it shares an event with this delivery, or one of the same attempt does."""
        return any(share.same_plan(note.share) for share in self._same)


def _common(one: ShareRecord, two: ShareRecord) -> bool:
    low = max(one.first, two.first)
    high = min(one.first + len(one.marks), two.first + len(two.marks))
    if low >= high:
        return False
    first, second = one.marks[low - one.first : high - one.first], two.marks[low - two.first : high - two.first]
    both = (first != 0) & (second != 0)
    return bool(both.any() and (first == second)[both].all())
