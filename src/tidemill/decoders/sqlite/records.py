"""SQLite's record format (https://sqlite.org/fileformat2.html#record_format), all records of a table at once.

varint: size of the header | varint for each value: its serial type | the values
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from tidemill.decoders.sqlite.cells import BLOB, INTEGER, NULL, REAL, TEXT, SqliteCells
from tidemill.errors import DecodeError
from tidemill.model.columns import Ints

_PROBLEMS = (
    "",
    "ends too early",
    "has a serial type that is none",
    "has more values than the table has columns",
    "is longer than its values",
)
_MOST_TEXT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class JoinedRecords:
    """Records one after the other. `size` is -1 where there is none."""

    heap: npt.NDArray[np.uint8]
    start: Ints
    size: Ints

    @classmethod
    def of(cls, records: Sequence[bytes | None]) -> JoinedRecords:
        size = np.array([-1 if record is None else len(record) for record in records], np.int64)
        ends = np.cumsum(np.maximum(size, 0))
        heap = np.frombuffer(b"".join(record for record in records if record is not None), np.uint8)
        return cls(heap, ends - np.maximum(size, 0), size)


def read_records(records: JoinedRecords, columns: int, where: str = "") -> SqliteCells:
    """A row for each record. Where there is none, and in columns that a record does not have yet, the kind is
    `ABSENT`. `DecodeError` for bytes that are no record."""
    shape = (columns, len(records.start))
    kind, number, size = np.zeros(shape, np.uint8), np.zeros(shape, np.int64), np.zeros(shape, np.int32)
    row, problem = _read(records.heap, records.start, records.size, kind, number, size)
    if problem:
        raise DecodeError(f"record {row} {_PROBLEMS[problem]}", where=where)
    return SqliteCells(kind, number, size, records.heap)


def write_record(values: Sequence[object]) -> bytes:
    """One record, as SQLite would store these values."""
    types, body = bytearray(), bytearray()
    for value in values:
        match value:
            case None:
                types += _pack(0)
            case 0 | 1 if isinstance(value, int):
                types += _pack(8 + int(value))
            case int():
                serial, size = next((t, n) for t, n in _WIDTHS if -(1 << (8 * n - 1)) <= value < 1 << (8 * n - 1))
                types += _pack(serial)
                body += value.to_bytes(size, "big", signed=True)
            case float():
                types += _pack(7)
                body += struct.pack(">d", value)
            case str() | bytes():
                data = value.encode() if isinstance(value, str) else value
                types += _pack((13 if isinstance(value, str) else 12) + 2 * len(data))
                body += data
            case _:
                raise DecodeError(f"a value of {type(value).__name__} has no storage class")
    size = len(types) + 1
    while len(_pack(size)) + len(types) != size:
        size += 1
    return _pack(size) + bytes(types + body)


_WIDTHS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 8))


def _pack(value: int) -> bytes:
    """A varint of less than 2**56."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(0x80 | value & 0x7F)
    return bytes(reversed(groups))


@njit(cache=True, nogil=True)
def _varint(heap: Any, at: Any, end: Any) -> Any:
    """(value, next place); the place is -1 where the bytes end first. Nine bytes at most, the last one whole."""
    value = np.int64(0)
    for i in range(9):
        if at >= end:
            return value, -1
        byte = np.int64(heap[at])
        at += 1
        if i == 8:
            return (value << 8) | byte, at
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at
    return value, -1


@njit(cache=True, nogil=True)
def _read(heap: Any, start: Any, sizes: Any, kind: Any, number: Any, size: Any) -> Any:
    width = kind.shape[0]
    for row in range(len(start)):
        if sizes[row] < 0:
            continue
        end = start[row] + sizes[row]
        header, at = _varint(heap, start[row], end)
        if at < 0 or header < at - start[row] or header > sizes[row]:
            return row, 1
        head_end = start[row] + header
        body = head_end
        column = 0
        while at < head_end:
            serial, at = _varint(heap, at, head_end)
            if at < 0:
                return row, 1
            if column >= width:
                return row, 3
            length = np.int64(0)
            if serial < 0 or serial == 10 or serial == 11:
                return row, 2
            if serial == 0:
                kind[column, row] = NULL
            elif serial <= 6:
                length = serial if serial <= 4 else (np.int64(6) if serial == 5 else np.int64(8))
                if length > end - body:
                    return row, 1
                value = np.int64(np.int8(heap[body]))
                for i in range(1, length):
                    value = (value << 8) | np.int64(heap[body + i])
                kind[column, row] = INTEGER
                number[column, row] = value
            elif serial == 7:
                length = np.int64(8)
                if length > end - body:
                    return row, 1
                value = np.int64(0)
                for i in range(8):
                    value = (value << 8) | np.int64(heap[body + i])
                kind[column, row] = REAL
                number[column, row] = value
            elif serial <= 9:
                kind[column, row] = INTEGER
                number[column, row] = serial - 8
            else:
                length = (serial - 12) // 2
                if length > end - body or length > _MOST_TEXT:
                    return row, 1
                kind[column, row] = BLOB if serial % 2 == 0 else TEXT
                number[column, row] = body
                size[column, row] = length
            body += length
            column += 1
        if body != end:
            return row, 4
    return -1, 0
