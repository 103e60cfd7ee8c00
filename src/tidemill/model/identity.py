"""What names an event, before and after any replay (invariant 4)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block
from tidemill.model.columns import booleans
from tidemill.model.derived import sub_ordinals


def event_ids(block: Block, source: str) -> pa.StringArray:
    """`source:position:ordinal` of every row, with `.sub` after it where a processor added the event."""
    position = block.batch.column("position").cast(pa.string()).fill_null("")
    return pc.binary_join_element_wise(source, position, ordinals(block), ":")


def ordinals(block: Block) -> pa.StringArray:
    """The last part of an event's id: `7`, or `7.2` of the second event that was added to it."""
    ordinal = block.batch.column("ordinal").cast(pa.string())
    sub = sub_ordinals(block)
    if sub is None or not sub.any():
        return ordinal
    added = pc.binary_join_element_wise(ordinal, block.batch.column("sub").cast(pa.string()), ".")
    return pc.if_else(booleans(np.asarray(sub > 0)), added, ordinal)
