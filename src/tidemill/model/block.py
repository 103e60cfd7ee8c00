"""A block: one table's run of changes, columnar. What the log stores and every sink receives.

Columns of `Block.batch` (those marked ? are absent when no row of the block has them):

    offset       uint64                       ours, rising, unique; not contiguous inside one block, because the
                                              tables of one transaction interleave
    op           uint8                        an `Op`
    position     dictionary<int32, string>    the commit position of the row's transaction
    tx_id        uint64                       the source's transaction number, null if it has none
    ordinal      uint32                       place inside the transaction, from 0 (invariant 4)
    commit_time  timestamp[us, UTC]
    key?         struct                       old key columns, where the source sent only those
    before?      struct                       the old row, where the source sent all of it
    after?       struct                       the new row
    unchanged?   list<uint16>                 columns (by number) of `after` that the source did not send (TOAST):
                                              null in `after`, but not NULL in the database
    odd?         list<struct<side: uint8, column: uint16, text: string>>
                                              exact text of values that their Arrow type cannot hold (numeric NaN,
                                              timestamp infinity, ...): null in the struct, exact here
    ddl?         string                       of an `Op.DDL` row: a JSON document (`schema/ddl_document.py`); the row
                                              has no images, and its block's table is the table as the statement left it
    sub?         uint16                       only from processors: one captured event became several, counted from 0;
                                              rows are ordered by (offset, sub)
    route?       struct<topic: string, key: string, headers: map<string, string>>
                                              only from processors: where sinks with topics send the row; a null part
                                              leaves it to the sink's own settings
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.model.position import Offset
from tidemill.model.table import Table


class Op(enum.IntEnum):
    INSERT = 1
    UPDATE = 2
    DELETE = 3
    TRUNCATE = 4
    MESSAGE = 5
    DDL = 6
    READ = 7  # a snapshot's row

    @property
    def label(self) -> str:
        return self.name.lower()


class Side(enum.IntEnum):
    """Which image an `odd` value belongs to."""

    KEY = 0
    BEFORE = 1
    AFTER = 2


POSITION = pa.dictionary(pa.int32(), pa.string())
COMMIT_TIME = pa.timestamp("us", tz="UTC")
ODD = pa.list_(pa.struct([("side", pa.uint8()), ("column", pa.uint16()), ("text", pa.string())]))
UNCHANGED = pa.list_(pa.uint16())
DDL = pa.string()
SUB = pa.uint16()
ROUTE = pa.struct([("topic", pa.string()), ("key", pa.string()), ("headers", pa.map_(pa.string(), pa.string()))])

META = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("op", pa.uint8(), nullable=False),
        pa.field("position", POSITION),
        pa.field("tx_id", pa.uint64()),
        pa.field("ordinal", pa.uint32(), nullable=False),
        pa.field("commit_time", COMMIT_TIME),
    ]
)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one table at one schema version, in offset order.

    Before the log has it (`capture`), `offset` counts from 0 within its append, and a block of a transaction
    still open at the source lacks position, tx_id and commit_time: the log adds them when it reads.
    """

    table: Table
    batch: pa.RecordBatch

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    def column(self, name: str) -> pa.Array | None:
        index = self.batch.schema.get_field_index(name)
        return None if index < 0 else self.batch.column(index)

    def struct(self, name: str) -> Mapping[str, pa.Array] | None:
        """Children of `key`, `before` or `after` by column name, with the struct's own nulls applied."""
        array = self.column(name)
        if array is None:
            return None
        return {f.name: child for f, child in zip(array.type, array.flatten(), strict=True)}

    def offsets(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """A view, not a copy."""
        column = self.batch.column(0)
        return np.frombuffer(column.buffers()[1], np.uint64)[column.offset : column.offset + self.rows]

    def slice(self, first: Offset, last: Offset) -> Block:
        """The rows with `first <= offset < last`."""
        offsets = self.offsets()
        # Unsigned bounds: numpy compares Python integers with uint64 as floats, which is inexact beyond 2**53.
        lo, hi = (int(i) for i in offsets.searchsorted(np.array([first, last], np.uint64)))
        return self if (lo, hi) == (0, self.rows) else Block(self.table, self.batch.slice(lo, hi - lo))

    def take(self, rows: Any) -> Block:
        return Block(self.table, self.batch.take(pa.array(rows)))


def empty_block(table: Table) -> Block:
    """Without a row: to ask what would become of rows of the table."""
    return Block(table, pa.record_batch([pa.nulls(0, field.type) for field in META], schema=META))
