"""What names an event, before and after any replay (invariant 4)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block


def event_ids(block: Block, source: str) -> pa.StringArray:
    """`source:position:ordinal` of every row."""
    position = block.batch.column("position").cast(pa.string()).fill_null("")
    ordinal = block.batch.column("ordinal").cast(pa.string())
    return pc.binary_join_element_wise(source, position, ordinal, ":")
