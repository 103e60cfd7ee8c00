"""Numbers of fixed point from their text, for the decoders of servers that print them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def decimals(b: Any, at: Any, size: Any, kind: Any, value: Any, precision: Any, scale: Any, out: Any, bad: Any) -> Any:
    """Fixed-point text with at most `scale` fraction digits into two's-complement words (precision at most 18). Cells
    of another kind than `value` are 0. Answers how many are bad: no such number, or one that does not fit."""
    wrong = 0
    for i in range(len(at)):
        out[i, 0] = 0
        out[i, 1] = 0
        if kind[i] != value:
            continue
        p, e = at[i], at[i] + size[i]
        negative = p < e and b[p] == 45
        if negative:
            p += 1
        ok = p < e and b[e - 1] != 46
        v = np.int64(0)
        digits, fraction, point = 0, 0, False
        while ok and p < e:
            d = np.int64(b[p]) - 48
            if b[p] == 46 and not point:
                point = True
            elif d < 0 or d > 9 or digits == 18:
                ok = False
            else:
                v = v * 10 + d
                if v > 0:
                    digits += 1
                if point:
                    fraction += 1
            p += 1
        if fraction > scale or (v > 0 and digits + scale - fraction > precision):
            ok = False
        if ok:
            for _k in range(scale - fraction):
                v *= 10
        if not ok:
            bad[i] = True
            wrong += 1
            continue
        if negative:
            v = -v
        out[i, 0] = v
        out[i, 1] = v >> 63
    return wrong
