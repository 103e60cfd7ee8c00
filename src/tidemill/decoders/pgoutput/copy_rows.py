"""Rows of a `COPY` in one pass: cells are found and, where their column's type and their form are the usual ones, read
at once, while their bytes are in the cache nearest to the core. Columns of other types are noted as cells, for
`columns`.

What is usual is narrow, so that a value has one meaning only: the converters of the stream give the same one, and
whatever looks otherwise is left to them (`UNUSUAL`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.calendar import MICROS_PER_DAY
from tidemill.decoders._shared.eight_bytes import word
from tidemill.decoders.pgoutput.cells import NULL, TEXT
from tidemill.decoders.pgoutput.scan import _be32

MORE, FULL, OTHER, BAD, UNUSUAL = range(5)
CELL, INTEGER, BOOLEAN, DECIMAL, FLOAT, DATE, TIMESTAMP, TIMESTAMPTZ = range(8)
"""How a column is read."""

ESCAPED = 92
"""The kind of a cell whose escapes are not undone yet."""

_U = np.uint64
_LOW, _HIGH = _U(0x0101010101010101), _U(0x8080808080808080)
_TABS, _BACKSLASHES = _U(0x0909090909090909), _U(0x5C5C5C5C5C5C5C5C)
_POWERS = 10.0 ** np.arange(23)  # exact
_EXACT = np.int64(1) << 53  # a float has every integer up to here
_MOST = _U((1 << 63) - 1)
_1, _2, _8 = _U(1), _U(2), _U(8)


@njit(cache=True, nogil=True, inline="always")
def _digit(b: Any, p: Any) -> Any:
    """0 to 9, or more."""
    return np.uint8(b[p] - np.uint8(48))


@njit(cache=True, nogil=True, inline="always")
def _pair(b: Any, p: Any) -> Any:
    """Two digits; 1000 and more if one of them is none."""
    tens, ones = _digit(b, p), _digit(b, p + _1)
    return _U(tens) * _U(10) + _U(ones) if tens <= 9 and ones <= 9 else _U(100_000)


@njit(cache=True, nogil=True, inline="always")
def _day(b: Any, p: Any) -> Any:
    """Days since 1970 of `2024-02-29`; -1 if it is before that year, or no date."""
    if b[p + _U(4)] != 45 or b[p + _U(7)] != 45:
        return np.int64(-1)
    y, m, d = _pair(b, p) * _U(100) + _pair(b, p + _U(2)), _pair(b, p + _U(5)), _pair(b, p + _U(8))
    if y < _U(1970) or y > _U(9999) or m < _1 or m > _U(12) or d < _1 or d > _U(31):
        return np.int64(-1)
    # As `calendar.days`, which has to care for years before 0.
    if m <= _U(2):
        y, m = y - _1, m + _U(12)
    year_days = y * _U(365) + y // _U(4) - y // _U(100) + y // _U(400)
    return np.int64(year_days + (_U(153) * (m - _U(3)) + _U(2)) // _U(5) + d - _1) - np.int64(719468)


@njit(cache=True, nogil=True, inline="always")
def _seconds(b: Any, p: Any) -> Any:
    """Of a day, of `12:34:56`; -1 if that is no time."""
    h, m, s = _pair(b, p), _pair(b, p + _U(3)), _pair(b, p + _U(6))
    if b[p + _U(2)] != 58 or b[p + _U(5)] != 58 or h > _U(23) or m > _U(59) or s > _U(59):
        return np.int64(-1)
    return np.int64((h * _U(60) + m) * _U(60) + s)


@njit(cache=True, nogil=True, inline="always")
def _digits(b: Any, p: Any, v: Any) -> Any:
    """(`v` with the digits from p on after it, next byte). Nineteen digits are less than 64 bits hold."""
    d = _digit(b, p)
    while d <= 9:
        v = v * _U(10) + _U(d)
        p += _1
        d = _digit(b, p)
    return v, p


@njit(cache=True, nogil=True, inline="always")
def _cell_end(b: Any, q: Any, last: Any) -> Any:
    """(where the cell ends that begins at q, whether it has escapes)."""
    escaped = False
    while True:
        while q + _8 <= last:  # eight bytes without a tab and a backslash
            w = word(b, q)
            t, s = w ^ _TABS, w ^ _BACKSLASHES
            if ((t - _LOW) & ~t | (s - _LOW) & ~s) & _HIGH:
                break
            q += _8
        while q < last and b[q] != 9 and b[q] != 92:
            q += _1
        if q >= last or b[q] == 9:
            return q, escaped
        escaped = True
        q += _2


@njit(cache=True, nogil=True)
def rows(
    b: Any, n: Any, p: Any, count: Any, how: Any, low: Any, high: Any, scale: Any,
    values: Any, floats: Any, at: Any, size: Any, kind: Any,
) -> Any:  # fmt: skip
    """Reads every whole row from `p` on; answers where it stopped, the number of rows, why, and of an unusual value the
    column. `values` and `floats` are the same memory. The buffer has eight bytes more than `n`."""
    columns = len(how)
    date, rest, day = _U(0), _U(0), np.int64(-1)  # the date that was met last: often the next one too
    while True:
        if n - p < 5:
            return p, count, MORE, 0
        if b[p] != 100:
            return p, count, OTHER, 0
        end = p + 1 + _be32(b, p + 1)
        if end > n:
            return p, count, MORE, 0
        if count == kind.shape[1]:
            return p, count, FULL, 0
        q, last = _U(p + 5), _U(end - 1)
        if last < q or b[last] != 10:
            return p, count, BAD, 0
        for j in range(columns):
            if q > last:
                return p, count, BAD, 0
            form = how[j]
            if b[q] == 92 and b[q + _1] == 78 and (b[q + _2] == 9 or q + _2 == last):
                kind[j, count] = NULL
                if form == CELL:
                    at[j, count], size[j, count] = 0, 0
                else:
                    values[j, count] = 0
                q += _U(3)
                continue
            kind[j, count] = TEXT
            if form == CELL:
                start = q
                q, escaped = _cell_end(b, q, last)
                if q > last:
                    return p, count, BAD, 0
                at[j, count], size[j, count] = start, q - start
                if escaped:
                    kind[j, count] = ESCAPED
                q += _1
                continue
            if form == BOOLEAN:
                ok = b[q] == 116 or b[q] == 102
                values[j, count] = b[q] == 116
                q += _1
            elif form < DATE:
                negative = b[q] == 45
                start = q + _U(negative)
                u, q = _digits(b, start, _U(0))
                whole, fraction = q - start, _U(0)
                if form != INTEGER and b[q] == 46:
                    start = q + _1
                    u, q = _digits(b, start, u)
                    fraction = q - start
                    ok = fraction >= _1
                else:
                    ok = True
                ok = ok and whole >= _1 and whole + fraction <= _U(19) and u <= _MOST
                v = np.int64(u & _MOST)
                if form == FLOAT:
                    # Both are exact, so that the quotient is rounded once, to the nearest, as what a parser gives.
                    ok = ok and v <= _EXACT
                    f = np.float64(v) / _POWERS[fraction] if ok else 0.0
                    floats[j, count] = -f if negative else f
                else:
                    v = -v if negative else v
                    ok = ok and fraction == _U(scale[j]) and low[j] <= v <= high[j]
                    values[j, count] = v
            else:
                ok, v = q + _U(10) <= last, np.int64(0)
                if ok:
                    w, r = word(b, q), _U(b[q + _8]) << _8 | _U(b[q + _U(9)])
                    if w != date or r != rest:
                        date, rest, day = w, r, _day(b, q)
                    ok, v = day >= 0, day
                    q += _U(10)
                if form != DATE:
                    ok = ok and q + _U(9) <= last and b[q] == 32
                    seconds, f = _seconds(b, q + _1) if ok else np.int64(-1), _U(0)
                    ok = seconds >= 0
                    q += _U(9)
                    if ok and b[q] == 46:
                        start = q + _1
                        f, q = _digits(b, start, f)
                        ok = _1 <= q - start <= _U(6)
                        for _k in range(_U(6) - (q - start) if ok else _U(0)):
                            f *= _U(10)
                    v = v * MICROS_PER_DAY + seconds * 1_000_000 + np.int64(f)
                    if form == TIMESTAMPTZ:
                        ok = ok and q + _U(3) <= last and b[q] == 43 and b[q + _1] == 48 and b[q + _2] == 48
                        q += _U(3)
                values[j, count] = v
            if not ok or q > last or (q != last and b[q] != 9):
                return p, count, UNUSUAL, j
            q += _1
        if columns and q != last + _1:
            return p, count, BAD, 0
        count += 1
        p = end


@njit(cache=True, nogil=True)
def unescape(b: Any, at: Any, size: Any, kind: Any) -> None:
    """Undoes the escapes of cells in the buffer itself; nobody looks for cells there any more."""
    for i in range(len(at)):
        if kind[i] != ESCAPED:
            continue
        q, end = at[i], at[i] + size[i]
        w = q
        while q < end:
            c = b[q]
            if c == 92 and q + 1 < end:
                q += 1
                c = b[q]
                if c == 98:
                    c = np.uint8(8)
                elif c == 102:
                    c = np.uint8(12)
                elif c == 110:
                    c = np.uint8(10)
                elif c == 114:
                    c = np.uint8(13)
                elif c == 116:
                    c = np.uint8(9)
                elif c == 118:
                    c = np.uint8(11)
            b[w] = c
            w += 1
            q += 1
        size[i], kind[i] = w - at[i], TEXT
