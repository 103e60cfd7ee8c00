"""CRC-32 as zlib has it, for kernels that must not leave compiled code for every event: sixteen bytes at a time.

Measured with events of 60 bytes: 2.3 GB/s, against 1.4 GB/s with eight bytes at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from tidemill.decoders._shared.eight_bytes import word

_U = np.uint64
_ALL, _BYTE, _1, _8, _16 = _U(0xFFFFFFFF), _U(0xFF), _U(1), _U(8), _U(16)


def _tables() -> Any:
    """What a byte adds to the checksum when k bytes follow it, for k up to 15, one table after the other."""
    tables = np.empty((16, 256), np.uint32)
    for i in range(256):
        value = i
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        tables[0, i] = value
    for k in range(1, 16):
        for i in range(256):
            before = int(tables[k - 1, i])
            tables[k, i] = before >> 8 ^ int(tables[0, before & 0xFF])
    return tables.reshape(-1)


_T = _tables()


@njit(cache=True, nogil=True, inline="always")
def _fold(x: Any, t: Any) -> Any:
    """Eight bytes, of which `t` is the last one's table."""
    return _U(
        _T[t + _U(1792) + (x & _BYTE)] ^ _T[t + _U(1536) + (x >> _8 & _BYTE)] ^ _T[t + _U(1280) + (x >> _16 & _BYTE)]
        ^ _T[t + _U(1024) + (x >> _U(24) & _BYTE)] ^ _T[t + _U(768) + (x >> _U(32) & _BYTE)]
        ^ _T[t + _U(512) + (x >> _U(40) & _BYTE)] ^ _T[t + _U(256) + (x >> _U(48) & _BYTE)] ^ _T[t + (x >> _U(56))]
    )  # fmt: skip


@njit(cache=True, nogil=True)
def crc32(b: Any, start: Any, end: Any) -> Any:
    c, q, e = _ALL, _U(start), _U(end)
    while q + _16 <= e:
        c = _fold(word(b, q) ^ c, _U(2048)) ^ _fold(word(b, q + _8), _U(0))
        q += _16
    while q < e:
        c = _U(_T[(c ^ _U(b[q])) & _BYTE]) ^ c >> _8
        q += _1
    return np.int64(c ^ _ALL)
