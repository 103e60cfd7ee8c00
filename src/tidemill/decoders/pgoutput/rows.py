"""What the decoder keeps of its connection: rows that `scan` noted, their relations, and what it handed on early."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders.pgoutput.messages import Relation
from tidemill.decoders.pgoutput.scan import OP_DDL
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


@dataclass(frozen=True, slots=True)
class TableStatement:
    """What a statement did to one table. `document` is the block's `ddl` column; `table` is as it left it, and the
    stream announces it as `relation`; None where no row of it follows."""

    table: Table
    document: str
    relation: Relation | None = None


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

    def note_statement(self, row: int, slot: int, document: int, end: int, tx: int, sub: int) -> None:
        """`document` is its place in `Slots.documents`."""
        self.op[row], self.slot[row], self.full[row] = OP_DDL, slot, 0
        self.old[row], self.new[row], self.fill[row] = -1, -1, document
        self.end[row], self.tx[row], self.sub[row] = end, tx, sub


@dataclass(slots=True)
class Slots:
    """Relations by oid. A relation that changes gets a new slot: rows noted earlier keep their schema (invariant 6).
    `statements` are slots of statements, apart from rows of the same table; `documents` are those of the noted rows.
    """

    tables: list[Table] = field(default_factory=lambda: [MESSAGES])
    of: dict[int, int] = field(default_factory=dict)
    statements: set[int] = field(default_factory=set)
    slot_of_statement: dict[object, int] = field(default_factory=dict)
    documents: list[str] = field(default_factory=list)
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

    def add_statement(self, statement: TableStatement) -> tuple[int, int]:
        """Its slot, and the place of its document."""
        known = statement.table, statement.table.lineage
        if known not in self.slot_of_statement:
            self.slot_of_statement[known] = self.add(statement.table)
            self.statements.add(self.slot_of_statement[known])
        self.documents.append(statement.document)
        return self.slot_of_statement[known], len(self.documents) - 1

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
