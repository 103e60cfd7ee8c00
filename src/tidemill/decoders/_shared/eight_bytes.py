"""Bytes eight at a time, for every decoder's kernels.

LLVM makes one load of `word` and one store of what `copy` writes, so a short text is copied in few instructions: 7 ns a
value of 20 bytes, where a loop over its bytes takes 33 ns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

ROOM = 8  # what `copy` may write after the last value

# Unsigned throughout: signed indexes are checked for being negative at every access.
_U = np.uint64
_HIGH = _U(0xF0F0F0F0F0F0F0F0)
_1, _2, _3, _4, _5, _6, _7, _8 = (_U(n) for n in range(1, 9))


@njit(cache=True, nogil=True, inline="always")
def word(b: Any, q: Any) -> Any:
    """Little-endian; `q` is unsigned."""
    return (
        _U(b[q]) | _U(b[q + _1]) << _8 | _U(b[q + _2]) << _U(16) | _U(b[q + _3]) << _U(24) | _U(b[q + _4]) << _U(32)
        | _U(b[q + _5]) << _U(40) | _U(b[q + _6]) << _U(48) | _U(b[q + _7]) << _U(56)
    )  # fmt: skip


@njit(cache=True, nogil=True, inline="always")
def put(out: Any, q: Any, w: Any) -> None:
    """Eight bytes; `q` is unsigned."""
    out[q], out[q + _1] = np.uint8(w & _U(255)), np.uint8(w >> _8 & _U(255))
    out[q + _2], out[q + _3] = np.uint8(w >> _U(16) & _U(255)), np.uint8(w >> _U(24) & _U(255))
    out[q + _4], out[q + _5] = np.uint8(w >> _U(32) & _U(255)), np.uint8(w >> _U(40) & _U(255))
    out[q + _6], out[q + _7] = np.uint8(w >> _U(48) & _U(255)), np.uint8(w >> _U(56))


@njit(cache=True, nogil=True)
def copy(b: Any, at: Any, size: Any, offsets: Any, out: Any) -> None:
    """The values one after the other, and their Arrow offsets. `out` has ROOM more bytes than they need."""
    o, end = _U(0), _U(len(b))
    for i in range(len(at)):
        offsets[i] = o
        s, n = _U(at[i]), _U(size[i])
        k = _U(0)
        if s + n + _8 <= end:
            while k < n:
                put(out, o + k, word(b, s + k))
                k += _8
        else:
            while k < n:
                out[o + k] = b[s + k]
                k += _1
        o += n
    offsets[len(at)] = o


@njit(cache=True, nogil=True, inline="always")
def number(w: Any, n: Any) -> Any:
    """The number that the first `n` bytes of the word print in decimal, 1 to 8 of them; -1 if they are not digits.
    Neighbours are joined, digits first, then pairs, then fours: three multiplications instead of a loop."""
    bits = _8 * n
    # Digits to the upper end, zeros before them. To shift a word by all of its bits is not defined.
    w = w << (_U(64) - bits) | (_U(0x30303030303030) >> (bits - _8))
    if w & _HIGH | ((w + _U(0x0606060606060606)) & _HIGH) >> _4 != _U(0x3333333333333333):
        return np.int64(-1)
    w = (w & _U(0x0F0F0F0F0F0F0F0F)) * _U(2561) >> _8
    w = (w & _U(0x00FF00FF00FF00FF)) * _U(6553601) >> _U(16)
    return np.int64((w & _U(0x0000FFFF0000FFFF)) * _U(42949672960001) >> _U(32))
