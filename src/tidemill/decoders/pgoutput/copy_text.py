"""`COPY … TO STDOUT` in text to blocks: a snapshot's rows.

The server prints a value for COPY with the same function as for pgoutput, so that only the escapes differ. Values of
the usual types and forms are read while their cells are found (`copy_rows`); all others go through the converters of
the stream. A row is a CopyData frame (manual 54.7), cells end with a tab.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared.eight_bytes import ROOM
from tidemill.decoders._shared.sides import meta, side_values
from tidemill.decoders.pgoutput import copy_rows
from tidemill.decoders.pgoutput.columns import PgOutputCells, convert, fixed_array, strings
from tidemill.errors import DecodeError
from tidemill.model.block import Block, Op, Side
from tidemill.model.columns import Ints
from tidemill.model.table import Table

# Rows of a block: so many that a column's own price does not count, and so few that what is noted of them stays near.
_MOST_ROWS, _MOST_CELLS = 1 << 16, 1 << 19


class RowMemory:
    """Where the rows of one table are noted, and how its columns are read. Kept by who decodes one COPY after the
    other: pages that were used before cost nothing, and a column that is not of the usual form is known."""

    def __init__(self, table: Table) -> None:
        kinds = [column.type.arrow for column in table.columns]
        self.columns = table.columns
        self.how = np.array([_form(kind) for kind in kinds], np.uint8)
        limits = [_limits(kind) for kind in kinds]
        self.low = np.array([low for low, _, _ in limits], np.int64)
        self.high = np.array([high for _, high, _ in limits], np.int64)
        self.scale = np.array([scale for _, _, scale in limits], np.int64)
        shape = len(kinds), max(1, min(_MOST_ROWS, _MOST_CELLS // max(1, len(kinds))))
        self.values, self.kind = np.empty(shape, np.int64), np.empty(shape, np.uint8)
        self.floats = self.values.view(np.float64)
        self.at, self.size = np.empty(shape, np.int64), np.empty(shape, np.int64)


class CopyTextDecoder:
    """One COPY's rows. `scan` a growing buffer; what it noted points into it, so call `take` before the buffer's bytes
    move. Ordinals and offsets count from 0 over the whole COPY."""

    MORE, FULL, OTHER, ROOM = copy_rows.MORE, copy_rows.FULL, copy_rows.OTHER, ROOM

    def __init__(self, table: Table, memory: RowMemory | None = None) -> None:
        self._table = table
        self.memory = memory if memory is not None and memory.columns == table.columns else RowMemory(table)
        self._first = self._count = 0
        self.total = 0

    @property
    def noted(self) -> int:
        return self._count

    def scan(self, buffer: npt.NDArray[np.uint8], end: int, position: int) -> tuple[int, int]:
        """From `position`; answers how far it came, and MORE, FULL, or OTHER: a frame there that is no row. The buffer
        has at least ROOM more bytes than `end`."""
        if not self._count:
            self._first = position
        while True:
            found, count, status, column = self._read(buffer, end, position)
            if status != copy_rows.UNUSUAL:
                break
            # From here on all of its values go through the converters, those that were noted before too.
            self.memory.how[column] = copy_rows.CELL
            position, self._count = self._first, 0
        self._count = count
        if status == copy_rows.BAD:
            columns = len(self._table.columns)
            raise DecodeError(f"a row of COPY does not have the {columns} columns of {self._table.full_name}")
        return found, status

    def _read(self, buffer: npt.NDArray[np.uint8], end: int, position: int) -> tuple[int, int, int, int]:
        memory = self.memory
        found, count, status, column = copy_rows.rows(
            buffer, end, position, self._count, memory.how, memory.low, memory.high, memory.scale,
            memory.values, memory.floats, memory.at, memory.size, memory.kind,
        )  # fmt: skip
        return int(found), int(count), int(status), int(column)

    def take(self, buffer: npt.NDArray[np.uint8]) -> Block | None:
        """The rows noted since the last call, copied out of the buffer."""
        count, memory = self._count, self.memory
        if not count:
            return None
        children, odd = [], []
        for j, column in enumerate(self._table.columns):
            kind = memory.kind[j, :count]
            if memory.how[j] != copy_rows.CELL:
                children.append(fixed_array(memory.values[j, :count], kind, column.type.arrow))
                continue
            cells = PgOutputCells(buffer, memory.at[j, :count], memory.size[j, :count], kind)
            if (kind == copy_rows.ESCAPED).any():
                copy_rows.unescape(buffer, cells.at, cells.size, kind)
            array, bad = convert(cells, column.type)
            children.append(array)
            if bad is not None:
                where = np.nonzero(bad)[0]
                odd.append((where, Side.AFTER, j, strings(cells.take(where))))
        fields = list(self._table.arrow_struct())
        # Without a column there is no array to tell the number of rows.
        after = (
            pa.StructArray.from_arrays(children, fields=fields) if children else pa.array([{}] * count, pa.struct([]))
        )
        place: Ints = np.arange(self.total, self.total + count)
        columns = {**meta(place, np.full(count, int(Op.READ), np.uint8), place), "after": after}
        if odd:
            columns["odd"] = side_values(odd, count)
        self.total += count
        self._count = 0
        return Block(self._table, pa.RecordBatch.from_pydict(columns))


def _form(kind: pa.DataType) -> int:
    if pa.types.is_integer(kind):
        return copy_rows.INTEGER
    if pa.types.is_decimal128(kind) and kind.precision <= 18:
        return copy_rows.DECIMAL
    if pa.types.is_timestamp(kind):
        return copy_rows.TIMESTAMP if kind.tz is None else copy_rows.TIMESTAMPTZ
    forms = {pa.bool_(): copy_rows.BOOLEAN, pa.float64(): copy_rows.FLOAT, pa.date32(): copy_rows.DATE}
    return forms.get(kind, copy_rows.CELL)


def _limits(kind: pa.DataType) -> tuple[int, int, int]:
    """Lowest and highest value, and digits after the point."""
    if pa.types.is_integer(kind):
        limits: Any = np.iinfo(kind.to_pandas_dtype())
        return int(limits.min), min(int(limits.max), np.iinfo(np.int64).max), 0
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision <= 18:
        return 1 - 10**kind.precision, 10**kind.precision - 1, kind.scale
    return 0, 0, 0
