"""One column's cells: where its values stand in the buffer. What the converters of `columns` work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders.binlog import cells

Mask = npt.NDArray[np.bool_]
Result = tuple[pa.Array, Mask | None]


@dataclass(frozen=True, slots=True)
class BinlogCells:
    """Where one column's values stand in `buffer`."""

    buffer: npt.NDArray[np.uint8]
    at: npt.NDArray[np.int32]
    size: npt.NDArray[np.int32]
    kind: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.at)

    def value(self, row: int, size: int = -1) -> bytes:
        at = int(self.at[row])
        return self.buffer[at : at + (int(self.size[row]) if size < 0 else size)].tobytes()

    def validity(self, bad: Mask | None = None) -> tuple[int, pa.Buffer | None]:
        kind = self.kind if bad is None else np.where(bad, np.uint8(cells.NULL), self.kind)
        bits = np.zeros((len(kind) + 7) // 8, np.uint8)
        nulls = int(cells.validity(kind, bits))
        return nulls, pa.py_buffer(bits) if nulls else None

    def values(self) -> list[bytes | None]:
        """One by one: only for rare types."""
        return [self.value(i) if self.kind[i] == cells.VALUE else None for i in range(len(self))]
