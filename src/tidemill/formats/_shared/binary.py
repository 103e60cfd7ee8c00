"""Runs a layout over the rows of a block: each row's binary document is written front to back into one buffer.

A layout is a matrix of 64-bit integers, one line per step, like the programs of `assemble`: one compiled kernel
serves every table. `layout` writes them and knows beforehand how much room all rows can take, so nothing here
looks at a limit. Avro and Protobuf differ only in which steps they use.
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
    store_u32,
    store_u64,
)
from tidemill.encoding.numbers import put_decimal
from tidemill.encoding.strings import copy, copy_padded


class LayoutSlot(enum.IntEnum):
    """The columns of a layout."""

    STEP = 0
    PREFIX = 1  # bytes written before a value that is there
    PREFIX_SIZE = 2
    DATA = 3
    OFFSETS = 4  # of values of variable size, and of lists
    CHILD = 5  # where the documents of a list's elements end
    VALID = 6  # validity bitmap, 0 if there are no nulls, with the bit of the first row
    VALID_BIT = 7
    PARAMETER = 8  # scale, where to jump, the first bit of a boolean, or how far a length is shifted
    NULL = 9  # the byte that stands for null, -1 for nothing at all


class LayoutStep(enum.IntEnum):
    CONSTANT = 0  # only the prefix
    SKIP_IF_NULL = 1
    # Values of fixed width
    BOOL = 10
    ZIGZAG8, ZIGZAG16, ZIGZAG32, ZIGZAG64 = 11, 12, 13, 14  # signed
    ZIGZAG_U8, ZIGZAG_U16, ZIGZAG_U32 = 15, 16, 17  # unsigned numbers as signed ones
    VARINT8, VARINT16, VARINT32, VARINT64 = 18, 19, 20, 21  # unsigned
    FIXED32, FIXED64 = 22, 23
    BIG_ENDIAN128, BIG_ENDIAN256, BIG_ENDIAN_U64 = 24, 25, 26  # the fewest bytes of two's complement, with their count
    DECIMAL128, DECIMAL256 = 27, 28  # digits, with their count
    # Values of variable size; 32 and 64 are the bits of their offsets
    BYTES32, BYTES64 = 30, 31  # with their count
    ARRAY32, ARRAY64 = 32, 33  # Avro: count of elements, elements, zero
    MESSAGE32, MESSAGE64 = 34, 35  # Protobuf: bytes of all elements, elements
    REPEATED32, REPEATED64 = 36, 37  # Protobuf: elements only


# Numba takes plain integers for constants, but not members of an enumeration.
S_STEP, S_PREFIX, S_PREFIX_SIZE, S_DATA, S_OFFSETS, S_CHILD, S_VALID = (int(s) for s in list(LayoutSlot)[:7])
S_VALID_BIT, S_PARAMETER, S_NULL = (int(s) for s in list(LayoutSlot)[7:])
CONSTANT, SKIP_IF_NULL, BOOL = (int(s) for s in list(LayoutStep)[:3])
ZIGZAG8, ZIGZAG16, ZIGZAG32, ZIGZAG64, ZIGZAG_U8, ZIGZAG_U16, ZIGZAG_U32 = (int(s) for s in list(LayoutStep)[3:10])
VARINT8, VARINT16, VARINT32, VARINT64, FIXED32, FIXED64 = (int(s) for s in list(LayoutStep)[10:16])
BIG_ENDIAN128, BIG_ENDIAN256, BIG_ENDIAN_U64, DECIMAL128, DECIMAL256 = (int(s) for s in list(LayoutStep)[16:21])
BYTES32, BYTES64, ARRAY32, ARRAY64, MESSAGE32, MESSAGE64, REPEATED32, REPEATED64 = (
    int(s) for s in list(LayoutStep)[21:]
)

SLACK = 16  # stores of eight bytes may reach this far beyond the document
_7 = np.uint64(7)
_80 = np.uint64(0x80)


@njit(cache=True, nogil=True)
def _put_varint(p: Any, value: Any) -> Any:
    while value >= _80:
        store_u8(p, value | _80)
        value >>= _7
        p += 1
    store_u8(p, value)
    return p + 1


@njit(cache=True, nogil=True)
def _put_zigzag(p: Any, value: Any) -> Any:
    return _put_varint(p, np.uint64((value << 1) ^ (value >> 63)))


@njit(cache=True, nogil=True)
def _put_big_endian(p: Any, source: Any, size: Any) -> Any:
    """The number at `source`, little-endian two's complement of `size` bytes, in as few bytes as hold it."""
    top = load_byte(source + size - 1)
    sign = 255 if top >= 128 else 0
    while size > 1 and load_byte(source + size - 1) == sign and (load_byte(source + size - 2) ^ sign) < 128:
        size -= 1
    store_u8(p, 2 * size)
    for at in range(size):
        store_u8(p + 1 + at, load_byte(source + size - 1 - at))
    return p + 1 + size


@njit(cache=True, nogil=True)
def _put_big_endian_u64(p: Any, source: Any) -> Any:
    size = 8
    while size > 1 and load_byte(source + size - 1) == 0:
        size -= 1
    positive = 1 if load_byte(source + size - 1) >= 128 else 0  # a zero byte keeps the sign bit free
    store_u8(p, 2 * (size + positive))
    store_u8(p + 1, 0)
    p += 1 + positive
    for at in range(size):
        store_u8(p + at, load_byte(source + size - 1 - at))
    return p + size


@njit(cache=True, nogil=True)
def _put_decimal_text(p: Any, source: Any, words: Any, scale: Any, scratch: Any) -> Any:
    end = put_decimal(p, source, words, scale, scratch)
    # `put_decimal` writes a JSON string: its first quote makes room for the count, its last is taken back.
    store_u8(p, end - p - 2)
    return end - 1


@njit(cache=True, nogil=True)
def _put_fixed(p: Any, step: Any, code: Any, row: Any, scratch: Any) -> Any:
    data = step[S_DATA]
    if code == ZIGZAG64:
        return _put_zigzag(p, load_i64(data + 8 * row))
    if code == ZIGZAG32:
        return _put_zigzag(p, load_i32(data + 4 * row))
    if code == BOOL:
        at = step[S_PARAMETER] + row
        store_u8(p, (load_byte(data + (at >> 3)) >> (at & 7)) & 1)
        return p + 1
    if code == FIXED64:
        store_u64(p, load_u64(data + 8 * row))
        return p + 8
    if code == BIG_ENDIAN128:
        return _put_big_endian(p, data + 16 * row, 16)
    if code == DECIMAL128:
        return _put_decimal_text(p, data + 16 * row, 2, step[S_PARAMETER], scratch)
    if code == VARINT64:
        return _put_varint(p, load_u64(data + 8 * row))
    if code == VARINT32:
        return _put_varint(p, load_u32(data + 4 * row))
    if code == FIXED32:
        store_u32(p, load_u32(data + 4 * row))
        return p + 4
    if code == ZIGZAG16:
        return _put_zigzag(p, load_i16(data + 2 * row))
    if code == ZIGZAG8:
        return _put_zigzag(p, load_i8(data + row))
    if code == ZIGZAG_U32:
        return _put_varint(p, load_u32(data + 4 * row) << np.uint64(1))
    if code == ZIGZAG_U16:
        return _put_varint(p, load_u16(data + 2 * row) << np.uint64(1))
    if code == ZIGZAG_U8:
        return _put_varint(p, load_u8(data + row) << np.uint64(1))
    if code == VARINT16:
        return _put_varint(p, load_u16(data + 2 * row))
    if code == VARINT8:
        return _put_varint(p, load_u8(data + row))
    if code == BIG_ENDIAN256:
        return _put_big_endian(p, data + 32 * row, 32)
    if code == BIG_ENDIAN_U64:
        return _put_big_endian_u64(p, data + 8 * row)
    return _put_decimal_text(p, data + 32 * row, 4, step[S_PARAMETER], scratch)


@njit(cache=True, nogil=True)
def lay_out(layout: Any, out: Any, ends: Any, scratch: Any) -> None:
    """Writes every row's document to `out`; `ends[row + 1]` is where each ends. The caller gave room for all."""
    p = out
    for row in range(len(ends) - 1):
        line = 0
        while line < len(layout):
            step = layout[line]
            line += 1
            code = step[S_STEP]
            bits = step[S_VALID]
            if bits != 0:
                at = step[S_VALID_BIT] + row
                if (load_byte(bits + (at >> 3)) >> (at & 7)) & 1 == 0:
                    if step[S_NULL] >= 0:
                        store_u8(p, step[S_NULL])
                        p += 1
                    if code == SKIP_IF_NULL:
                        line = step[S_PARAMETER]
                    continue
            p = copy_padded(p, step[S_PREFIX], step[S_PREFIX_SIZE])
            if code < BOOL:
                continue
            if code < BYTES32:
                p = _put_fixed(p, step, code, row, scratch)
                continue
            if code & 1:  # the wide ones are odd
                first = load_i64(step[S_OFFSETS] + 8 * row)
                last = load_i64(step[S_OFFSETS] + 8 * row + 8)
            else:
                first = load_i32(step[S_OFFSETS] + 4 * row)
                last = load_i32(step[S_OFFSETS] + 4 * row + 4)
            count = last - first
            if code >= ARRAY32:
                first = load_i64(step[S_CHILD] + 8 * first)
                last = load_i64(step[S_CHILD] + 8 * last)
            if code <= BYTES64 or MESSAGE32 <= code <= MESSAGE64:
                p = _put_varint(p, np.uint64((last - first) << step[S_PARAMETER]))
            elif code <= ARRAY64 and count > 0:
                p = _put_varint(p, np.uint64(count << 1))
            p = copy(p, step[S_DATA] + first, last - first)
            if ARRAY32 <= code <= ARRAY64:
                store_u8(p, 0)
                p += 1
        ends[row + 1] = p - out
