"""Kernels that write numbers, dates and times as text: each takes the address to write at and returns the next one.

Signed and unsigned 64-bit values must never meet in one expression: Numba would fall back to floating point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.encoding.memory import (
    load_byte,
    load_i64,
    load_u32,
    load_u64,
    multiply_high,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
)

# "00" to "99" as little-endian pairs: two digits per division.
_PAIRS = np.array([(48 + i // 10) | (48 + i % 10) << 8 for i in range(100)], np.uint16)
_POW10 = np.array([10**i for i in range(20)], np.uint64)
_0, _1, _2, _4, _10, _40, _100 = (np.uint64(n) for n in (0, 1, 2, 4, 10, 40, 100))
_BILLION, _32 = np.uint64(10**9), np.uint64(32)
_DOT, _MINUS, _ZERO, _QUOTE = 46, 45, 48, 34

NULL = np.uint64(int.from_bytes(b"null", "little"))
_NAN = np.uint64(int.from_bytes(b'"NaN"', "little"))
_INFINITY = np.uint64(int.from_bytes(b"Infinity", "little"))


@njit(cache=True, nogil=True, error_model="numpy")
def digits(v: Any) -> Any:
    n = 1
    while n < 20 and v >= _POW10[n]:
        n += 1
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def put_fixed(p: Any, v: Any, n: Any) -> Any:
    """`v` in exactly `n` digits, zeros in front."""
    at = p + n
    while at - p >= 2:
        at -= 2
        store_u16(at, _PAIRS[v % _100])
        v //= _100
    if at > p:
        store_u8(p, _ZERO + v % _10)
    return p + n


@njit(cache=True, nogil=True, error_model="numpy")
def put_unsigned(p: Any, v: Any) -> Any:
    return put_fixed(p, v, digits(v))


@njit(cache=True, nogil=True, error_model="numpy")
def put_signed(p: Any, v: Any) -> Any:
    if v < 0:
        store_u8(p, _MINUS)
        return put_unsigned(p + 1, _0 - np.uint64(v))  # wraps to the magnitude, also for the least value
    return put_unsigned(p, np.uint64(v))


@njit(cache=True, nogil=True, error_model="numpy")
def put_decimal(p: Any, address: Any, words: Any, scale: Any, scratch: Any) -> Any:
    """A decimal of `words` 64-bit words as a quoted plain number: every digit of the scale, never an exponent."""
    store_u8(p, _QUOTE)
    p += 1
    low = load_i64(address)
    sign = low >> 63
    small = 0 <= scale <= 18
    for word in range(1, words):
        small = small and load_i64(address + 8 * word) == sign
    if not small:
        return _put_wide_decimal(p, address, words, scale, scratch)
    v = np.uint64(low)
    if low < 0:
        store_u8(p, _MINUS)
        p += 1
        v = _0 - v
    unit = _POW10[scale]
    p = put_unsigned(p, v // unit)
    if scale > 0:
        store_u8(p, _DOT)
        p = put_fixed(p + 1, v % unit, scale)
    store_u8(p, _QUOTE)
    return p + 1


@njit(cache=True, nogil=True, error_model="numpy")
def _put_wide_decimal(p: Any, address: Any, words: Any, scale: Any, scratch: Any) -> Any:
    """Schoolbook division by 10**9; `scratch` holds the magnitude (32 bytes), then the digits, written backwards."""
    negative = load_i64(address + 8 * (words - 1)) < 0
    carry = _1
    for word in range(words):
        v = load_u64(address + 8 * word)
        if negative:
            v = ~v + carry
            carry = _1 if carry != _0 and v == _0 else _0
        store_u64(scratch + 8 * word, v)
    if negative:
        store_u8(p, _MINUS)
        p += 1
    end = scratch + 256
    at = end
    left = True
    while left:
        left = False
        rest = _0
        for half in range(2 * words - 1, -1, -1):
            v = (rest << _32) | load_u32(scratch + 4 * half)
            rest = v % _BILLION
            v //= _BILLION
            store_u32(scratch + 4 * half, v)
            left = left or v != _0
        at -= 9
        put_fixed(at, rest, 9)
    # At least one digit before the point, exactly `scale` after it.
    while at < end and load_byte(at) == _ZERO:
        at += 1
    while end - at <= scale or at == end:
        at -= 1
        store_u8(at, _ZERO)
    point = end - max(scale, 0)
    while at < end:
        if at == point:
            store_u8(p, _DOT)
            p += 1
        store_u8(p, load_byte(at))
        p += 1
        at += 1
    for _ in range(-scale):
        store_u8(p, _ZERO)
        p += 1
    store_u8(p, _QUOTE)
    return p + 1


def _powers_of_ten() -> Any:
    """10**k for k in -292..324 as 128-bit fractions, rounded up: what the shortest-digits algorithm multiplies by."""
    rows = []
    for k in range(-292, 325):
        shift = 127 - ((k * 1741647) >> 19)
        if k >= 0:
            g = 10**k << shift if shift >= 0 else -(-(10**k) >> -shift)
        else:
            g = -(-(1 << shift) // 10**-k)
        rows.append((g >> 64, g & (2**64 - 1)))
    return np.array(rows, np.uint64)


_G = _powers_of_ten()


@njit(cache=True, nogil=True, error_model="numpy")
def _round_to_odd(k: Any, v: Any) -> Any:
    high, low = _G[k, 0], _G[k, 1]
    middle = high * v
    total = middle + multiply_high(low, v)
    top = multiply_high(high, v)
    if total < middle:
        top += _1
    return top | _1 if total > _1 else top


@njit(cache=True, nogil=True, error_model="numpy")
def _shortest(c: Any, q: Any, narrow: Any) -> Any:
    """The shortest decimal (digits, exponent) that reads back as c * 2**q; Giulietti's Schubfach.

    `narrow` is set at powers of two, where the neighbour below is only half as far away.
    """
    odd = c & _1
    k = (q * 1262611 - (524031 if narrow else 0)) >> 22
    h = np.uint64(q + ((-k * 1741647) >> 19) + 1)
    value = _4 * c
    g = -k + 292
    lower = _round_to_odd(g, (value - (_1 if narrow else _2)) << h) + odd
    middle = _round_to_odd(g, value << h)
    upper = _round_to_odd(g, (value + _2) << h) - odd
    s = middle // _4
    if s >= _10:
        tens = s // _10
        below = lower <= _40 * tens
        above = _40 * tens + _40 <= upper
        if below != above:
            return tens + (_1 if above else _0), k + 1
    below = lower <= _4 * s
    above = _4 * s + _4 <= upper
    if below != above:
        return s + (_1 if above else _0), k
    half = _4 * s + _2
    return s + (_1 if middle > half or (middle == half and s & _1 != _0) else _0), k


@njit(cache=True, nogil=True, error_model="numpy")
def put_float(p: Any, bits: Any, fraction_bits: Any, exponent_bits: Any) -> Any:
    """Shortest digits that read back as the same float, always with a point or an exponent. NaN and the infinities,
    which JSON has no number for, are strings."""
    one, width = np.uint64(1), np.uint64(fraction_bits)
    fraction = bits & ((one << width) - one)
    mask = (1 << exponent_bits) - 1
    exponent = np.int64((bits >> width) & np.uint64(mask))
    negative = (bits >> np.uint64(fraction_bits + exponent_bits)) & one != _0
    if exponent == mask:
        if fraction != _0:
            store_u64(p, _NAN)
            return p + 5
        store_u8(p, _QUOTE)
        store_u8(p + 1, _MINUS)
        p += 2 if negative else 1
        store_u64(p, _INFINITY)
        store_u8(p + 8, _QUOTE)
        return p + 9
    if negative:
        store_u8(p, _MINUS)
        p += 1
    bias = mask // 2 + fraction_bits
    if exponent != 0:
        v, k = _shortest(fraction | (one << width), exponent - bias, fraction == _0 and exponent > 1)
    elif fraction != _0:
        v, k = _shortest(fraction, np.int64(1) - bias, False)
    else:
        v, k = _0, 0
    while v != _0 and v % _10 == _0:
        v //= _10
        k += 1
    n = digits(v)
    point = n + k  # how many digits stand before the point
    if -4 < point <= 16:
        if point <= 0:
            p = put_fixed(p, _0, 1)
            store_u8(p, _DOT)
            p = put_fixed(p + 1, _0, -point)
            return put_fixed(p, v, n)
        if k >= 0:
            p = put_fixed(p, v * _POW10[k], point)
            store_u8(p, _DOT)
            store_u8(p + 1, _ZERO)
            return p + 2
        p = put_fixed(p, v // _POW10[-k], point)
        store_u8(p, _DOT)
        return put_fixed(p + 1, v % _POW10[-k], -k)
    p = put_fixed(p, v // _POW10[n - 1], 1)
    if n > 1:
        store_u8(p, _DOT)
        p = put_fixed(p + 1, v % _POW10[n - 1], n - 1)
    store_u8(p, 101)  # e
    store_u8(p + 1, _MINUS if point < 1 else 43)
    return put_unsigned(p + 2, np.uint64(abs(point - 1)))


@njit(cache=True, nogil=True, error_model="numpy")
def put_date(p: Any, days: Any) -> Any:
    """ISO 8601 in the proleptic Gregorian calendar, astronomical years: 1 BC is 0000, 44 BC is -0043; a sign also
    from year 10000 on. Days are turned into a civil date by counting from 1 March of year 0."""
    z = days + 719468
    era = z // 146097
    day = z - era * 146097
    year_of_era = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year_of_era + year_of_era // 4 - year_of_era // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    month = month + 3 if month < 10 else month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if year < 0 or year > 9999:
        store_u8(p, _MINUS if year < 0 else 43)
        p += 1
    magnitude = np.uint64(abs(year))
    p = put_fixed(p, magnitude, max(4, digits(magnitude)))
    store_u8(p, _MINUS)
    store_u16(p + 1, _PAIRS[month])
    store_u8(p + 3, _MINUS)
    store_u16(p + 4, _PAIRS[day])
    return p + 6


@njit(cache=True, nogil=True, error_model="numpy")
def put_time(p: Any, microseconds: Any) -> Any:
    """Always with six digits after the second, so that texts of one column are of one length."""
    seconds = microseconds // 1_000_000
    store_u16(p, _PAIRS[seconds // 3600])
    store_u8(p + 2, 58)
    store_u16(p + 3, _PAIRS[seconds // 60 % 60])
    store_u8(p + 5, 58)
    store_u16(p + 6, _PAIRS[seconds % 60])
    store_u8(p + 8, _DOT)
    return put_fixed(p + 9, np.uint64(microseconds - seconds * 1_000_000), 6)


@njit(cache=True, nogil=True, error_model="numpy")
def put_timestamp(p: Any, microseconds: Any, zulu: Any) -> Any:
    days = microseconds // 86_400_000_000
    p = put_date(p, days)
    store_u8(p, 84)  # T
    p = put_time(p + 1, microseconds - days * 86_400_000_000)
    if zulu:
        store_u8(p, 90)  # Z
        p += 1
    return p
