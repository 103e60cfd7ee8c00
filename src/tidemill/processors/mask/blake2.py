"""Keyed BLAKE2s (RFC 7693) over a column, without a Python object per value: `hashlib.blake2s` says the same."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

_IV = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
_SAMPLE = 1000
_DIGITS = np.frombuffer(b"0123456789abcdef", np.uint8)


class Blake2s:
    """`hashlib.blake2s(value, key=hashlib.blake2s(salt).digest(), digest_size=size).hexdigest()` of every value."""

    def __init__(self, salt: bytes, size: int) -> None:
        self._size = size
        # The key is a block of its own before every message: the state after it is the same for all values.
        key = np.zeros(64, np.uint8)
        key[:32] = np.frombuffer(hashlib.blake2s(salt).digest(), np.uint8)
        state = _IV.copy()
        state[0] ^= np.uint32(0x01010000 ^ (32 << 8) ^ size)
        self._empty = state.copy()
        _compress(self._empty, key.view(np.uint32), np.uint64(64), True)
        _compress(state, key.view(np.uint32), np.uint64(64), False)
        self._state = state

    def hexdigests(self, strings: pa.Array) -> pa.StringArray:
        """Null where the text is."""
        if _repeats(strings):
            distinct = strings.dictionary_encode()
            return self._each(distinct.dictionary).take(distinct.indices)
        return self._each(strings)

    def _each(self, strings: pa.Array) -> pa.StringArray:
        column = strings.cast(pa.large_binary())
        _, offsets, data = column.buffers()
        rows, width = len(column), 2 * self._size
        starts = np.frombuffer(offsets, np.int64)[column.offset : column.offset + rows + 1]
        content = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        out = np.empty(rows * width, np.uint8)
        _digest_all(starts, content, self._state, self._empty, self._size, _DIGITS, out)
        ends = np.arange(0, rows * width + 1, width)
        whole = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(ends.astype(np.int64)), pa.py_buffer(out))
        if column.null_count:
            whole = pc.if_else(column.is_valid(), whole, pa.scalar(None, pa.large_string()))
        return whole.cast(pa.string())


def _repeats(strings: pa.Array) -> bool:
    """Whether it pays to look values up: a look-up costs a third of a hash."""
    head = strings.slice(0, _SAMPLE)
    return len(head) == _SAMPLE and len(head.unique()) < _SAMPLE // 2


@njit(cache=True, nogil=True)
def _digest_all(starts, content, keyed, empty, size, digits, out):  # type: ignore[no-untyped-def]
    state = np.empty(8, np.uint32)
    words = np.empty(16, np.uint32)
    octets = words.view(np.uint8)
    for row in range(len(starts) - 1):
        low, high = starts[row], starts[row + 1]
        if low == high:
            state[:] = empty  # the key's block is the last one then
        else:
            state[:] = keyed
            done = np.uint64(64)
            while high - low > 64:
                for at in range(64):
                    octets[at] = content[low + at]
                done += np.uint64(64)
                _compress(state, words, done, False)
                low += 64
            left = high - low
            for at in range(left):
                octets[at] = content[low + at]
            for at in range(left, 64):
                octets[at] = 0
            _compress(state, words, done + np.uint64(left), True)
        place = row * 2 * size
        for at in range(size):
            octet = (state[at >> 2] >> np.uint32(8 * (at & 3))) & np.uint32(0xFF)
            out[place + 2 * at] = digits[octet >> np.uint32(4)]
            out[place + 2 * at + 1] = digits[octet & np.uint32(15)]


@njit(cache=True, nogil=True)
def _compress(h, m, done, last):  # type: ignore[no-untyped-def]
    v0, v1, v2, v3, v4, v5, v6, v7 = h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7]
    v8, v9, v10, v11 = _IV[0], _IV[1], _IV[2], _IV[3]
    v12 = _IV[4] ^ np.uint32(done & np.uint64(0xFFFFFFFF))
    v13 = _IV[5] ^ np.uint32(done >> np.uint64(32))
    v14 = _IV[6] ^ np.uint32(0xFFFFFFFF) if last else _IV[6]
    v15 = _IV[7]
    m0, m1, m2, m3, m4, m5, m6, m7 = m[0], m[1], m[2], m[3], m[4], m[5], m[6], m[7]
    m8, m9, m10, m11, m12, m13, m14, m15 = m[8], m[9], m[10], m[11], m[12], m[13], m[14], m[15]
    # The ten rounds, written out: looked up in RFC 7693's SIGMA, words cost three times as much.
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m0, m1)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m2, m3)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m4, m5)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m6, m7)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m8, m9)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m10, m11)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m12, m13)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m14, m15)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m14, m10)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m4, m8)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m9, m15)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m13, m6)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m1, m12)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m0, m2)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m11, m7)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m5, m3)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m11, m8)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m12, m0)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m5, m2)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m15, m13)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m10, m14)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m3, m6)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m7, m1)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m9, m4)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m7, m9)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m3, m1)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m13, m12)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m11, m14)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m2, m6)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m5, m10)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m4, m0)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m15, m8)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m9, m0)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m5, m7)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m2, m4)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m10, m15)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m14, m1)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m11, m12)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m6, m8)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m3, m13)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m2, m12)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m6, m10)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m0, m11)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m8, m3)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m4, m13)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m7, m5)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m15, m14)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m1, m9)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m12, m5)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m1, m15)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m14, m13)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m4, m10)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m0, m7)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m6, m3)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m9, m2)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m8, m11)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m13, m11)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m7, m14)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m12, m1)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m3, m9)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m5, m0)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m15, m4)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m8, m6)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m2, m10)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m6, m15)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m14, m9)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m11, m3)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m0, m8)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m12, m2)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m13, m7)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m1, m4)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m10, m5)
    v0, v4, v8, v12 = _mix(v0, v4, v8, v12, m10, m2)
    v1, v5, v9, v13 = _mix(v1, v5, v9, v13, m8, m4)
    v2, v6, v10, v14 = _mix(v2, v6, v10, v14, m7, m6)
    v3, v7, v11, v15 = _mix(v3, v7, v11, v15, m1, m5)
    v0, v5, v10, v15 = _mix(v0, v5, v10, v15, m15, m11)
    v1, v6, v11, v12 = _mix(v1, v6, v11, v12, m9, m14)
    v2, v7, v8, v13 = _mix(v2, v7, v8, v13, m3, m12)
    v3, v4, v9, v14 = _mix(v3, v4, v9, v14, m13, m0)
    h[0] ^= v0 ^ v8
    h[1] ^= v1 ^ v9
    h[2] ^= v2 ^ v10
    h[3] ^= v3 ^ v11
    h[4] ^= v4 ^ v12
    h[5] ^= v5 ^ v13
    h[6] ^= v6 ^ v14
    h[7] ^= v7 ^ v15


@njit(cache=True, nogil=True)
def _mix(a, b, c, d, x, y):  # type: ignore[no-untyped-def]
    a = np.uint32(a + b + x)
    d = _turn(d ^ a, 16)
    c = np.uint32(c + d)
    b = _turn(b ^ c, 12)
    a = np.uint32(a + b + y)
    d = _turn(d ^ a, 8)
    c = np.uint32(c + d)
    b = _turn(b ^ c, 7)
    return a, b, c, d


@njit(cache=True, nogil=True)
def _turn(word, by):  # type: ignore[no-untyped-def]
    word = np.uint32(word)
    return np.uint32((word >> np.uint32(by)) | (word << np.uint32(32 - by)))
