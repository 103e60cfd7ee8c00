"""Between numpy and Arrow by their buffers: `to_numpy` and `pa.array` of a vector import pandas, which costs every
process that touches a log a third of a second and some 40 MB. Where only our code runs, Arrow does not look for it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]


def values(column: pa.Array, kind: type[np.generic]) -> np.ndarray[tuple[int], np.dtype[Any]]:
    """A column without nulls, not copied; `kind` is its own type's width."""
    if not len(column):
        return np.empty(0, kind)
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def column(numbers: npt.NDArray[Any], kind: pa.DataType, absent: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers of the width that `kind` has; null where `absent`."""
    nulls = 0 if absent is None else int(np.count_nonzero(absent))
    bits = pa.py_buffer(np.packbits(~absent, bitorder="little")) if absent is not None and nulls else None
    return pa.Array.from_buffers(kind, len(numbers), [bits, pa.py_buffer(np.ascontiguousarray(numbers))], nulls)


def booleans(mask: npt.NDArray[np.bool_]) -> pa.Array:
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, pa.py_buffer(np.packbits(mask, bitorder="little"))])


def one_string(text: str) -> pa.Array:
    data = text.encode()
    return pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, len(data)], np.int32)), pa.py_buffer(data)]
    )


class _NoPandas(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow goes without pandas here", name=name)


def leave_out_pandas() -> None:
    """For a process in which only our code runs, and for those that are forked from it: pyarrow looks for pandas once,
    now, and finds none. `import pandas` goes on as ever, and so does `to_pandas`; but `pd.NA` in a list is no null.
    Changes nothing where pandas has been imported. To be called while there is one thread."""
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
