"""Kernels over the rows of a result set in the binary protocol: where each value stands, and what the stream has in
another form there: dates and times.

"Binary Protocol Resultset Row" of the MySQL internals manual: a zero byte, a bit per column for NULL (from the third
bit on), then the values. Cells are as in `cells`, so that the converters of the stream work on them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.calendar import days, micros
from tidemill.decoders.binlog.cells import NULL, VALUE
from tidemill.decoders.binlog.temporal import exists, little_endian, print_time

#: Steps of a row program: the size of a value, or how its size is written before it.
LENGTH_ENCODED, SHORT_LENGTH = -1, -2
#: What `frames` stopped at.
MORE, FULL, ENDED, REFUSED, JOINED, BROKEN = 0, 1, 2, 3, 4, 5
_LARGEST_PACKET = 0xFFFFFF


@njit(cache=True, nogil=True)
def frames(b: Any, begin: Any, start: Any, end: Any) -> Any:
    """(status, rows, next byte): where the rows of whole packets begin and end. JOINED: the next row is of 16 MiB or
    more and comes in several packets. ENDED and REFUSED: the next packet is no row."""
    p, n = begin, len(b)
    rows = 0
    while rows < len(start):
        if p + 5 > n:
            return MORE, rows, p
        size = np.int64(b[p]) | np.int64(b[p + 1]) << 8 | np.int64(b[p + 2]) << 16
        if size == _LARGEST_PACKET:
            return JOINED, rows, p
        if p + 4 + size > n:
            return MORE, rows, p
        head = b[p + 4]
        if head == 0xFE and size < 9:
            return ENDED, rows, p
        if head == 0xFF:
            return REFUSED, rows, p
        if head != 0:
            return BROKEN, rows, p
        start[rows], end[rows] = p + 4, p + 4 + size
        p += 4 + size
        rows += 1
    return FULL, rows, p


@njit(cache=True, nogil=True)
def cut_rows(b: Any, start: Any, end: Any, program: Any, at: Any, size: Any, kind: Any) -> Any:
    """Finds every cell; False if some row does not fit its packet."""
    columns = len(program)
    for i in range(len(start)):
        p, last = np.int64(start[i]), np.int64(end[i])
        nulls = p + 1
        p = nulls + ((columns + 9) >> 3)
        if p > last:
            return False
        for j in range(columns):
            if b[nulls + ((j + 2) >> 3)] >> ((j + 2) & 7) & 1:
                at[j, i], size[j, i], kind[j, i] = 0, 0, NULL
                continue
            kind[j, i] = VALUE
            length = np.int64(program[j])
            if length < 0:
                if p >= last:
                    return False
                first = np.int64(b[p])
                more = np.int64(0)
                if length == SHORT_LENGTH or first < 251:
                    length = first
                else:
                    more = np.int64(2 if first == 252 else 3 if first == 253 else 8)
                    if p + 1 + more > last or first == 251 or first == 255:
                        return False
                    length = np.int64(0)
                    for k in range(more):
                        length |= np.int64(b[p + 1 + k]) << (8 * k)
                p += 1 + more
            if length < 0 or p + length > last:
                return False
            at[j, i], size[j, i] = p, length
            p += length
        if p != last:
            return False
    return True


@njit(cache=True, nogil=True, inline="always")
def _date_at(b: Any, p: Any, size: Any) -> Any:
    """(whether there is such a day, the day) of year, month and day."""
    if size < 4:
        return False, np.int64(0)
    y, m, d = little_endian(b, p, 2), np.int64(b[p + 2]), np.int64(b[p + 3])
    return exists(y, m, d), days(y, m, d)


@njit(cache=True, nogil=True)
def result_dates(b: Any, at: Any, size: Any, kind: Any, out: Any, bad: Any) -> Any:
    """DATE: nothing for the zero date, or year, month and day."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != VALUE:
            continue
        ok, day = _date_at(b, at[i], size[i])
        if ok:
            out[i] = day
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def result_datetimes(b: Any, at: Any, size: Any, kind: Any, out: Any, bad: Any) -> Any:
    """DATETIME and TIMESTAMP: as much of year, month, day, hour, minute, second and microsecond as is not zero."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != VALUE:
            continue
        p = at[i]
        ok, day = _date_at(b, p, size[i])
        if ok:
            hour, minute, second, fraction = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
            if size[i] >= 7:
                hour, minute, second = np.int64(b[p + 4]), np.int64(b[p + 5]), np.int64(b[p + 6])
            if size[i] >= 11:
                fraction = little_endian(b, p + 7, 4)
            out[i] = micros(day, hour, minute, second, fraction)
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def result_times(b: Any, at: Any, size: Any, kind: Any, digits: Any, offsets: Any, out: Any) -> None:
    """TIME as the server prints it: `-838:59:59.000000`. `out` has 17 bytes a value."""
    o = 0
    for i in range(len(at)):
        offsets[i] = o
        if kind[i] != VALUE:
            continue
        p = at[i]
        hour, minute, second, fraction = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
        negative = False
        if size[i] >= 8:
            negative = b[p] != 0
            hour = little_endian(b, p + 1, 4) * 24 + np.int64(b[p + 5])
            minute, second = np.int64(b[p + 6]), np.int64(b[p + 7])
        if size[i] >= 12:
            fraction = little_endian(b, p + 8, 4)
        o = print_time(out, o, negative, hour, minute % 100, second % 100, fraction, digits)
    offsets[len(at)] = o
