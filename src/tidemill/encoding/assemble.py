"""Runs a program over the rows of a block: each row's document is written front to back into one buffer.

A program is a matrix of 64-bit integers, one line per step; what a step reads it finds by address. One compiled
kernel therefore serves every table, and a new table costs no compilation. `program` writes programs.

`numbers`, `strings` and `memory` are inlined; `kernel_cache` sees to it that a change of theirs compiles this anew.
"""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
from numba import njit

from tidemill.encoding.memory import (
    load_byte,
    load_i8,
    load_i16,
    load_i32,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    load_u64,
    store_u8,
    store_u64,
)
from tidemill.encoding.numbers import (
    NULL,
    put_date,
    put_decimal,
    put_float,
    put_signed,
    put_time,
    put_timestamp,
    put_unsigned,
)
from tidemill.encoding.strings import copy, copy_padded, escaped_size, put_base64, put_json, put_string


class ProgramSlot(enum.IntEnum):
    """The columns of a program."""

    STEP = 0
    PREFIX = 1  # text written first, with its size
    PREFIX_SIZE = 2
    DATA = 3
    OFFSETS = 4  # of variable-size values and lists; indexes of a lookup
    CHILD = 5  # offsets of the texts that a list or a lookup points into
    VALID = 6  # validity bitmap, 0 if there are no nulls, with the bit of the first row
    VALID_BIT = 7
    PARAMETER = 8  # scale, where to jump, or how much of a looked-up text to leave out at both ends
    OMIT = 9  # a byte per row: 1 leaves the whole step out
    ODD = 10  # an int32 per row: which exact text replaces the value, or -1
    ODD_OFFSETS = 11
    ODD_DATA = 12
    TAIL = 13  # a byte written last, or 0


class ProgramStep(enum.IntEnum):
    TEXT = 0  # only the prefix
    JUMP = 1
    JUMP_IF_NULL = 2
    CLOSE = 3  # takes back a comma, if one was written last, then writes the prefix
    MARK = 4
    SIZE = 5  # bytes since the mark, less the parameter
    BOOL = 10
    INT8, INT16, INT32, INT64 = 11, 12, 13, 14
    UINT8, UINT16, UINT32, UINT64 = 15, 16, 17, 18
    FLOAT32, FLOAT64 = 19, 20
    DECIMAL128, DECIMAL256 = 21, 22
    DATE, TIME, TIMESTAMP, TIMESTAMP_UTC = 23, 24, 25, 26
    LOOKUP = 30  # copies the text that the row's int32 index points to
    STRING, LARGE_STRING = 31, 32
    JSON, LARGE_JSON = 33, 34
    BINARY, LARGE_BINARY = 35, 36
    LIST, LARGE_LIST = 37, 38  # the elements are texts already


# Numba takes plain integers for constants, but not members of an enumeration.
S_STEP, S_PREFIX, S_PREFIX_SIZE, S_DATA, S_OFFSETS, S_CHILD, S_VALID = (int(s) for s in list(ProgramSlot)[:7])
S_VALID_BIT, S_PARAMETER, S_OMIT, S_ODD, S_ODD_OFFSETS, S_ODD_DATA, S_TAIL = (int(s) for s in list(ProgramSlot)[7:])
TEXT, JUMP, JUMP_IF_NULL, CLOSE, MARK, SIZE = (int(s) for s in list(ProgramStep)[:6])
BOOL, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64 = (int(s) for s in list(ProgramStep)[6:15])
FLOAT32, FLOAT64, DECIMAL128, DECIMAL256, DATE, TIME, TIMESTAMP, TIMESTAMP_UTC = (
    int(s) for s in list(ProgramStep)[15:23]
)
LOOKUP, STRING, LARGE_STRING, JSON, LARGE_JSON, BINARY, LARGE_BINARY, LIST, LARGE_LIST = (
    int(s) for s in list(ProgramStep)[23:]
)  # fmt: skip

_COMMA, _OPEN, _CLOSE = 44, 91, 93
_TRUE = np.uint64(int.from_bytes(b"true", "little"))
_FALSE = np.uint64(int.from_bytes(b"false", "little"))
_EXACT = 4096  # from this size on a string's escapes are counted before room is asked for
SLACK = 16  # stores of eight bytes may reach this far beyond the text


@njit(cache=True, nogil=True)
def _is_null(step: Any, row: Any) -> Any:
    bits = step[S_VALID]
    if bits == 0:
        return False
    at = step[S_VALID_BIT] + row
    return (load_byte(bits + (at >> 3)) >> (at & 7)) & 1 == 0


@njit(cache=True, nogil=True)
def _room_for(step: Any, code: Any, start: Any, size: Any) -> Any:
    """An upper bound for what a value of variable size takes."""
    if code <= LARGE_STRING:
        return 6 * size if size < _EXACT else escaped_size(start, size)
    return size if code <= LARGE_JSON else size // 3 * 4 + 4


@njit(cache=True, nogil=True)
def _put_fixed(p: Any, step: Any, code: Any, row: Any, scratch: Any) -> Any:
    """A value of fixed width."""
    data = step[S_DATA]
    if code == INT64:
        return put_signed(p, load_i64(data + 8 * row))
    if code == INT32:
        return put_signed(p, load_i32(data + 4 * row))
    if code == UINT64:
        return put_unsigned(p, load_u64(data + 8 * row))
    if code == UINT32:
        return put_unsigned(p, load_u32(data + 4 * row))
    if code == BOOL:
        at = step[S_PARAMETER] + row
        if (load_byte(data + (at >> 3)) >> (at & 7)) & 1:
            store_u64(p, _TRUE)
            return p + 4
        store_u64(p, _FALSE)
        return p + 5
    if code == FLOAT64:
        return put_float(p, load_u64(data + 8 * row), 52, 11)
    if code == FLOAT32:
        return put_float(p, load_u32(data + 4 * row), 23, 8)
    if code == DECIMAL128:
        return put_decimal(p, data + 16 * row, 2, step[S_PARAMETER], scratch)
    if code == DECIMAL256:
        return put_decimal(p, data + 32 * row, 4, step[S_PARAMETER], scratch)
    if code == INT16:
        return put_signed(p, load_i16(data + 2 * row))
    if code == INT8:
        return put_signed(p, load_i8(data + row))
    if code == UINT16:
        return put_unsigned(p, load_u16(data + 2 * row))
    if code == UINT8:
        return put_unsigned(p, load_u8(data + row))
    store_u8(p, 34)
    if code == DATE:
        p = put_date(p + 1, load_i32(data + 4 * row))
    elif code == TIME:
        p = put_time(p + 1, load_i64(data + 8 * row))
    else:
        p = put_timestamp(p + 1, load_i64(data + 8 * row), code == TIMESTAMP_UTC)
    store_u8(p, 34)
    return p + 1


@njit(cache=True, nogil=True)
def assemble(program: Any, fixed: Any, start: Any, out: Any, limit: Any, ends: Any, scratch: Any, wanted: Any) -> Any:
    """Writes the documents of rows `start`... to `out`; `ends[row + 1]` is where each ends. Returns the rows done.

    Fewer than all means that `limit` was reached: the caller gives a buffer with room for `wanted[0]` bytes more
    than the documents so far and calls again. `fixed` bounds what a row takes apart from its values of variable
    size, so that only those need a look at the limit.
    """
    rows = len(ends) - 1
    p = out + ends[start]
    for row in range(start, rows):
        wanted[0] = fixed
        if p + fixed > limit:
            return row
        mark = p
        line = 0
        while line < len(program):
            step = program[line]
            line += 1
            if step[S_OMIT] != 0 and load_byte(step[S_OMIT] + row) != 0:
                continue
            code = step[S_STEP]
            if code == CLOSE and load_byte(p - 1) == _COMMA:
                p -= 1
            p = copy_padded(p, step[S_PREFIX], step[S_PREFIX_SIZE])
            if code < BOOL:
                if code == JUMP or (code == JUMP_IF_NULL and _is_null(step, row)):
                    line = step[S_PARAMETER]
                elif code == MARK:
                    mark = p
                elif code == SIZE:
                    p = put_signed(p, p - mark - step[S_PARAMETER])
            elif step[S_ODD] != 0 and load_i32(step[S_ODD] + 4 * row) >= 0:
                at = step[S_ODD_OFFSETS] + 4 * load_i32(step[S_ODD] + 4 * row)
                first = load_i32(at)
                size = load_i32(at + 4) - first
                wanted[0] = p - out - ends[row] + 6 * size + fixed
                if p + 6 * size + fixed > limit:
                    return row
                p = put_string(p, step[S_ODD_DATA] + first, size)
            elif _is_null(step, row):
                store_u64(p, NULL)
                p += 4
            elif code < LOOKUP:
                p = _put_fixed(p, step, code, row, scratch)
            elif code >= LIST or code == LOOKUP:
                if code == LOOKUP:
                    first = load_i32(step[S_OFFSETS] + 4 * row)
                    last = first + 1
                elif code == LIST:
                    first = load_i32(step[S_OFFSETS] + 4 * row)
                    last = load_i32(step[S_OFFSETS] + 4 * row + 4)
                else:
                    first = load_i64(step[S_OFFSETS] + 8 * row)
                    last = load_i64(step[S_OFFSETS] + 8 * row + 8)
                child = step[S_CHILD]
                trim = step[S_PARAMETER]
                room = load_i64(child + 8 * last) - load_i64(child + 8 * first) + last - first + 2
                wanted[0] = p - out - ends[row] + room + fixed
                if p + room + fixed > limit:
                    return row
                if code != LOOKUP:
                    store_u8(p, _OPEN)
                    p += 1
                for element in range(first, last):
                    if element > first:
                        store_u8(p, _COMMA)
                        p += 1
                    begin = load_i64(child + 8 * element) + trim
                    p = copy(p, step[S_DATA] + begin, load_i64(child + 8 * element + 8) - trim - begin)
                if code != LOOKUP:
                    store_u8(p, _CLOSE)
                    p += 1
            else:
                if code & 1:  # the narrow ones are odd
                    first = load_i32(step[S_OFFSETS] + 4 * row)
                    size = load_i32(step[S_OFFSETS] + 4 * row + 4) - first
                else:
                    first = load_i64(step[S_OFFSETS] + 8 * row)
                    size = load_i64(step[S_OFFSETS] + 8 * row + 8) - first
                source = step[S_DATA] + first
                room = _room_for(step, code, source, size)
                wanted[0] = p - out - ends[row] + room + fixed
                if p + room + fixed > limit:
                    return row
                if code <= LARGE_STRING:
                    p = put_string(p, source, size)
                elif code <= LARGE_JSON:
                    p = put_json(p, source, size)
                else:
                    p = put_base64(p, source, size)
            if step[S_TAIL] != 0:
                store_u8(p, step[S_TAIL])
                p += 1
        ends[row + 1] = p - out
    return rows
