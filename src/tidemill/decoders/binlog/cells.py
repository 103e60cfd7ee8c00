"""Kernels over cells: where each value stands in the buffer, and its bytes as the Arrow type's buffers.

A column's cells are three vectors: `at` (first byte), `size` (only of types whose size varies) and `kind`. The images
were walked by `scan`, so bounds hold; what a value's own bytes say is checked here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.eight_bytes import put, word
from tidemill.decoders.binlog.images import DOCUMENT, NEW_WHOLE, PARTIAL, cell, count_bits, has, skip_options

NULL, VALUE, UNSENT, ABSENT, DIFF = 0, 1, 2, 3, 4

_POW10 = np.array([10**i for i in range(10)], np.int64)
_LEFTOVER = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], np.int64)
_MASK = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


@njit(cache=True, nogil=True)
def cut(
    b: Any, n: Any, start: Any, fill: Any, event: Any, ev_own: Any, ev_fill: Any, ev_flags: Any, own_whole: Any,
    program: Any, first: Any, columns: Any, at: Any, size: Any, kind: Any,
) -> None:  # fmt: skip
    """Finds every cell of every image. `start` < 0: no image. `fill` >= 0: the old image, for what the new one omits.

    `ev_own` and `ev_fill` are the bitmaps of the two images by row event, `own_whole` the flag that says that the
    first one names every column.
    """
    for i in range(len(start)):
        if start[i] < 0:
            for j in range(columns):
                at[j, i], size[j, i], kind[j, i] = 0, 0, ABSENT
            continue
        flags = ev_flags[event[i]]
        if flags & own_whole and not (flags & PARTIAL and own_whole == NEW_WHOLE):
            nulls = np.int64(start[i])
            p = nulls + ((columns + 7) >> 3)
            for j in range(columns):
                if b[nulls + (j >> 3)] >> (j & 7) & 1:
                    at[j, i], size[j, i], kind[j, i] = 0, 0, NULL
                    continue
                kind[j, i] = VALUE
                step = program[first + j]
                if step >= 0:
                    at[j, i] = p
                    p += step
                else:
                    p, length = cell(b, p, n, step)
                    at[j, i], size[j, i] = p, length
                    p += length
            continue
        bits = np.int64(ev_own[event[i]])
        nulls = np.int64(start[i])
        partial = np.int64(-1)
        if flags & PARTIAL and own_whole == NEW_WHOLE:
            nulls, partial = skip_options(b, nulls, n, program, first, columns)
        p = nulls + ((count_bits(b, bits, columns) + 7) >> 3)
        old_bits, old = np.int64(0), np.int64(-1)
        f = np.int64(0)
        if fill[i] >= 0:
            old_bits, old = np.int64(ev_fill[event[i]]), np.int64(fill[i])
            f = old + ((count_bits(b, old_bits, columns) + 7) >> 3)
        here, there, document = 0, 0, 0
        for j in range(columns):
            step = program[first + j]
            at[j, i], size[j, i], kind[j, i] = 0, 0, UNSENT
            if has(b, bits, j):
                kind[j, i] = NULL
                if not has(b, nulls, here):
                    p, length = cell(b, p, n, step)
                    at[j, i], size[j, i], kind[j, i] = p, length, VALUE
                    p += length
                    if step == DOCUMENT and partial >= 0 and has(b, partial, document):
                        kind[j, i] = DIFF
                here += 1
            if step == DOCUMENT:
                document += 1
            if old >= 0 and has(b, old_bits, j):
                if has(b, old, there):
                    if kind[j, i] == UNSENT:
                        kind[j, i] = NULL
                else:
                    f, length = cell(b, f, n, step)
                    if kind[j, i] == UNSENT:
                        at[j, i], size[j, i], kind[j, i] = f, length, VALUE
                    f += length
                there += 1


@njit(cache=True, nogil=True)
def validity(kind: Any, bits: Any) -> Any:
    """Packs `kind == VALUE` into an Arrow validity bitmap; returns the number of nulls."""
    nulls = 0
    for i in range(len(kind)):
        if kind[i] == VALUE:
            bits[i >> 3] |= np.uint8(1 << (i & 7))
        else:
            nulls += 1
    return nulls


@njit(cache=True, nogil=True)
def little(b: Any, at: Any, kind: Any, width: Any, signed: Any, out: Any) -> None:
    """Little-endian numbers of 1, 2, 3, 4 or 8 bytes, as bits of the unsigned type that `out` holds."""
    for i in range(len(at)):
        v = np.uint64(0)
        if kind[i] == VALUE:
            p = at[i]
            if width == 8:
                v = (
                    np.uint64(b[p]) | np.uint64(b[p + 1]) << np.uint64(8) | np.uint64(b[p + 2]) << np.uint64(16)
                    | np.uint64(b[p + 3]) << np.uint64(24) | np.uint64(b[p + 4]) << np.uint64(32)
                    | np.uint64(b[p + 5]) << np.uint64(40) | np.uint64(b[p + 6]) << np.uint64(48)
                    | np.uint64(b[p + 7]) << np.uint64(56)
                )  # fmt: skip
            elif width == 4:
                v = (
                    np.uint64(b[p]) | np.uint64(b[p + 1]) << np.uint64(8) | np.uint64(b[p + 2]) << np.uint64(16)
                    | np.uint64(b[p + 3]) << np.uint64(24)
                )  # fmt: skip
            elif width == 1:
                v = np.uint64(b[p])
            elif width == 2:
                v = np.uint64(b[p]) | np.uint64(b[p + 1]) << np.uint64(8)
            else:
                v = np.uint64(b[p]) | np.uint64(b[p + 1]) << np.uint64(8) | np.uint64(b[p + 2]) << np.uint64(16)
                if signed and v >> np.uint64(23):
                    v |= np.uint64(0xFF000000)
        out[i] = v


@njit(cache=True, nogil=True)
def big(b: Any, at: Any, kind: Any, width: Any, out: Any) -> None:
    """Big-endian numbers of up to eight bytes: BIT."""
    for i in range(len(at)):
        v = np.uint64(0)
        if kind[i] == VALUE:
            for k in range(width):
                v = v << np.uint64(8) | np.uint64(b[at[i] + k])
        out[i] = v


@njit(cache=True, nogil=True)
def pad(b: Any, at: Any, size: Any, kind: Any, width: Any, out: Any) -> None:
    """Values of a fixed width whose trailing zero bytes were not sent (BINARY(n) is padded with them)."""
    for i in range(len(at)):
        if kind[i] != VALUE:
            continue
        for k in range(width):
            out[i * width + k] = b[at[i] + k] if k < size[i] else np.uint8(0)


@njit(cache=True, nogil=True)
def ascii_only(b: Any, at: Any, size: Any) -> Any:
    seen = np.uint8(0)
    for i in range(len(at)):
        for k in range(size[i]):
            seen |= b[at[i] + k]
    return seen < 128


@njit(cache=True, nogil=True)
def transcode(b: Any, at: Any, size: Any, kind: Any, lengths: Any, utf8: Any, offsets: Any, out: Any, bad: Any) -> Any:
    """Text of a one-byte character set to UTF-8. Bad: bytes that stand for no character (length 0)."""
    wrong = 0
    o = 0
    for i in range(len(at)):
        offsets[i] = o
        began = o
        for k in range(size[i]):
            c = b[at[i] + k]
            n = lengths[c]
            if n == 0:
                bad[i] = True
                wrong += 1
                o = began
                break
            for m in range(n):
                out[o] = utf8[c, m]
                o += 1
    offsets[len(at)] = o
    return wrong


@njit(cache=True, nogil=True, inline="always")
def _group(b: Any, p: Any, size: Any, first: Any, flip: Any) -> Any:
    """A big-endian group of digits; the sign bit of a value's first byte is turned around."""
    v = np.int64(0)
    for k in range(size):
        c = np.int64(b[p + k])
        if first and k == 0:
            c ^= 0x80
        v = v << 8 | (c ^ flip)
    return v


@njit(cache=True, nogil=True)
def decimals(b: Any, at: Any, kind: Any, precision: Any, scale: Any, out: Any, bad: Any) -> Any:
    """DECIMAL's groups of nine digits (decimal2bin of the server), up to 18 digits, into two's-complement words."""
    whole, rest = (precision - scale) // 9, (precision - scale) % 9
    parts, tail = scale // 9, scale % 9
    wrong = 0
    for i in range(len(at)):
        out[i, 0], out[i, 1] = 0, 0
        if kind[i] != VALUE:
            continue
        p = np.int64(at[i])
        flip = np.int64(0) if b[p] & 0x80 else np.int64(0xFF)
        first = True
        ok = True
        v = np.int64(0)
        if rest:
            v = _group(b, p, _LEFTOVER[rest], first, flip)
            ok = v < _POW10[rest]
            p += _LEFTOVER[rest]
            first = False
        for _k in range(whole + parts):
            g = _group(b, p, 4, first, flip)
            ok = ok and g < 1_000_000_000
            v = v * 1_000_000_000 + g
            p += 4
            first = False
        if tail:
            g = _group(b, p, _LEFTOVER[tail], first, flip)
            ok = ok and g < _POW10[tail]
            v = v * _POW10[tail] + g
        if not ok:
            bad[i] = True
            wrong += 1
            continue
        if flip:
            v = -v
        out[i, 0] = v
        out[i, 1] = v >> 63
    return wrong


@njit(cache=True, nogil=True)
def wide_decimals(b: Any, at: Any, kind: Any, precision: Any, scale: Any, out: Any, bad: Any) -> Any:
    """As `decimals`, of any precision; `out` has 32-bit words, four or eight a value."""
    words = out.shape[1]
    groups = np.zeros(10, np.int64)
    digits = np.zeros(10, np.int64)
    wrong = 0
    for i in range(len(at)):
        for k in range(words):
            out[i, k] = 0
        if kind[i] != VALUE:
            continue
        p = np.int64(at[i])
        flip = np.int64(0) if b[p] & 0x80 else np.int64(0xFF)
        first = True
        count = 0
        left = precision - scale
        head = left % 9
        for part in range(2):
            if part == 1:
                left = scale
            if part == 0 and head:
                groups[count], digits[count] = _group(b, p, _LEFTOVER[head], first, flip), head
                p += _LEFTOVER[head]
                left -= head
                count += 1
                first = False
            while left > 0:
                n = min(left, 9)
                groups[count], digits[count] = _group(b, p, _LEFTOVER[n], first, flip), n
                p += _LEFTOVER[n]
                left -= n
                count += 1
                first = False
        ok = True
        for g in range(count):
            ok = ok and groups[g] < _POW10[digits[g]]
            carry = np.uint64(groups[g])
            factor = np.uint64(_POW10[digits[g]])
            for k in range(words):
                product = np.uint64(out[i, k]) * factor + carry
                out[i, k] = product & _MASK
                carry = product >> _32
        if not ok:
            bad[i] = True
            wrong += 1
            for k in range(words):
                out[i, k] = 0
            continue
        if flip:
            carry = np.uint64(1)
            for k in range(words):
                product = (np.uint64(out[i, k]) ^ _MASK) + carry
                out[i, k] = product & _MASK
                carry = product >> _32
    return wrong


@njit(cache=True, nogil=True)
def positions(name: Any, number: Any, name_at: Any, names: Any, offsets: Any, out: Any) -> Any:
    """A name and a number each: `uuid:77`, `0-1-270`, `binlog.000003:1547`. `out` has 20 bytes a number more than the
    names take, and like `names` a word at its end."""
    o = np.uint64(0)
    scratch = np.empty(20, np.uint8)
    for i in range(len(name)):
        offsets[i] = o
        first, size = np.uint64(name_at[name[i]]), np.uint64(name_at[name[i] + 1] - name_at[name[i]])
        k = np.uint64(0)
        while k < size:
            put(out, o + k, word(names, first + k))
            k += np.uint64(8)
        o += size
        v = np.uint64(number[i])
        n = 0
        while True:
            scratch[n] = np.uint8(np.uint64(48) + v % np.uint64(10))
            v //= np.uint64(10)
            n += 1
            if v == np.uint64(0):
                break
        for j in range(n):
            out[o + np.uint64(j)] = scratch[n - 1 - j]
        o += np.uint64(n)
    offsets[len(name)] = o
    return o
