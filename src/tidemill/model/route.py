"""The headers of a `route` column, which are maps: Arrow counts and flattens lists only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.model.columns import Ints


def header_entries(maps: pa.MapArray) -> tuple[Ints, pa.Array, pa.Array]:
    """The row, the name and the value of every header."""
    ends: Any = maps.offsets.to_numpy(zero_copy_only=False)
    low, count = int(ends[0]), int(ends[-1] - ends[0])
    row = np.repeat(np.arange(len(maps)), np.diff(ends))
    return row, maps.keys.slice(low, count), maps.items.slice(low, count)
