"""Rows that were read from a source and are not in the log, with the columns that the log would add."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidemill.model.block import COMMIT_TIME, POSITION, Block
from tidemill.model.columns import column


def with_place(block: Block) -> Block:
    """A chunk's rows as a sink or a processor takes them: with an empty position, no transaction, and the time 0."""
    added = {
        "position": pa.DictionaryArray.from_arrays(
            column(np.zeros(block.rows, np.int32), pa.int32()), pa.array([""], pa.string())
        ).cast(POSITION),
        "tx_id": pa.nulls(block.rows, pa.uint64()),
        "commit_time": column(np.zeros(block.rows, np.int64), pa.int64()).cast(COMMIT_TIME),
    }
    batch = block.batch
    for name, array in added.items():
        if batch.schema.get_field_index(name) < 0:
            batch = batch.append_column(pa.field(name, array.type), array)
    return Block(block.table, batch)
