"""Between numpy and Arrow by their buffers: `to_numpy` and `pa.array` import pandas, which costs every process that
touches a log half a second and some 40 MB."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def values(column: pa.Array, kind: type[np.generic]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """A column without nulls, not copied; `kind` is its own type's width."""
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def column(numbers: np.ndarray[Any, np.dtype[Any]], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))])


def one_string(text: str) -> pa.Array:
    data = text.encode()
    return pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data)]
    )
