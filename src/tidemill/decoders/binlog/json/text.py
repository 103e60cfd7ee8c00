"""The kernel that writes MySQL's binary JSON as text, a column at a time. `json_documents` calls it.

A document that has decimals, dates or opaque bytes, or that is not well formed, is left to `json_value`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders.binlog.cells import VALUE
from tidemill.decoders.binlog.wire import le64
from tidemill.encoding.numbers import _shortest

_DEPTH = 100
_ROOM = 48  # bytes that any scalar but a string fits into
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_ESCAPES = np.zeros(256, np.uint8)  # 0: as it is, 1: \u00xx, else the letter after the backslash
_ESCAPES[:32] = 1
for _raw, _escape in zip(b'"\\\b\f\n\r\t', b'"\\bfnrt', strict=True):
    _ESCAPES[_raw] = _escape
_LITERALS = np.frombuffer(b"null true false", np.uint8)
_WORD_AT = np.array([0, 5, 10, 15], np.int64)
_10, _0 = np.uint64(10), np.uint64(0)
_FRACTION = np.uint64((1 << 52) - 1)


@njit(cache=True, nogil=True, inline="always")
def _le(b: Any, p: Any, width: Any) -> Any:
    v = np.int64(0)
    for k in range(width):
        v |= np.int64(b[p + k]) << (8 * k)
    return v


@njit(cache=True, nogil=True)
def _put_digits(out: Any, o: Any, v: Any) -> Any:
    scratch = np.empty(20, np.uint8)
    n = 0
    while True:
        scratch[n] = np.uint8(np.uint64(48) + v % _10)
        v //= _10
        n += 1
        if v == _0:
            break
    for k in range(n):
        out[o + k] = scratch[n - 1 - k]
    return o + n


@njit(cache=True, nogil=True)
def _put_integer(out: Any, o: Any, v: Any) -> Any:
    if v < 0:
        out[o] = 45
        return _put_digits(out, o + 1, _0 - np.uint64(v))
    return _put_digits(out, o, np.uint64(v))


@njit(cache=True, nogil=True)
def _put_double(out: Any, o: Any, bits: Any) -> Any:
    """As `json_value.double_text`; -1 for what is no number."""
    exponent = np.int64(bits >> np.uint64(52)) & 0x7FF
    fraction = bits & _FRACTION
    if exponent == 0x7FF:
        return np.int64(-1)
    if bits >> np.uint64(63):
        out[o] = 45
        o += 1
    v, k = _0, np.int64(0)
    if exponent != 0:
        v, k = _shortest(fraction | np.uint64(1 << 52), exponent - 1075, fraction == _0 and exponent > 1)
    elif fraction != _0:
        v, k = _shortest(fraction, np.int64(-1074), False)
    while v != _0 and v % _10 == _0:
        v //= _10
        k += 1
    scratch = np.empty(20, np.uint8)
    n = _put_digits(scratch, 0, v)
    point = n + k if v != _0 else np.int64(1)
    if -14 <= point <= 15 or 0 < point < n:
        if point <= 0:
            out[o], out[o + 1] = 48, 46
            o += 2
            for _j in range(-point):
                out[o] = 48
                o += 1
        for j in range(n):
            if j == point and point > 0:
                out[o] = 46
                o += 1
            out[o] = scratch[j]
            o += 1
        if point >= n:
            for _j in range(point - n):
                out[o] = 48
                o += 1
            out[o], out[o + 1] = 46, 48
            o += 2
        return o
    out[o] = scratch[0]
    o += 1
    if n > 1:
        out[o] = 46
        o += 1
        for j in range(1, n):
            out[o] = scratch[j]
            o += 1
    out[o] = 101
    return _put_integer(out, o + 1, point - 1)


@njit(cache=True, nogil=True)
def _put_string(b: Any, p: Any, size: Any, out: Any, o: Any) -> Any:
    """With its quotes; -1 if there is no room."""
    cap = len(out) - _ROOM
    out[o] = 34
    o += 1
    for k in range(size):
        if o > cap:
            return np.int64(-1)
        c = b[p + k]
        e = _ESCAPES[c]
        if e == 0:
            out[o] = c
            o += 1
        elif e == 1:
            out[o], out[o + 1], out[o + 2], out[o + 3] = 92, 117, 48, 48
            out[o + 4], out[o + 5] = _HEX[c >> 4], _HEX[c & 15]
            o += 6
        else:
            out[o], out[o + 1] = 92, e
            o += 2
    out[o] = 34
    return o + 1


@njit(cache=True, nogil=True)
def strings(b: Any, at: Any, size: Any, kind: Any, doubles: Any, offsets: Any, out: Any, slow: Any) -> Any:
    """Answers how many rows are `slow`: left to Python, with no bytes here. `doubles`: whether to write those."""
    starts, kinds, counts, done = (np.empty(_DEPTH, np.int64), np.empty(_DEPTH, np.int64), np.empty(_DEPTH, np.int64),
                                   np.empty(_DEPTH, np.int64))  # fmt: skip
    cap = len(out) - _ROOM
    left = 0
    o = np.int64(0)
    for i in range(len(at)):
        offsets[i] = o
        if kind[i] != VALUE:
            continue
        began = o
        base = np.int64(at[i])
        end = base + np.int64(size[i])
        budget = np.int64(size[i])  # of values: more than bytes means that offsets run in a circle
        ok = size[i] > 0
        t = np.int64(b[base]) if ok else np.int64(4)
        p = base + 1
        depth = 0
        pending = True
        while ok:
            if o > cap:
                ok = False
            elif pending:
                pending = False
                budget -= 1
                if budget < 0 or p >= end:
                    ok = False
                elif t <= 3:
                    width = 4 if t & 1 else 2
                    if depth == _DEPTH or p + 2 * width > end:
                        ok = False
                    else:
                        count, total = _le(b, p, width), _le(b, p + width, width)
                        entries = (1 + width) * count + ((width + 2) * count if t < 2 else 0)
                        if p + total > end or 2 * width + entries > total:
                            ok = False
                        else:
                            starts[depth], kinds[depth], counts[depth], done[depth] = p, t, count, 0
                            depth += 1
                            out[o] = 123 if t < 2 else 91
                            o += 1
                elif t == 4:
                    word = b[p]
                    if word > 2:
                        ok = False
                    else:
                        for k in range(_WORD_AT[word], _WORD_AT[word + 1] - (1 if word < 2 else 0)):
                            out[o] = _LITERALS[k]
                            o += 1
                elif t <= 10:
                    width = 2 if t <= 6 else (4 if t <= 8 else 8)
                    if p + width > end:
                        ok = False
                    elif t == 10:
                        o = _put_digits(out, o, np.uint64(le64(b, p)))
                    elif t == 9:
                        o = _put_integer(out, o, le64(b, p))
                    else:
                        v = _le(b, p, width)
                        if t & 1 and v >> (8 * width - 1):
                            v -= np.int64(1) << (8 * width)
                        o = _put_integer(out, o, v)
                elif t == 11 and doubles and p + 8 <= end:
                    o = _put_double(out, o, np.uint64(le64(b, p)))
                    ok = o >= 0
                elif t == 12:
                    length = np.int64(0)
                    more = True
                    for k in range(5):
                        if more and p < end:
                            length |= np.int64(b[p] & 0x7F) << (7 * k)
                            more = b[p] >> 7 == 1
                            p += 1
                    if more or p + length > end:
                        ok = False
                    else:
                        o = _put_string(b, p, length, out, o)
                        ok = o >= 0
                else:
                    ok = False
            elif depth == 0:
                break
            else:
                d = depth - 1
                start, width = starts[d], 4 if kinds[d] & 1 else 2
                is_object = kinds[d] < 2
                n = done[d]
                if n == counts[d]:
                    out[o] = 125 if is_object else 93
                    o += 1
                    depth -= 1
                    continue
                if n:
                    out[o], out[o + 1] = 44, 32
                    o += 2
                entry = start + 2 * width
                if is_object:
                    name = entry + (width + 2) * n
                    where, length = start + _le(b, name, width), _le(b, name + width, 2)
                    if where + length > end:
                        ok = False
                    else:
                        o = _put_string(b, where, length, out, o)
                        ok = o >= 0
                        if ok:
                            out[o], out[o + 1] = 58, 32
                            o += 2
                    entry += (width + 2) * counts[d]
                entry += (1 + width) * n
                done[d] = n + 1
                t = np.int64(b[entry])
                p = entry + 1
                # Small values stand in the entry itself.
                if not (4 <= t <= 6 or (width == 4 and 7 <= t <= 8)):
                    p = start + _le(b, entry + 1, width)
                pending = True
        if not ok:
            slow[i] = True
            left += 1
            o = began
    offsets[len(at)] = o
    return left
