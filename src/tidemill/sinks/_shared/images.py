"""The images of a block's rows, for sinks that keep tables: which row has which, what was not sent, what is odd, and
which rows cannot be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.encoding.program import render
from tidemill.model.block import Block, Op, Side
from tidemill.model.odd import OddValues
from tidemill.model.types import JsonForm

__all__ = ["FRAGMENT", "Mask", "OddValues", "Verdicts", "digits", "has_table", "images", "present", "unchanged_mask"]

Mask = np.ndarray[Any, np.dtype[np.bool_]]
FRAGMENT = "only a change of a JSON document was sent, and not the document"
"""MySQL's PARTIAL_JSON. Its text is a list of changes, which would be taken for a document."""


@dataclass(slots=True)
class Verdicts:
    """Rows that cannot be written, by offset, each with its first reason. `lacking` as of `Poisoned`."""

    reasons: dict[int, str] = field(default_factory=dict)
    lacking: set[int] = field(default_factory=set)

    def condemn(self, offsets: np.ndarray[Any, Any], rows: Mask, reason: str, *, lacking: bool = False) -> None:
        for offset in offsets[rows].tolist():
            if lacking and offset not in self.reasons:
                self.lacking.add(offset)
            self.reasons.setdefault(offset, reason)


def has_table(block: Block, *, keyless: bool = False) -> bool:
    """Whether the destination needs the block's table: not for logical messages, which are about none, and not for
    statements about a table that could not be kept. That one is refused when it has rows, not before."""
    ops, table = block.batch.column("op").to_numpy(), block.table
    if not table.columns or (ops == Op.MESSAGE).all():
        return False
    return bool(table.key) or keyless or not (ops == Op.DDL).all()


def images(block: Block) -> dict[Side, Mapping[str, pa.Array]]:
    names = {Side.KEY: "key", Side.BEFORE: "before", Side.AFTER: "after"}
    found = {side: block.struct(name) for side, name in names.items()}
    return {side: struct for side, struct in found.items() if struct is not None}


def digits(values: pa.Array) -> pa.Array:
    """Decimals as text with all of their places. Arrow's own cast writes small ones as `1E-10`."""
    strings = render(values, JsonForm.STRING).array(values.is_valid().to_numpy(zero_copy_only=False))
    return pc.utf8_slice_codeunits(strings.cast(pa.large_string()), 1, -1)  # without its quotes


def present(block: Block, side: Side) -> Mask:
    """Which rows have this image."""
    column = block.column({Side.KEY: "key", Side.BEFORE: "before", Side.AFTER: "after"}[side])
    return np.zeros(block.rows, bool) if column is None else column.is_valid().to_numpy(zero_copy_only=False)


def unchanged_mask(block: Block, column: int, lists: pa.Array | None) -> Mask | None:
    """Rows whose `column` the source did not send."""
    if lists is None or not len(lists.flatten()):
        return None
    hits = lists.flatten().to_numpy() == column
    if not hits.any():
        return None
    mask = np.zeros(block.rows, bool)
    mask[pc.list_parent_indices(lists).to_numpy()[hits]] = True
    return mask
