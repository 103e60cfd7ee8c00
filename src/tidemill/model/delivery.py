"""What a sink is given and what it answers."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from tidemill.model.block import Block
from tidemill.model.position import Offset, Position
from tidemill.model.table import Table


class Tier(enum.StrEnum):
    """What a replay of a batch does at the destination."""

    AT_LEAST_ONCE = "at least once"
    EFFECTIVELY_ONCE = "effectively once"


@dataclass(frozen=True, slots=True)
class Epoch:
    """Which run a delivery belongs to: the version of the checkpoint that the run began with, and when it began.

    A destination that keeps it with what it has can tell a worker of an earlier run that wakes up late from an operator
    who moved the checkpoint back. Both parts must agree that another epoch is later: a lost store counts versions anew,
    and clocks of two machines may differ.
    """

    version: int
    since: str

    def superseded(self, start: Offset, other: Epoch, other_start: Offset) -> bool:
        """Whether a delivery of this epoch comes too late where one of `other`, from `other_start` on, has been."""
        if other == self:
            return other_start > start
        return other.version >= self.version and other.since >= self.since


@dataclass(frozen=True, slots=True)
class Delivery:
    """One lane's share of one batch. A replay has the same identity and the same bytes (invariant 5).

    Iterating gives the blocks in order and may be done again; they are read as they are asked for, so a
    transaction of any size passes through bounded memory. `start` and `end` bound the whole batch, not the lane.

    `redelivered`: no batch, but a dead letter or a range of the log that an operator sends again, after events that
    came after it. A sink that skips or replaces what is before its position must take it all the same, or raise
    `Refused`. `newest` is the newest structure of its table then, where it is known and all events are of one table: a
    sink that keeps tables has followed it since.

    `by` is how events are dealt to lanes (`stream.lanes`): with the same `by` and `lanes` an event is always in the
    same lane. Without an `epoch` nobody can tell whether the delivery comes late, and it is taken.
    """

    pipeline: str
    source: str
    start: Offset
    end: Offset
    lane: int
    lanes: int
    blocks: Callable[[], Iterator[Block]] = field(repr=False)
    redelivered: bool = False
    newest: Table | None = None
    by: str = "hash"
    epoch: Epoch | None = None

    def __iter__(self) -> Iterator[Block]:
        return self.blocks()

    def without(self, offsets: Collection[Offset]) -> Delivery:
        """The same delivery less some events; its identity stays."""
        left_out = np.array(sorted(offsets), np.uint64)

        def blocks() -> Iterator[Block]:
            for block in self.blocks():
                kept = np.flatnonzero(~np.isin(block.offsets(), left_out))
                if len(kept) == block.rows:
                    yield block
                elif len(kept):
                    yield block.take(kept)

        return replace(self, blocks=blocks)


@dataclass(frozen=True, slots=True)
class Receipt:
    """A sink's word on one delivery. `error` empty means: durable at the destination.

    `skipped` counts events the destination already had (a replay met by an effectively-once sink). `notices` is what
    the sink has to say of its tables although it took everything, packed: {table: [notice]}; empty for nothing.
    `retries` counts the tries beyond the first that the worker made by itself.
    `error` is for people; `error_data` is the same error packed (`errors.to_data`), for who raises it again.
    """

    sink: str
    lane: int
    events: int = 0
    bytes: int = 0
    skipped: int = 0
    encode_seconds: float = 0.0
    write_seconds: float = 0.0
    error: str = ""
    retryable: bool = True
    notices: str = ""
    error_data: str = ""
    retries: int = 0

    @property
    def ok(self) -> bool:
        return not self.error


@dataclass(slots=True)
class ProcessorCount:
    """What one processor did to a lane's share of a batch, or to the batch."""

    processor: str
    events_in: int = 0
    events_out: int = 0
    dead_letters: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def __add__(self, other: ProcessorCount) -> ProcessorCount:
        return ProcessorCount(
            self.processor, self.events_in + other.events_in, self.events_out + other.events_out,
            self.dead_letters + other.dead_letters, self.skipped + other.skipped, self.seconds + other.seconds,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything before `offset` was delivered as the commit policy asks (invariant 1).

    `position` is where the source resumes if the log is gone, and `base` is the offset of the first event that it sends
    then: less than `offset` inside a transaction, which comes again as a whole (`respect_source_tx: false`). None is
    the offset itself. `version` rises by one with each save. `writer` is who saved it: a save whose answer was lost is
    known by it. `joined` is of a sink's own position: since then the sink moves with the pipeline's checkpoint. `note`
    is for people alone.
    """

    offset: Offset
    position: Position
    version: int = 0
    saved_at: str = ""
    note: str = ""
    base: Offset | None = None
    writer: str = ""
    joined: bool = False

    @property
    def begins(self) -> Offset:
        """Where a log begins that has nothing: the events before it never come again."""
        return self.offset if self.base is None else self.base

    def answers(self, wanted: Checkpoint, expect: int) -> bool:
        """Whether this, found in a store, is what `wanted` asked for: the answer to that save was lost."""
        fields = operator.attrgetter("offset", "position", "begins", "joined")
        return bool(fields(self) == fields(wanted)) and self.is_of_same_writer(wanted, expect)

    def is_of_same_writer(self, wanted: Checkpoint, expect: int) -> bool:
        """A later version than the writer of `wanted` knows of, but by its own hand: the answer to an earlier save was
        lost. A writer has one save under way at a time."""
        return self.version > expect and bool(wanted.writer) and self.writer == wanted.writer


def key_of(pipeline: str, sink: str) -> str:
    """Under which a sink's own position is kept in the checkpoint store. A pipeline's name has no colon: no two keys
    are the same."""
    return f"{pipeline}:{sink}"
