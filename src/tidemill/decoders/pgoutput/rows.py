"""What the decoder keeps of its connection: rows that `scan` noted, their relations, and what it handed on early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import TidemillError
from tidemill.model.columns import Ints
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

#: Logical messages (pg_logical_emit_message) are events of this table.
MESSAGES = Table(
    "", "", "message",
    (
        Column("prefix", DataType("text", pa.string(), JsonForm.STRING), nullable=False),
        Column("content", DataType("bytea", pa.binary(), JsonForm.BASE64), nullable=False),
    ),
).with_fingerprint()  # fmt: skip


class PgOutputRows:
    """What `scan` notes, one vector per fact. Reused for the whole connection."""

    def __init__(self, capacity: int) -> None:
        self.op = np.empty(capacity, np.uint8)
        self.slot = np.empty(capacity, np.int32)
        self.old, self.new, self.fill, self.end = (np.empty(capacity, np.int64) for _ in range(4))
        self.full = np.empty(capacity, np.uint8)
        self.tx = np.empty(capacity, np.int32)
        self.sub = np.empty(capacity, np.int64)
        self.tx_lsn, self.tx_end, self.tx_time, self.tx_id, self.tx_row = (
            np.empty(capacity + 2, np.int64) for _ in range(5)
        )

    def vectors(self) -> tuple[npt.NDArray[Any], ...]:
        rows = (self.op, self.slot, self.old, self.new, self.fill, self.full, self.end, self.tx, self.sub)
        return (*rows, self.tx_lsn, self.tx_end, self.tx_time, self.tx_id, self.tx_row)


@dataclass(slots=True)
class Slots:
    """Relations by oid. A relation that changes gets a new slot: rows noted earlier keep their schema (invariant 6)."""

    tables: list[Table] = field(default_factory=lambda: [MESSAGES])
    of: dict[int, int] = field(default_factory=dict)
    oids: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    slot_of: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    width: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    keys: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros((1, 1), np.uint8))

    def add(self, table: Table) -> int:
        self.tables.append(table)
        self.width = np.array([len(t.columns) for t in self.tables], np.int64)
        self.keys = np.zeros((len(self.tables), max(1, int(self.width.max()))), np.uint8)
        for row, t in zip(self.keys, self.tables, strict=True):
            row[[i for i, c in enumerate(t.columns) if c.name in t.key]] = 1
        return len(self.tables) - 1

    def point(self, of: dict[int, int]) -> None:
        self.of = of
        self.oids = np.array(sorted(of), np.int64)
        self.slot_of = np.array([of[oid] for oid in sorted(of)], np.int64)


@dataclass(slots=True)
class OpenTransaction:
    """An open transaction of which pieces have left."""

    events: int = 0
    aborted: set[int] = field(default_factory=set)
    failed: TidemillError | None = None  # it cannot be decoded
    _parts: list[Ints] = field(default_factory=list)  # subtransactions that have rows

    def note(self, subtransactions: Ints) -> None:
        """Of the rows of one piece."""
        self.events += len(subtransactions)
        first = np.append(True, subtransactions[1:] != subtransactions[:-1])
        self._parts.append(subtransactions[first])

    def survives(self) -> bool:
        """Whether a row is left when all savepoints that were rolled back are."""
        return any(not self.aborted.issuperset(part.tolist()) for part in self._parts)
