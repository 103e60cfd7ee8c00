"""Numbers as the binlog writes them, read by kernels. None of them looks whether its bytes are there, but `unpack`.

Called by the kernels of `scan`, `images` and `json_text`; Python code reads with `fields`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True, inline="always")
def le16(b: Any, p: Any) -> Any:
    return np.int64(b[p]) | np.int64(b[p + 1]) << 8


@njit(cache=True, nogil=True, inline="always")
def le24(b: Any, p: Any) -> Any:
    return np.int64(b[p]) | np.int64(b[p + 1]) << 8 | np.int64(b[p + 2]) << 16


@njit(cache=True, nogil=True, inline="always")
def le32(b: Any, p: Any) -> Any:
    return np.int64(b[p]) | np.int64(b[p + 1]) << 8 | np.int64(b[p + 2]) << 16 | np.int64(b[p + 3]) << 24


@njit(cache=True, nogil=True, inline="always")
def le48(b: Any, p: Any) -> Any:
    return le32(b, p) | le16(b, p + 4) << 32


@njit(cache=True, nogil=True, inline="always")
def le64(b: Any, p: Any) -> Any:
    return le32(b, p) | le32(b, p + 4) << 32


@njit(cache=True, nogil=True)
def unpack(b: Any, p: Any, end: Any) -> Any:
    """(value, next byte) of a length-encoded integer; value -1 if it does not fit."""
    if p >= end:
        return np.int64(-1), p
    first = np.int64(b[p])
    if first < 251:
        return first, p + 1
    if first == 252 and p + 3 <= end:
        return le16(b, p + 1), p + 3
    return np.int64(-1), p  # no table has more than 4096 columns
