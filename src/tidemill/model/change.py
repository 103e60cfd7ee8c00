"""What a decoder hands to the capture loop: finished transactions, or pieces of open ones."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidemill.model.barrier import Barrier
from tidemill.model.block import Block
from tidemill.model.position import Offset, Position

SUBTX = pa.uint64()
"""Wider than a transaction's number: a decoder marks rows that it may have to take back with larger ones."""


@dataclass(frozen=True, slots=True)
class Committed:
    """Whole transactions, ready to become visible together (invariant 3).

    Offsets in `blocks` count from 0. `marks` are (events, position) at ends of transactions, rising, the last one
    being (all events, `through`): where a batch may end inside this append, and where the source resumes then.
    With a `barrier` (a schema change or TRUNCATE is among them) a batch ends before and after this append.
    """

    blocks: tuple[Block, ...]
    events: int
    marks: tuple[tuple[Offset, Position], ...]
    barrier: Barrier = Barrier.NONE

    @property
    def through(self) -> Position:
        return self.marks[-1][1]


@dataclass(frozen=True, slots=True)
class Spilled:
    """A piece of a transaction still open at the source. Invisible until `SpillCommitted`.

    Its blocks lack `position`, `tx_id` and `commit_time`, and have a column `subtx` (`SUBTX`): the subtransaction, or
    a decoder's own number. `offset` and `ordinal` count from the transaction's first event, over all its pieces.
    """

    transaction: int
    blocks: tuple[Block, ...]
    events: int
    barrier: Barrier = Barrier.NONE


@dataclass(frozen=True, slots=True)
class SpillCommitted:
    """The open transaction committed. Rows whose `subtx` is in `aborted` were rolled back and leave nothing behind."""

    transaction: int
    position: Position
    tx_id: int
    commit_time: int  # microseconds since 1970, UTC
    through: Position
    aborted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SpillAborted:
    transaction: int


Change = Committed | Spilled | SpillCommitted | SpillAborted
