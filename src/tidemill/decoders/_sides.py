"""What every decoder's blocks need beside their typed columns: `unchanged`, `odd`, and runs of equal numbers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.model.block import ODD, UNCHANGED, Side

Ints = npt.NDArray[np.int64]


def runs(values: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Ints]:
    """Of a vector in which equal values stand together: these values, and for each element which of them it is."""
    fresh = np.empty(len(values), np.bool_)
    fresh[:1] = True
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return values[fresh], np.cumsum(fresh) - 1


def unchanged(unsent: npt.NDArray[np.bool_]) -> pa.Array:
    """`unsent[column, row]`: the source left the value out."""
    row, column = np.nonzero(unsent.T)
    none = np.bincount(row, minlength=unsent.shape[1]) == 0
    offsets = _offsets(row, unsent.shape[1])
    return pa.ListArray.from_arrays(offsets, pa.array(column.astype(np.uint16)), mask=pa.array(none)).cast(UNCHANGED)


def side_values(found: list[tuple[Ints, Side, int, pa.Array]], rows: int) -> pa.Array:
    """The `odd` column from (rows, image, column, texts)."""
    row = np.concatenate([where for where, *_ in found])
    order = np.argsort(row, kind="stable")
    side = np.concatenate([np.full(len(where), int(side), np.uint8) for where, side, _, _ in found])[order]
    column = np.concatenate([np.full(len(where), j, np.uint16) for where, _, j, _ in found])[order]
    text = pa.concat_arrays([texts for *_, texts in found]).take(pa.array(order))
    items = pa.StructArray.from_arrays([pa.array(side), pa.array(column), text], fields=list(ODD.value_type))
    none = np.bincount(row, minlength=rows) == 0
    return pa.ListArray.from_arrays(_offsets(row[order], rows), items, mask=pa.array(none)).cast(ODD)


def _offsets(row: Ints, rows: int) -> pa.Array:
    """List offsets for items whose owning rows are given, sorted."""
    return pa.array(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int32))
