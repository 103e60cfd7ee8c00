"""Cells: values of many rows with their storage classes, as vectors. The form between a reader and Arrow.

`kind[column, row]` is the storage class, numbered as in SQLite's C interface. `number` holds an integer, the bits of a
real, or where the bytes of a text or blob begin in `heap`; `size` is how many these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from tidemill.errors import DecodeError
from tidemill.model.columns import Ints

ABSENT, INTEGER, REAL, TEXT, BLOB, NULL = 0, 1, 2, 3, 4, 5
"""ABSENT: there is no such cell, because its record ends before it."""


@dataclass(frozen=True, slots=True)
class SqliteCells:
    kind: npt.NDArray[np.uint8]
    number: Ints
    size: npt.NDArray[np.int32]
    heap: npt.NDArray[np.uint8]

    @property
    def columns(self) -> int:
        return self.kind.shape[0]

    @property
    def rows(self) -> int:
        return self.kind.shape[1]

    def part(self, first: int, last: int, rows: Ints) -> SqliteCells:
        """Columns `first` to `last`, of these rows."""
        return SqliteCells(
            self.kind[first:last, rows], self.number[first:last, rows], self.size[first:last, rows], self.heap
        )

    def take(self, rows: Ints) -> SqliteCells:
        return self.part(0, self.columns, rows)

    def where(self, condition: npt.NDArray[np.bool_], other: SqliteCells) -> SqliteCells:
        """These cells in rows where `condition` holds, else those of `other`, which has the same heap."""
        return SqliteCells(
            np.where(condition, self.kind, other.kind),
            np.where(condition, self.number, other.number),
            np.where(condition, self.size, other.size),
            self.heap,
        )

    def bytes_of(self, column: int, row: int) -> bytes:
        at, size = int(self.number[column, row]), int(self.size[column, row])
        return self.heap[at : at + size].tobytes()


class TextBytes(bytes):
    """A text as its bytes, told apart from a blob."""


def cells_of(rows: Sequence[Sequence[object]], columns: int) -> SqliteCells:
    """Values as `sqlite3` gives them, one by one: for a few, and where nothing faster can be had."""
    shape = (columns, len(rows))
    kind, number, size = np.full(shape, NULL, np.uint8), np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    pieces: list[bytes] = []
    used = 0
    for i, row in enumerate(rows):
        for j, value in enumerate(row[:columns]):
            match value:
                case None:
                    pass
                case int():
                    kind[j, i], number[j, i] = INTEGER, value
                case float():
                    kind[j, i], number[j, i] = REAL, np.array([value]).view(np.int64)[0]
                case str() | bytes():
                    data = value.encode() if isinstance(value, str) else bytes(value)
                    kind[j, i] = TEXT if isinstance(value, str | TextBytes) else BLOB
                    number[j, i], size[j, i] = used, len(data)
                    pieces.append(data)
                    used += len(data)
                case _:
                    raise DecodeError(f"a value of {type(value).__name__} has no storage class")
    return SqliteCells(kind, number, size, np.frombuffer(b"".join(pieces), np.uint8))


def differs(a: SqliteCells, b: SqliteCells, columns: list[int]) -> npt.NDArray[np.bool_]:
    """Rows in which one of these columns is not the same value of the same storage class."""
    found = np.zeros(a.rows, np.bool_)
    for j in columns:
        _mark_differences(a.kind[j], a.number[j], a.size[j], a.heap, b.kind[j], b.number[j], b.size[j], b.heap, found)
    return found


@njit(cache=True, nogil=True)
def _mark_differences(
    a_kind: Any, a_number: Any, a_size: Any, a_heap: Any, b_kind: Any, b_number: Any, b_size: Any, b_heap: Any,
    found: Any,
) -> None:  # fmt: skip
    for i in range(len(found)):
        kind = a_kind[i]
        if kind != b_kind[i]:
            found[i] = True
        elif kind in (INTEGER, REAL):
            if a_number[i] != b_number[i]:
                found[i] = True
        elif kind in (TEXT, BLOB):
            if a_size[i] != b_size[i]:
                found[i] = True
                continue
            for j in range(a_size[i]):
                if a_heap[a_number[i] + j] != b_heap[b_number[i] + j]:
                    found[i] = True
                    break


@njit(cache=True, nogil=True)
def gather(heap: Any, number: Any, size: Any, wanted: Any, offsets: Any, data: Any) -> None:
    """Copies the bytes of wanted cells one after the other; `offsets` are already counted."""
    for i in range(len(wanted)):
        if wanted[i]:
            at, start = number[i], offsets[i]
            for j in range(size[i]):
                data[start + j] = heap[at + j]
