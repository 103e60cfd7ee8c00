"""Kernels that write numbers, dates and times as text: each takes the address to write at and returns the next one.

Signed and unsigned 64-bit values must never meet in one expression: Numba would fall back to floating point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.encoding.memory import (
    leading_zeros,
    load_byte,
    load_i64,
    load_u32,
    load_u64,
    multiply_high,
    store_u8,
    store_u16,
    store_u32,
    store_u64,
    trailing_zeros,
)

# "00" to "99" as little-endian pairs: two digits per division.
_PAIRS = np.array([(48 + i // 10) | (48 + i % 10) << 8 for i in range(100)], np.uint16)
_POW10 = np.array([10**i for i in range(20)], np.uint64)
_0, _1, _2, _4, _10, _40, _100 = (np.uint64(n) for n in (0, 1, 2, 4, 10, 40, 100))
_3, _8, _12, _16, _20, _32, _64 = (np.uint64(n) for n in (3, 8, 12, 16, 20, 32, 64))
_103, _1233, _10000, _10486 = (np.uint64(n) for n in (103, 1233, 10000, 10486))
_5, _9, _60, _153, _365, _1460, _36524, _146096 = (np.uint64(n) for n in (5, 9, 60, 153, 365, 1460, 36524, 146096))
_MILLION = np.uint64(10**6)
_EIGHT_DIGITS, _BILLION = np.uint64(10**8), np.uint64(10**9)
_HUNDREDS, _TENS = np.uint64(0x7F0000007F), np.uint64(0x000F000F000F000F)
_ZEROS, _LAST_DIGIT, _WHOLE_BYTES = np.uint64(0x3030303030303030), np.uint64(1 << 56), np.uint64(0x78)
_DOT, _MINUS, _ZERO, _QUOTE = 46, 45, 48, 34

NULL = np.uint64(int.from_bytes(b"null", "little"))
_NAN = np.uint64(int.from_bytes(b'"NaN"', "little"))
_INFINITY = np.uint64(int.from_bytes(b"Infinity", "little"))


@njit(cache=True, nogil=True, error_model="numpy")
def digits(v: Any) -> Any:
    """By the bits, of which 1233 / 4096 are digits: a loop would be guessed wrong where numbers of a column differ."""
    n = ((_64 - leading_zeros(v | _1)) * _1233) >> _12
    return np.int64(n) + (1 if v | _1 >= _POW10[n] else 0)


@njit(cache=True, nogil=True, error_model="numpy")
def _eight(v: Any) -> Any:
    """The eight digits of a number below 10**8, the first in the lowest byte. Halves, pairs and digits are each
    divided side by side in one word; the factors are 1 / 100 and 1 / 10, exact for so few digits."""
    high = v // _10000
    w = high | (v - high * _10000) << _32
    q = ((w * _10486) >> _20) & _HUNDREDS
    w = (w - q * _100) << _16 | q
    q = ((w * _103) >> _10) & _TENS
    return (w - q * _10) << _8 | q


@njit(cache=True, nogil=True, error_model="numpy")
def put_fixed(p: Any, v: Any, n: Any) -> Any:
    """`v`, below 10**n, in exactly `n` digits, zeros in front. Writes up to seven bytes more."""
    if n <= 8:
        if n > 0:
            store_u64(p, (_eight(v) | _ZEROS) >> np.uint64(64 - 8 * n))
    elif n <= 16:
        high = v // _EIGHT_DIGITS
        store_u64(p, (_eight(high) | _ZEROS) >> np.uint64(128 - 8 * n))
        store_u64(p + n - 8, _eight(v - high * _EIGHT_DIGITS) | _ZEROS)
    else:
        high = v // _EIGHT_DIGITS
        top = high // _EIGHT_DIGITS
        store_u64(p, (_eight(top) | _ZEROS) >> np.uint64(192 - 8 * n))
        store_u64(p + n - 16, _eight(high - top * _EIGHT_DIGITS) | _ZEROS)
        store_u64(p + n - 8, _eight(v - high * _EIGHT_DIGITS) | _ZEROS)
    return p + n


@njit(cache=True, nogil=True, error_model="numpy")
def put_unsigned(p: Any, v: Any) -> Any:
    """Writes up to seven bytes more."""
    if v < _EIGHT_DIGITS:
        w = _eight(v)
        # One digit is left of 0.
        zeros = trailing_zeros(w | _LAST_DIGIT) & _WHOLE_BYTES
        store_u64(p, (w | _ZEROS) >> zeros)
        return p + 8 - np.int64(zeros >> _3)
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
    day = np.uint64(z - era * 146097)  # unsigned, so that divisions by constants are multiplications
    year_of_era = (day - day // _1460 + day // _36524 - day // _146096) // _365
    day -= _365 * year_of_era + year_of_era // _4 - year_of_era // _100
    month = (_5 * day + _2) // _153
    day -= (_153 * month + _2) // _5 - _1
    month = month + _3 if month < _10 else month - _9
    year = np.int64(year_of_era) + era * 400 + (1 if month <= _2 else 0)
    if 0 <= year <= 9999:
        p = put_fixed(p, np.uint64(year), 4)
    else:
        store_u8(p, _MINUS if year < 0 else 43)
        magnitude = np.uint64(abs(year))
        p = put_fixed(p + 1, magnitude, max(4, digits(magnitude)))
    store_u8(p, _MINUS)
    store_u16(p + 1, _PAIRS[month])
    store_u8(p + 3, _MINUS)
    store_u16(p + 4, _PAIRS[day])
    return p + 6


@njit(cache=True, nogil=True, error_model="numpy")
def put_time(p: Any, microseconds: Any) -> Any:
    """Always with six digits after the second, so that texts of one column are of one length."""
    rest = np.uint64(microseconds)
    seconds = rest // _MILLION
    minutes = seconds // _60
    hours = minutes // _60
    store_u16(p, _PAIRS[hours])
    store_u8(p + 2, 58)
    store_u16(p + 3, _PAIRS[minutes - hours * _60])
    store_u8(p + 5, 58)
    store_u16(p + 6, _PAIRS[seconds - minutes * _60])
    store_u8(p + 8, _DOT)
    return put_fixed(p + 9, rest - seconds * _MILLION, 6)


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
