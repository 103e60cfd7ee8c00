"""MySQL's dates and times, packed bits, into days, microseconds, and text for TIME. Cells as in `cells`.

Bad is what no calendar has: zero and partial dates (`0000-00-00`, `2024-02-00`, any day of the year 0) and days that
their month lacks (ALLOW_INVALID_DATES). `date_text` and its like say how the server prints them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.calendar import days, micros
from tidemill.decoders.binlog.cells import VALUE
from tidemill.errors import DecodeError

_MONTH = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_SCALE = np.array([1_000_000, 10_000, 100, 1], np.int64)  # by bytes of the fraction: hundredths of a second, ...


@njit(cache=True, nogil=True, inline="always")
def exists(y: Any, m: Any, d: Any) -> Any:
    if y < 1 or m < 1 or m > 12 or d < 1:
        return False
    leap = m == 2 and y % 4 == 0 and (y % 100 != 0 or y % 400 == 0)
    return d <= _MONTH[m] + (1 if leap else 0)


@njit(cache=True, nogil=True, inline="always")
def _be(b: Any, p: Any, n: Any) -> Any:
    v = np.int64(0)
    for k in range(n):
        v = v << 8 | np.int64(b[p + k])
    return v


@njit(cache=True, nogil=True, inline="always")
def little_endian(b: Any, p: Any, n: Any) -> Any:
    v = np.int64(0)
    for k in range(n):
        v |= np.int64(b[p + k]) << (8 * k)
    return v


@njit(cache=True, nogil=True)
def dates(b: Any, at: Any, kind: Any, out: Any, bad: Any) -> Any:
    """DATE: day, month and year in 5, 4 and 15 bits."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != VALUE:
            continue
        v = little_endian(b, at[i], 3)
        y, m, d = v >> 9, v >> 5 & 15, v & 31
        if exists(y, m, d):
            out[i] = days(y, m, d)
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def datetimes(b: Any, at: Any, kind: Any, fraction: Any, out: Any, bad: Any) -> Any:
    """DATETIME since 5.6: big-endian, year times 13 plus month, day, hour, minute, second, and `fraction` bytes."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != VALUE:
            continue
        v = _be(b, at[i], 5) - 0x8000000000
        fractional = _be(b, at[i] + 5, fraction) * _SCALE[fraction] if fraction else np.int64(0)
        y, m, d = (v >> 22) // 13, (v >> 22) % 13, v >> 17 & 31
        hour, minute, second = v >> 12 & 31, v >> 6 & 63, v & 63
        if v >= 0 and exists(y, m, d) and hour < 24 and minute < 60 and second < 60 and fractional < 1_000_000:
            out[i] = micros(days(y, m, d), hour, minute, second, fractional)
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def old_datetimes(b: Any, at: Any, kind: Any, out: Any, bad: Any) -> Any:
    """DATETIME before 5.6: the decimal number YYYYMMDDhhmmss."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != VALUE:
            continue
        v = little_endian(b, at[i], 8)
        date, time = v // 1_000_000, v % 1_000_000
        y, m, d = date // 10_000, date // 100 % 100, date % 100
        hour, minute, second = time // 10_000, time // 100 % 100, time % 100
        if 0 <= v < 100_000_000_000_000 and exists(y, m, d) and hour < 24 and minute < 60 and second < 60:
            out[i] = micros(days(y, m, d), hour, minute, second, 0)
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def timestamps(b: Any, at: Any, kind: Any, fraction: Any, old: Any, out: Any, bad: Any) -> Any:
    """TIMESTAMP: seconds since 1970, UTC. Zero with no fraction is the zero date."""
    wrong = 0
    for i in range(len(at)):
        out[i] = 0
        if kind[i] != VALUE:
            continue
        v = little_endian(b, at[i], 4) if old else _be(b, at[i], 4)
        fractional = _be(b, at[i] + 4, fraction) * _SCALE[fraction] if fraction else np.int64(0)
        if (v or fractional) and fractional < 1_000_000:
            out[i] = v * 1_000_000 + fractional
        else:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True, inline="always")
def _two_digits(out: Any, o: Any, v: Any) -> Any:
    out[o], out[o + 1] = np.uint8(48 + v // 10), np.uint8(48 + v % 10)
    return o + 2


@njit(cache=True, nogil=True)
def print_time(out: Any, o: Any, negative: Any, hour: Any, minute: Any, second: Any, fraction: Any, digits: Any) -> Any:
    """At most 17 bytes from `o` on, with so many digits of the fraction; the next byte."""
    if negative:
        out[o] = 45
        o += 1
    if hour >= 100:
        out[o] = np.uint8(48 + hour // 100 % 10)
        o += 1
    o = _two_digits(out, o, hour % 100)
    out[o] = 58
    o = _two_digits(out, o + 1, minute % 100)
    out[o] = 58
    o = _two_digits(out, o + 1, second % 100)
    if digits:
        out[o] = 46
        o += 1
        unit = 100_000
        for _k in range(digits):
            out[o] = np.uint8(48 + fraction // unit % 10)
            o += 1
            unit //= 10
    return o


@njit(cache=True, nogil=True)
def times(b: Any, at: Any, kind: Any, digits: Any, old: Any, offsets: Any, out: Any) -> None:
    """TIME as the server prints it: `-838:59:59.000000`. `out` has 17 bytes a value."""
    fraction = (digits + 1) // 2
    o = 0
    for i in range(len(at)):
        offsets[i] = o
        if kind[i] != VALUE:
            continue
        fractional = np.int64(0)
        if old:
            v = little_endian(b, at[i], 3)
            if v & 0x800000:
                v -= 0x1000000
            negative = v < 0
            v = abs(v)
            hour, minute, second = v // 10_000, v // 100 % 100, v % 100
        else:
            # A negative value is the two's complement of the whole number, fraction included.
            v = _be(b, at[i], 3 + fraction) - (np.int64(0x800000) << (8 * fraction))
            negative = v < 0
            v = abs(v)
            fractional = (v & ((np.int64(1) << (8 * fraction)) - 1)) * _SCALE[fraction] if fraction else np.int64(0)
            v >>= 8 * fraction
            hour, minute, second = v >> 12 & 1023, v >> 6 & 63, v & 63
        o = print_time(out, o, negative, hour, minute, second, fractional, digits)
    offsets[len(at)] = o


def date_text(value: bytes) -> str:
    v = int.from_bytes(value, "little")
    return f"{v >> 9:04d}-{v >> 5 & 15:02d}-{v & 31:02d}"


def datetime_text(value: bytes, digits: int) -> str:
    v = int.from_bytes(value[:5], "big") & 0x7FFFFFFFFF
    month = v >> 22
    text = f"{month // 13:04d}-{month % 13:02d}-{v >> 17 & 31:02d} {v >> 12 & 31:02d}:{v >> 6 & 63:02d}:{v & 63:02d}"
    return text + _fraction(value[5:], digits)


def old_datetime_text(value: bytes) -> str:
    """Of a date that is not whole, or not in the calendar. Anything else is no such value: MariaDB's DATETIME(6) has as
    many bytes, and where the history does not know the column nothing tells the two apart."""
    v = f"{int.from_bytes(value, 'little'):014d}"
    month, day, hour, minute, second = (int(v[i : i + 2]) for i in range(4, 14, 2))
    if len(v) > 14 or month > 12 or day > 31 or hour > 23 or minute > 59 or second > 59:
        raise DecodeError("a DATETIME of the format from before MySQL 5.6 does not follow it")
    return f"{v[:4]}-{v[4:6]}-{v[6:8]} {v[8:10]}:{v[10:12]}:{v[12:]}"


def timestamp_text(value: bytes, digits: int) -> str:
    """Only of the zero date; every other TIMESTAMP is a point in time."""
    return "0000-00-00 00:00:00" + _fraction(value[4:], digits)


def _fraction(value: bytes, digits: int) -> str:
    if not digits:
        return ""
    micros = int.from_bytes(value, "big") * (1_000_000, 10_000, 100, 1)[len(value)]
    return "." + f"{micros:06d}"[:digits]
