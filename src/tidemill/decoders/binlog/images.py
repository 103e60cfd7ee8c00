"""Row images, walked by kernels: where one ends, which columns it has, and whether two of them have the same key.

`scan` (`scan`) steps over images with it, `cut` (`cells`) finds their cells. An image is a bit per column for
NULL, then the values that are not NULL; how many bytes a value takes is in the table's row program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders.binlog.wire import le16, le24, le32

# Steps of a row program: the size of a value, or minus the number of bytes that say its size.
DOCUMENT = -8  # four such bytes, of a JSON column

# What a row event's flags say.
OLD_WHOLE, NEW_WHOLE, PARTIAL = 1, 2, 4


@njit(cache=True, nogil=True, inline="always")
def cell(b: Any, p: Any, end: Any, step: Any) -> Any:
    """(first byte, size) of a value at p. Past `end` if it does not fit."""
    if step >= 0:
        return p, np.int64(step)
    head = np.int64(4) if step <= -4 else np.int64(-step)
    if p + head > end:
        return p, end - p + 1
    size = np.int64(0)
    for k in range(head):
        size |= np.int64(b[p + k]) << (8 * k)
    return p + head, size


@njit(cache=True, nogil=True, inline="always")
def has(b: Any, bits: Any, j: Any) -> Any:
    return b[bits + (j >> 3)] >> (j & 7) & 1


@njit(cache=True, nogil=True)
def count_bits(b: Any, bits: Any, columns: Any) -> Any:
    n = np.int64(0)
    for j in range(columns):
        n += has(b, bits, j)
    return n


@njit(cache=True, nogil=True)
def skip_whole(b: Any, p: Any, end: Any, program: Any, first: Any, columns: Any) -> Any:
    """The byte after a row image that has every column, or -1 if it does not fit its event."""
    nulls = p
    p += (columns + 7) >> 3
    if p > end:
        return np.int64(-1)
    for j in range(columns):
        if b[nulls + (j >> 3)] >> (j & 7) & 1:
            continue
        step = program[first + j]
        if step >= 0:
            p += step
        elif step == -1:
            if p + 1 > end:
                return np.int64(-1)
            p += 1 + np.int64(b[p])
        elif step == -2:
            if p + 2 > end:
                return np.int64(-1)
            p += 2 + le16(b, p)
        elif step == -3:
            if p + 3 > end:
                return np.int64(-1)
            p += 3 + le24(b, p)
        else:
            if p + 4 > end:
                return np.int64(-1)
            p += 4 + le32(b, p)
    return p if p <= end else np.int64(-1)


@njit(cache=True, nogil=True)
def skip_some(b: Any, p: Any, end: Any, program: Any, first: Any, columns: Any, bits: Any) -> Any:
    """As `skip_whole`, for an image with the columns that `bits` names."""
    nulls = p
    p += (count_bits(b, bits, columns) + 7) >> 3
    if p > end:
        return np.int64(-1)
    k = 0
    for j in range(columns):
        if not has(b, bits, j):
            continue
        if not has(b, nulls, k):
            at, size = cell(b, p, end, program[first + j])
            p = at + size
            if p > end:
                return np.int64(-1)
        k += 1
    return p


@njit(cache=True, nogil=True)
def skip_options(b: Any, p: Any, end: Any, program: Any, first: Any, columns: Any) -> Any:
    """(null bits, bits of partial JSON values or -1) of an after image of PARTIAL_UPDATE_ROWS; -1 if it does not fit.

    The bits are of the table's JSON columns, also of those that are not in the image.
    """
    if p >= end or b[p] > 1:
        return np.int64(-1), np.int64(-1)
    if b[p] == 0:
        return p + 1, np.int64(-1)
    documents = 0
    for j in range(columns):
        if program[first + j] == DOCUMENT:
            documents += 1
    nulls = p + 1 + ((documents + 7) >> 3)
    if nulls > end:
        return np.int64(-1), np.int64(-1)
    return nulls, p + 1


@njit(cache=True, nogil=True)
def same_keys(b: Any, old: Any, new: Any, end: Any, program: Any, keys: Any, first: Any, columns: Any) -> Any:
    """Of two images that have every column: whether the key is the same. Stops after the last key column."""
    p = old + ((columns + 7) >> 3)
    q = new + ((columns + 7) >> 3)
    last = -1
    for j in range(columns):
        if keys[first + j]:
            last = j
    for j in range(last + 1):
        old_null, new_null = has(b, old, j), has(b, new, j)
        step = program[first + j]
        old_at, old_size = p, np.int64(0)
        new_at, new_size = q, np.int64(0)
        if not old_null:
            old_at, old_size = cell(b, p, end, step)
            p = old_at + old_size
        if not new_null:
            new_at, new_size = cell(b, q, end, step)
            q = new_at + new_size
        if keys[first + j]:
            if old_null != new_null or old_size != new_size:
                return False
            for n in range(old_size):
                if b[old_at + n] != b[new_at + n]:
                    return False
    return True


@njit(cache=True, nogil=True)
def count_moved(
    b: Any,
    old: Any,
    new: Any,
    end: Any,
    program: Any,
    keys: Any,
    first: Any,
    columns: Any,
    old_bits: Any,
    new_bits: Any,
) -> Any:
    """(key differs, new row has values that neither image carries). Both images were walked before."""
    p = old + ((count_bits(b, old_bits, columns) + 7) >> 3)
    q = new + ((count_bits(b, new_bits, columns) + 7) >> 3)
    i, k = 0, 0
    differs, missing = False, False
    for j in range(columns):
        old_size, new_size = np.int64(-2), np.int64(-2)  # -2: not sent, -1: NULL
        old_at, new_at = p, q
        if has(b, old_bits, j):
            old_size = np.int64(-1)
            if not has(b, old, i):
                old_at, old_size = cell(b, p, end, program[first + j])
                p = old_at + old_size
            i += 1
        if has(b, new_bits, j):
            new_size = np.int64(-1)
            if not has(b, new, k):
                new_at, new_size = cell(b, q, end, program[first + j])
                q = new_at + new_size
            k += 1
        if new_size == -2 and old_size == -2:
            missing = True
        if keys[first + j] and new_size != -2 and old_size != -2 and not differs:
            if old_size != new_size:
                differs = True
            else:
                for n in range(old_size):
                    if b[old_at + n] != b[new_at + n]:
                        differs = True
                        break
    return differs, missing
