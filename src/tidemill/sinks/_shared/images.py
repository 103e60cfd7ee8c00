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
from tidemill.model.types import JsonForm

Mask = np.ndarray[Any, np.dtype[np.bool_]]
FRAGMENT = "only a change of a JSON document was sent, and not the document"
"""MySQL's PARTIAL_JSON. Its text is a list of changes, which would be taken for a document."""


@dataclass(slots=True)
class Verdicts:
    """Rows that cannot be written, by offset, each with its first reason."""

    reasons: dict[int, str] = field(default_factory=dict)

    def condemn(self, offsets: np.ndarray[Any, Any], rows: Mask, reason: str) -> None:
        for offset in offsets[rows].tolist():
            self.reasons.setdefault(offset, reason)


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
    texts = render(values, JsonForm.STRING).array(values.is_valid().to_numpy(zero_copy_only=False))
    return pc.utf8_slice_codeunits(texts.cast(pa.large_string()), 1, -1)  # without its quotes


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
