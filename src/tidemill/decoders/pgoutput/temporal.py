"""Dates and times as PostgreSQL prints them (ISO, UTC) into days and microseconds. Cells as in `cells`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.calendar import MICROS_PER_DAY, days, micros
from tidemill.decoders.pgoutput.cells import TEXT

_NO_DAY = np.int64(1) << 31  # what date32 cannot hold


@njit(cache=True, nogil=True, inline="always")
def _number(b: Any, p: Any, e: Any) -> Any:
    """(value, next byte) of the digits at p; value -1 if there are none or too many."""
    v = np.int64(0)
    q = p
    while q < e and 48 <= b[q] <= 57:
        v = v * 10 + (np.int64(b[q]) - 48)
        q += 1
        if q - p > 9:
            return np.int64(-1), q
    if q == p:
        v = np.int64(-1)
    return v, q


@njit(cache=True, nogil=True)
def _date_part(b: Any, p: Any, e: Any) -> Any:
    """(ok, year, month, day, next byte)."""
    y, q = _number(b, p, e)
    if y < 1 or q >= e or b[q] != 45:
        return False, y, y, y, q
    m, q = _number(b, q + 1, e)
    if m < 1 or m > 12 or q >= e or b[q] != 45:
        return False, y, m, m, q
    d, q = _number(b, q + 1, e)
    return 1 <= d <= 31, y, m, d, q


@njit(cache=True, nogil=True, inline="always")
def _fraction(b: Any, q: Any, e: Any) -> Any:
    """(microseconds, next byte) of `.123456`, 0 if there is none; microseconds -1 if that is no fraction."""
    if q >= e or b[q] != 46:
        return np.int64(0), q
    f, r = _number(b, q + 1, e)
    if f < 0 or r - q - 1 > 6:
        return np.int64(-1), q
    for _k in range(6 - (r - q - 1)):
        f *= 10
    return f, r


@njit(cache=True, nogil=True)
def _time_part(b: Any, p: Any, e: Any) -> Any:
    """(microseconds, next byte); microseconds -1 if it is no time of day."""
    h, q = _number(b, p, e)
    if h < 0 or h > 24 or q >= e or b[q] != 58:
        return np.int64(-1), q
    m, q = _number(b, q + 1, e)
    if m < 0 or m > 59 or q >= e or b[q] != 58:
        return np.int64(-1), q
    s, q = _number(b, q + 1, e)
    if s < 0 or s > 60:
        return np.int64(-1), q
    f, q = _fraction(b, q, e)
    return (micros(0, h, m, s, f) if f >= 0 else np.int64(-1)), q


@njit(cache=True, nogil=True, inline="always")
def _pair(b: Any, p: Any) -> Any:
    """Two digits; far below 0 if one of them is none."""
    tens, ones = np.int64(b[p]) - 48, np.int64(b[p + 1]) - 48
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else np.int64(-100_000)


@njit(cache=True, nogil=True, inline="always")
def _usual_timestamp(b: Any, p: Any, e: Any) -> Any:
    """(microseconds since 1970, next byte) of `2024-02-29 12:34:56.5`, as years of four digits are printed; -1 if it is
    not that, or is before 1970, and has to be looked at in detail."""
    if e - p < 19 or b[p + 4] != 45 or b[p + 7] != 45 or b[p + 10] != 32 or b[p + 13] != 58 or b[p + 16] != 58:
        return np.int64(-1), p
    y, m, d = _pair(b, p) * 100 + _pair(b, p + 2), _pair(b, p + 5), _pair(b, p + 8)
    hour, minute, second = _pair(b, p + 11), _pair(b, p + 14), _pair(b, p + 17)
    usual = y >= 1970 and 1 <= m <= 12 and 1 <= d <= 31 and 0 <= hour <= 24 and 0 <= minute <= 59 and 0 <= second <= 60
    f, q = _fraction(b, p + 19, e)
    if not usual or f < 0:
        return np.int64(-1), p
    return micros(days(y, m, d), hour, minute, second, f), q


@njit(cache=True, nogil=True, inline="always")
def _is_bc(b: Any, p: Any, e: Any) -> Any:
    return e - p == 3 and b[p] == 32 and b[p + 1] == 66 and b[p + 2] == 67


@njit(cache=True, nogil=True)
def dates(b: Any, at: Any, size: Any, kind: Any, out: Any, bad: Any) -> Any:
    """`2024-02-29`, `0044-03-15 BC`, five to seven digit years. `infinity` is bad: date32 has no such day."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != TEXT:
            continue
        e = at[i] + size[i]
        ok, y, m, d, q = _date_part(b, at[i], e)
        if ok and _is_bc(b, q, e):
            y, q = 1 - y, e
        day = days(y, m, d) if ok and q == e else _NO_DAY
        if -_NO_DAY < day < _NO_DAY:
            out[i] = day
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def times(b: Any, at: Any, size: Any, kind: Any, out: Any, bad: Any) -> Any:
    """`24:00:00` is bad: Arrow's time of day ends before it."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != TEXT:
            continue
        v, q = _time_part(b, at[i], at[i] + size[i])
        if v < 0 or v >= MICROS_PER_DAY or q != at[i] + size[i]:
            bad[i] = True
            wrong += 1
        else:
            out[i] = v
    return wrong


@njit(cache=True, nogil=True)
def timestamps(b: Any, at: Any, size: Any, kind: Any, zoned: Any, out: Any, bad: Any) -> Any:
    """ISO text in UTC (`+00` when zoned). Bad: infinities, and what 64 bits of microseconds since 1970 cannot reach."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != TEXT:
            continue
        e = at[i] + size[i]
        v, q = _usual_timestamp(b, at[i], e)
        if v >= 0 and (e == q + 3 and b[q] == 43 and b[q + 1] == 48 and b[q + 2] == 48 if zoned else e == q):
            out[i] = v
            continue
        ok, y, m, d, q = _date_part(b, at[i], e)
        v = np.int64(-1)
        if ok and q < e and b[q] == 32:
            v, q = _time_part(b, q + 1, e)
        if v < 0:
            ok = False
        if ok and zoned:
            ok = e - q >= 3 and b[q] == 43 and b[q + 1] == 48 and b[q + 2] == 48
            q += 3
        if ok and _is_bc(b, q, e):
            y, q = 1 - y, e
        if ok and q == e:
            day = days(y, m, d)
            ok = -106_751_990 < day < 106_751_990
            out[i] = day * MICROS_PER_DAY + v if ok else 0
        else:
            ok = False
        if not ok:
            bad[i] = True
            wrong += 1
    return wrong
