"""Values that their column's type cannot hold: null in the column, exact as text beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Side


class OddValues:
    """The exact texts of one block, by side and column."""

    def __init__(self, block: Block) -> None:
        self._rows = block.rows
        self._found: dict[tuple[int, int], tuple[np.ndarray[Any, Any], pa.Array]] = {}
        column = block.column("odd")
        if column is None or column.null_count == len(column):
            return
        row = pc.list_parent_indices(column).to_numpy()
        entries = column.flatten()
        if not len(entries):
            return
        side, number, text = (entries.field(name) for name in ("side", "column", "text"))
        places = side.to_numpy().astype(np.int64) * 65536 + number.to_numpy()
        for place in np.unique(places).tolist():
            at = np.flatnonzero(places == place)
            self._found[place // 65536, place % 65536] = row[at], text.take(pa.array(at))

    def of(self, side: Side, column: int) -> pa.Array | None:
        """The texts at their rows, null elsewhere; None if there are none."""
        found = self._found.get((int(side), column))
        if found is None:
            return None
        index = np.full(self._rows, -1, np.int64)
        index[found[0]] = np.arange(len(found[0]))
        return found[1].take(pa.array(index, mask=index < 0))
