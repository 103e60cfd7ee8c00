"""Kernels over cells: where each value stands in the buffer, and its bytes as the Arrow type's buffers.

A column's cells are three vectors: `at` (first byte), `size`, and `kind` (the tuple's own letter: `t` text,
`n` NULL, `u` not sent, 0 no tuple at all). Parsers set `bad` for text their type cannot hold; the caller keeps
such values as text (the block's `odd` column), so nothing is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.eight_bytes import number, word
from tidemill.decoders.pgoutput.scan import _be32

TEXT = 116
NULL = 110
UNSENT = 117
ABSENT = 0

_MIN_INT64 = np.iinfo(np.int64).min
_LAST_TENTH = -922_337_203_685_477_580  # below it, another digit overflows 64 bits


@njit(cache=True, nogil=True)
def cut(b: Any, start: Any, fill: Any, columns: Any, at: Any, size: Any, kind: Any) -> None:
    """Finds every cell of every tuple. `start` < 0: no tuple. `fill` >= 0: the old tuple, for what the new one omits.

    An omitted value is never NULL, so where the old tuple has NULL it is a mere key and does not know the value.
    The tuples were walked by `scan`, so bounds hold.
    """
    for i in range(len(start)):
        if start[i] < 0:
            for j in range(columns):
                at[j, i], size[j, i], kind[j, i] = 0, 0, ABSENT
            continue
        p = start[i] + 2
        f = fill[i] + 2 if fill[i] >= 0 else np.int64(-1)
        for j in range(columns):
            k = b[p]
            if k == 116:
                n = _be32(b, p + 1)
                at[j, i], size[j, i], kind[j, i] = p + 5, n, TEXT
                p += 5 + n
            else:
                at[j, i], size[j, i], kind[j, i] = p, 0, k
                p += 1
            if f >= 0:
                if b[f] == 116:
                    n = _be32(b, f + 1)
                    if k == 117:
                        at[j, i], size[j, i], kind[j, i] = f + 5, n, TEXT
                    f += 5 + n
                else:
                    f += 1


@njit(cache=True, nogil=True)
def validity(kind: Any, bits: Any) -> Any:
    """Packs `kind == TEXT` into an Arrow validity bitmap; returns the number of nulls."""
    nulls = 0
    for i in range(len(kind)):
        if kind[i] == TEXT:
            bits[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            nulls += 1
    return nulls


@njit(cache=True, nogil=True)
def _long_number(b: Any, p: Any, e: Any, negative: Any) -> Any:
    """(whether the digits from p to e are a number of 64 bits, that number)."""
    ok = p < e and e - p <= 19
    v = np.int64(0)
    while ok and p < e:
        d = np.int64(b[p]) - 48
        if d < 0 or d > 9 or v < _LAST_TENTH or (v == _LAST_TENTH and d > 8):
            ok = False
        else:
            v = v * 10 - d  # counted downwards: the lowest int64 has no positive twin
        p += 1
    if ok and not negative:
        ok = v != _MIN_INT64
        v = -v
    return ok, v


@njit(cache=True, nogil=True)
def integers(b: Any, at: Any, size: Any, kind: Any, low: Any, high: Any, out: Any, bad: Any) -> Any:
    wrong = 0
    for i in range(len(at)):
        if kind[i] != TEXT:
            out[i] = 0
            continue
        p, e = at[i], at[i] + size[i]
        negative = p < e and b[p] == 45
        if negative:
            p += 1
        if 0 < e - p <= 8 and p + 8 <= len(b):
            v = number(word(b, np.uint64(p)), np.uint64(e - p))
            ok = v >= 0
            if negative:
                v = -v
        else:
            ok, v = _long_number(b, p, e, negative)
        if ok and (v < low or v > high):
            ok = False
        out[i] = v if ok else 0
        if not ok:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True)
def booleans(b: Any, at: Any, size: Any, kind: Any, bits: Any, bad: Any) -> Any:
    wrong = 0
    for i in range(len(at)):
        if kind[i] != TEXT:
            continue
        c = b[at[i]] if size[i] == 1 else 0
        if c == 116:
            bits[i >> 3] |= np.uint8(1 << (i & 7))
        elif c != 102:
            bad[i] = True
            wrong += 1
    return wrong


@njit(cache=True, nogil=True, inline="always")
def _nibble(c: Any) -> Any:
    if 48 <= c <= 57:
        return np.int64(c) - 48
    if 97 <= c <= 102:
        return np.int64(c) - 87
    return np.int64(-1)


@njit(cache=True, nogil=True)
def hexes(b: Any, at: Any, size: Any, kind: Any, offsets: Any, out: Any, bad: Any) -> Any:
    """bytea in hex form: `\\x` and two digits a byte."""
    wrong = 0
    o = 0
    for i in range(len(at)):
        offsets[i] = o
        if kind[i] != TEXT:
            continue
        p, e = at[i], at[i] + size[i]
        ok = size[i] >= 2 and size[i] % 2 == 0 and b[p] == 92 and b[p + 1] == 120
        first = o
        p += 2
        while ok and p < e:
            hi, lo = _nibble(b[p]), _nibble(b[p + 1])
            ok = hi >= 0 and lo >= 0
            out[o] = np.uint8((hi << 4) | lo)
            o += 1
            p += 2
        if not ok:
            o = first
            bad[i] = True
            wrong += 1
    offsets[len(at)] = o
    return wrong


@njit(cache=True, nogil=True, inline="always")
def _is_null(b: Any, p: Any) -> Any:
    return b[p] == 78 and b[p + 1] == 85 and b[p + 2] == 76 and b[p + 3] == 76


@njit(cache=True, nogil=True)
def elements(b: Any, at: Any, size: Any, kind: Any, comma: Any, offsets: Any, bad: Any,
             text: Any, e_at: Any, e_size: Any, e_kind: Any) -> Any:  # fmt: skip
    """Splits one-dimensional array texts (`{1,NULL,"a \\"b\\""}`) into their elements, unescaped into `text`.

    Bad: more dimensions, explicit bounds, or text that is no array. Returns (bad values, elements, bytes of text).
    """
    wrong = 0
    n = 0
    o = 0
    for i in range(len(at)):
        offsets[i] = n
        if kind[i] != TEXT:
            continue
        p, e = at[i], at[i] + size[i]
        n0, o0 = n, o
        ok = size[i] >= 2 and b[p] == 123 and b[e - 1] == 125
        p += 1
        e -= 1
        while ok and p < e:
            begin = o
            quoted = b[p] == 34
            if quoted:
                p += 1
                while p < e and b[p] != 34:
                    if b[p] == 92:
                        p += 1
                    if p < e:
                        text[o] = b[p]
                        o += 1
                    p += 1
                ok = p < e
                p += 1
            else:
                while p < e and b[p] != comma:
                    if b[p] == 123 or b[p] == 34:
                        ok = False
                        break
                    if b[p] == 92:
                        p += 1
                    if p < e:
                        text[o] = b[p]
                        o += 1
                    p += 1
                ok = ok and o > begin
            e_at[n], e_size[n], e_kind[n] = begin, o - begin, TEXT
            if not quoted and o - begin == 4 and _is_null(text, begin):
                e_size[n], e_kind[n] = 0, NULL
                o = begin
            n += 1
            if ok and p < e:
                ok = b[p] == comma and p + 1 < e
                p += 1
        if not ok:
            n, o = n0, o0
            bad[i] = True
            wrong += 1
    offsets[len(at)] = n
    return wrong, n, o


@njit(cache=True, nogil=True)
def positions(lsn: Any, offsets: Any, out: Any) -> Any:
    """LSNs as PostgreSQL writes them: two hexadecimal halves with a slash. `out` has 17 bytes an LSN."""
    o = 0
    for i in range(len(lsn)):
        offsets[i] = o
        for half in range(2):
            v = (lsn[i] >> 32) & 0xFFFFFFFF if half == 0 else lsn[i] & 0xFFFFFFFF
            digits = 1
            while digits < 8 and v >> (4 * digits):
                digits += 1
            for k in range(digits):
                d = (v >> (4 * (digits - 1 - k))) & 15
                out[o] = np.uint8(48 + d if d < 10 else 55 + d)
                o += 1
            if half == 0:
                out[o] = 47
                o += 1
    offsets[len(lsn)] = o
    return o
