"""Which events a delivery brought to its destination, kept beside them there: the exact half of a replay.

A sink writes, together with the events of a delivery and atomically with them, a record: the batch's bounds, and one
byte per offset of the batch: 0 for an event of another lane, else a fingerprint of the event's source position.

A restart reads the records back and skips exactly the events they name. Nothing is inferred from how events were dealt
to lanes: a batch replayed with the same plan is skipped whole, one that is cut anew or dealt to another number of lanes
(lost Spark directory) is skipped event by event.

A record speaks only for the batch that was under way when its writer died. A delivery that starts before the record's
batch is a replay someone asked for, or another log, and is delivered; so is one where the fingerprints tell that the
same offsets mean other events (state thrown away, name used again). In doubt an event is sent twice, never withheld
(invariant 7). There is no doubt where both sides have an epoch: a record of a later one, or of a later batch of the
same one, tells a worker that woke up late that its batch was delivered by others.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from tidemill.errors import Refused
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Epoch
from tidemill.model.position import Offset

_CHUNK = 1 << 19  # offsets per record: at worst half a megabyte, below every broker's limit

Marks = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class ShareRecord:
    """Part of one lane's share of a batch. `marks[i]` is about offset `first + i`; `witness` is one event, in full."""

    start: Offset
    end: Offset
    first: Offset
    witness: tuple[Offset, str]
    marks: Marks
    epoch: Epoch | None = None

    def encode(self) -> bytes:
        head: dict[str, Any] = {"start": self.start, "end": self.end, "first": self.first, "witness": self.witness}
        if self.epoch is not None:
            head["epoch"] = (self.epoch.version, self.epoch.since)
        return orjson.dumps(head) + b"\n" + zlib.compress(self.marks.tobytes(), 1)

    @classmethod
    def decode(cls, value: bytes) -> ShareRecord:
        head, _, marks = value.partition(b"\n")
        doc = orjson.loads(head)
        offset, position = doc["witness"]
        return cls(
            doc["start"], doc["end"], doc["first"], (offset, position), np.frombuffer(zlib.decompress(marks), np.uint8),
            Epoch(*doc["epoch"]) if "epoch" in doc else None,
        )  # fmt: skip

    def covers(self, delivery: Delivery) -> bool:
        return self.start <= delivery.start < self.end

    def delivered(self, offsets: np.ndarray[Any, Any], marks: Marks, block: Block) -> np.ndarray[Any, Any] | None:
        """Which rows this record names; None when its batch was made of other events."""
        inside = (offsets >= self.first) & (offsets < self.first + len(self.marks))
        known = np.zeros(len(offsets), np.uint8)
        known[inside] = self.marks[offsets[inside] - self.first]
        named = known != 0
        if (known[named] != marks[named]).any():
            return None
        at = int(np.searchsorted(offsets, self.witness[0]))
        if at < len(offsets) and offsets[at] == self.witness[0] and _position(block, at) != self.witness[1]:
            return None
        return named


@dataclass(slots=True)
class Delivered:
    """What is known to be delivered, by record key (`<lane's name>/<chunk>`)."""

    records: dict[str, ShareRecord] = field(default_factory=dict)

    def check_in_time(self, delivery: Delivery) -> None:
        """`Refused` if the records tell that a later run, or a later batch of this one, was here."""
        if delivery.epoch is None:
            return
        for record in self.records.values():
            if record.epoch is not None and delivery.epoch.superseded(delivery.start, record.epoch, record.start):
                raise superseded_error(delivery, record.start)

    def fresh(self, delivery: Delivery, block: Block) -> np.ndarray[Any, Any] | None:
        """The numbers of the rows still to be sent; None for all of them."""
        relevant = [key for key, record in self.records.items() if record.covers(delivery)]
        if not relevant:
            return None
        offsets, marks = _offsets(block), fingerprints(block)
        seen = np.zeros(block.rows, bool)
        for key in relevant:
            named = self.records[key].delivered(offsets, marks, block)
            if named is None:
                del self.records[key]
            else:
                seen |= named
        return np.flatnonzero(~seen) if seen.any() else None


class DeliveryShare:
    """The events one delivery adds: noted block by block, turned into records just before the commit."""

    def __init__(self, delivery: Delivery, lane: str, before: Delivered) -> None:
        """Keeps what the lane's records say of events from here on: a batch that was cut anew may be shorter."""
        own = [r for key, r in before.records.items() if key.startswith(f"{lane}/") and r.covers(delivery)]
        self._lane = lane
        self._epoch = delivery.epoch
        self._start = delivery.start
        self._end = max([delivery.end, *(record.end for record in own)])
        self._marks = np.zeros(self._end - self._start, np.uint8)
        self._witness = own[0].witness if own else None
        for record in own:
            lo = max(record.first, self._start)
            tail = record.marks[lo - record.first :]
            self._marks[lo - self._start : lo - self._start + len(tail)] = tail
        self.events = 0

    def note(self, block: Block) -> None:
        if self._witness is None:
            self._witness = (int(_offsets(block)[0]), _position(block, 0))
        self._marks[_offsets(block) - self._start] = fingerprints(block)
        self.events += block.rows

    def records(self) -> dict[str, ShareRecord]:
        assert self._witness is not None
        return {
            f"{self._lane}/{number}": ShareRecord(
                self._start, self._end, self._start + at, self._witness, self._marks[at : at + _CHUNK], self._epoch
            )
            for number, at in enumerate(range(0, len(self._marks), _CHUNK))
        }


class RecordedResumption:
    """A `Resumption` by records: events that a record names are left out, the others stand in `records`."""

    def __init__(self, delivery: Delivery, lane: str, delivered: Delivered) -> None:
        self.skipped = 0
        self._delivery = delivery
        self._delivered = delivered
        self._share = DeliveryShare(delivery, lane, delivered)

    @property
    def events(self) -> int:
        """How many were fresh so far."""
        return self._share.events

    @property
    def records(self) -> dict[str, ShareRecord]:
        return self._share.records()

    def fresh(self, block: Block) -> Block | None:
        rows = self._delivered.fresh(self._delivery, block)
        if rows is not None:
            self.skipped += block.rows - len(rows)
            block = block.take(rows)
        if not block.rows:
            return None
        self._share.note(block)
        return block


def superseded_error(delivery: Delivery, start: Offset, where: str = "") -> Refused:
    """A worker that everybody believed dead woke up; what it has to say was said by others."""
    return Refused(
        f"this worker comes too late with the events {delivery.start} to {delivery.end - 1}: a later run or batch, "
        f"from offset {start} on, was here", where=where,
        fix="Nothing is to do about a worker of an earlier run: its batch was delivered by another. If the pipeline "
        "itself stops here, this machine's clock lags that of the machine where it ran before: set it, and start "
        "again.",
    )  # fmt: skip


def fingerprints(block: Block) -> Marks:
    """One byte from 1 to 255 per row, from its source position: the same after any replay (invariant 4)."""
    positions = block.batch.column("position")
    per_value = np.array([zlib.crc32(p.encode()) % 255 + 1 for p in positions.dictionary.to_pylist()] or [1], np.uint8)
    return per_value[positions.indices.fill_null(0).to_numpy()]


def _offsets(block: Block) -> np.ndarray[Any, Any]:
    return block.batch.column("offset").to_numpy().astype(np.int64)


def _position(block: Block, row: int) -> str:
    return block.batch.column("position")[row].as_py() or ""
