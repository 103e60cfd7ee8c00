"""`COPY … TO STDOUT` in text to blocks: a snapshot's rows, with the converters that the stream's rows go through.

The server prints a value for COPY with the same function as for pgoutput, so that only the escapes differ: they are
undone in the buffer itself, where a backslash occurs. A row is a CopyData frame (manual 54.7), cells end with a tab.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from tidemill.decoders.columnar.sides import meta, side_values
from tidemill.decoders.pgoutput.cells import NULL, TEXT
from tidemill.decoders.pgoutput.columns import PgOutputCells, convert, strings
from tidemill.decoders.pgoutput.scan import _be32
from tidemill.errors import DecodeError
from tidemill.model.block import Block, Op, Side
from tidemill.model.columns import Ints
from tidemill.model.table import Table

MORE, FULL, OTHER, BAD = range(4)

CellMemory = dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint8]]]
"""Where cells are noted, by the number of columns: place, size and kind."""


@njit(cache=True, nogil=True, inline="always")
def _unescape(c: Any) -> Any:
    if c == 98:
        return np.uint8(8)
    if c == 102:
        return np.uint8(12)
    if c == 110:
        return np.uint8(10)
    if c == 114:
        return np.uint8(13)
    if c == 116:
        return np.uint8(9)
    if c == 118:
        return np.uint8(11)
    return c


@njit(cache=True, nogil=True)
def rows(b: Any, n: Any, p: Any, count: Any, columns: Any, at: Any, size: Any, kind: Any) -> Any:
    """Notes the cells of every whole row from `p` on; answers where it stopped, the number of rows, and why."""
    while True:
        if n - p < 5:
            return p, count, MORE
        if b[p] != 100:
            return p, count, OTHER
        end = p + 1 + _be32(b, p + 1)
        if end > n:
            return p, count, MORE
        if count == at.shape[1]:
            return p, count, FULL
        q, last = p + 5, end - 1
        if last < q or b[last] != 10:
            return p, count, BAD
        for j in range(columns):
            start = q
            while q < last and b[q] != 9 and b[q] != 92:
                q += 1
            if q < last and b[q] == 92:
                if q == start and b[q + 1] == 78 and (q + 2 == last or b[q + 2] == 9):
                    at[j, count], size[j, count], kind[j, count] = start, 0, NULL
                    q += 3
                    continue
                w = q
                while q < last and b[q] != 9:
                    if b[q] == 92 and q + 1 < last:
                        q += 1
                        b[w] = _unescape(b[q])
                    else:
                        b[w] = b[q]
                    w += 1
                    q += 1
                at[j, count], size[j, count], kind[j, count] = start, w - start, TEXT
            else:
                at[j, count], size[j, count], kind[j, count] = start, q - start, TEXT
            q += 1
        if columns and q != last + 1:
            return p, count, BAD
        count += 1
        p = end


class CopyTextDecoder:
    """One COPY's rows. `scan` a growing buffer; what it noted points into it, so call `take` before the buffer's bytes
    move. Ordinals and offsets count from 0 over the whole COPY."""

    MORE, FULL, OTHER = MORE, FULL, OTHER

    def __init__(self, table: Table, memory: CellMemory | None = None, capacity: int = 1 << 16) -> None:
        """`memory` is kept by who decodes one COPY after the other: pages that were used before cost nothing."""
        self._table = table
        memory, columns = {} if memory is None else memory, len(table.columns)
        if columns not in memory:
            memory.clear()
            shape = (columns, capacity)
            memory[columns] = np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.uint8)
        self._at, self._size, self._kind = memory[columns]
        self._count = 0
        self.total = 0

    @property
    def noted(self) -> int:
        return self._count

    def scan(self, buffer: npt.NDArray[np.uint8], end: int, position: int) -> tuple[int, int]:
        """From `position`; answers how far it came, and MORE, FULL, or OTHER: a frame there that is no row."""
        columns = len(self._table.columns)
        found, count, status = rows(buffer, end, position, self._count, columns, self._at, self._size, self._kind)
        self._count = int(count)
        if status == BAD:
            raise DecodeError(f"a row of COPY does not have the {columns} columns of {self._table.full_name}")
        return int(found), int(status)

    def take(self, buffer: npt.NDArray[np.uint8]) -> Block | None:
        """The rows noted since the last call, copied out of the buffer."""
        count = self._count
        if not count:
            return None
        children, odd = [], []
        for j, column in enumerate(self._table.columns):
            cells = PgOutputCells(buffer, self._at[j, :count], self._size[j, :count], self._kind[j, :count])
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
