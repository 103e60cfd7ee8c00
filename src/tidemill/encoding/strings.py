"""Kernels that write strings: escaped, base64, or copied. Eight bytes at a time while nothing needs care."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.encoding.memory import load_byte, load_u64, store_u8, store_u16, store_u64

_HIGH = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)
_SPACES = np.uint64(0x2020202020202020)
_QUOTES = np.uint64(0x2222222222222222)
_SLASHES = np.uint64(0x5C5C5C5C5C5C5C5C)
_0 = np.uint64(0)
_QUOTE, _SLASH = 34, 92

# For a byte: 0 as it stands, otherwise what follows the backslash; "u" asks for four hexadecimal digits.
_ESCAPE = np.zeros(256, np.uint8)
_ESCAPE[:32] = ord("u")
for _char, _code in (('"', '"'), ("\\", "\\"), ("\b", "b"), ("\f", "f"), ("\n", "n"), ("\r", "r"), ("\t", "t")):
    _ESCAPE[ord(_char)] = ord(_code)
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


@njit(cache=True, nogil=True)
def _tail(source: Any, end: Any) -> Any:
    """The last bytes, one to seven, of eight or more: nothing beyond `end` is read."""
    return load_u64(end - 8) >> np.uint64(8 * (source + 8 - end))


@njit(cache=True, nogil=True)
def copy(p: Any, source: Any, n: Any) -> Any:
    """Exactly `n` bytes are read; up to seven more than `n` may be written."""
    end = source + n
    if n >= 8:
        while end - source >= 8:
            store_u64(p, load_u64(source))
            p += 8
            source += 8
        if source < end:
            store_u64(p, _tail(source, end))
        return p + (end - source)
    while source < end:
        store_u8(p, load_byte(source))
        p += 1
        source += 1
    return p


@njit(cache=True, nogil=True)
def copy_padded(p: Any, source: Any, n: Any) -> Any:
    """Like `copy` for memory of ours, which may be read up to seven bytes too far."""
    for at in range(0, n, 8):
        store_u64(p + at, load_u64(source + at))
    return p + n


@njit(cache=True, nogil=True)
def _needs_care(w: Any) -> Any:
    """Whether one of the eight bytes may be a control character, a quote or a backslash; never misses one."""
    quotes, slashes = w ^ _QUOTES, w ^ _SLASHES
    return (((w - _SPACES) & ~w) | ((quotes - _ONES) & ~quotes) | ((slashes - _ONES) & ~slashes)) & _HIGH != _0


@njit(cache=True, nogil=True)
def escaped_size(source: Any, n: Any) -> Any:
    size = n
    for at in range(source, source + n):
        code = _ESCAPE[load_byte(at)]
        if code:
            size += 5 if code == 117 else 1
    return size


@njit(cache=True, nogil=True)
def put_string(p: Any, source: Any, n: Any) -> Any:
    """A JSON string. UTF-8 beyond ASCII passes through; only what JSON forbids is escaped."""
    store_u8(p, _QUOTE)
    p += 1
    end = source + n
    while source < end:
        careful = min(end, source + 8)
        if n >= 8:
            left = careful - source
            w = load_u64(source) if left == 8 else _tail(source, end)
            # What is missing of eight bytes are zeros, which would need care.
            if not _needs_care(w if left == 8 else w | _SPACES << np.uint64(8 * left)):
                store_u64(p, w)
                p += left
                source += left
                continue
        while source < careful:
            byte = load_byte(source)
            code = _ESCAPE[byte]
            if code == 0:
                store_u8(p, byte)
                p += 1
            else:
                store_u8(p, _SLASH)
                store_u8(p + 1, code)
                p += 2
                if code == 117:
                    store_u16(p, 0x3030)
                    store_u8(p + 2, _HEX[byte >> 4])
                    store_u8(p + 3, _HEX[byte & 15])
                    p += 4
            source += 1
    store_u8(p, _QUOTE)
    return p + 1


@njit(cache=True, nogil=True)
def put_json(p: Any, source: Any, n: Any) -> Any:
    """Text that is JSON already. Control characters can only stand between its tokens, where a space means the same
    and keeps the document on one line."""
    end = source + n
    while end - source >= 8:
        w = load_u64(source)
        if ((w - _SPACES) & ~w) & _HIGH != _0:
            for at in range(8):
                store_u8(p + at, max(load_byte(source + at), 32))
        else:
            store_u64(p, w)
        p += 8
        source += 8
    while source < end:
        store_u8(p, max(load_byte(source), 32))
        p += 1
        source += 1
    return p


@njit(cache=True, nogil=True)
def put_base64(p: Any, source: Any, n: Any) -> Any:
    store_u8(p, _QUOTE)
    p += 1
    end = source + n
    while source < end:
        left = end - source
        triple = load_byte(source) << 16
        if left > 1:
            triple |= load_byte(source + 1) << 8
        if left > 2:
            triple |= load_byte(source + 2)
        store_u8(p, _BASE64[triple >> 18])
        store_u8(p + 1, _BASE64[(triple >> 12) & 63])
        store_u8(p + 2, _BASE64[(triple >> 6) & 63] if left > 1 else 61)
        store_u8(p + 3, _BASE64[triple & 63] if left > 2 else 61)
        p += 4
        source += 3
    store_u8(p, _QUOTE)
    return p + 1
