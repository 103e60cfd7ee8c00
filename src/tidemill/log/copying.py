"""Tables whose rows are not all in the log yet: `copying.json`, written by capture, read by tasks when a sink refuses.

An UPDATE that leaves columns out finds no row at the destination while the table is being copied. Its row comes with
the copy, completed, at an offset after it: so the event can be left out there. A table of which a condition leaves rows
out is not noted: whether the row comes is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import orjson

from tidemill.log.store import Store
from tidemill.model.block import Block, Op
from tidemill.model.columns import values
from tidemill.model.position import Offset
from tidemill.model.rowkeys import bits, keys_of

_NAME = "copying.json"
EVERY = "*"
"""In place of a table's name, while a snapshot has begun and does not know its tables yet: whether a row comes with it
is not known either."""


def read_copying(store: Store) -> dict[str, Offset | None]:
    """By table: the offset from which on all its rows were there, None while they are not."""
    data = store.read(_NAME)
    found: dict[str, Offset | None] = orjson.loads(data) if data else {}
    return found


def write_copying(store: Store, tables: Mapping[str, Offset | None]) -> None:
    store.replace(_NAME, orjson.dumps(tables))


def find_excused(
    copying: Mapping[str, Offset | None], blocks: Iterable[Block], refused: Collection[Offset]
) -> set[Offset]:
    """Of the events that a sink refused because they lack columns of a row that is not there (`Poisoned.lacking`), and
    of earlier ones of the same rows, those that the copy makes good. Goes through the blocks twice."""
    wanted = np.array(sorted(refused), np.uint64)
    last: dict[tuple[str, bytes], Offset] = {}
    for block, holes in _with_holes(copying, blocks):
        here = np.flatnonzero(holes & np.isin(block.offsets(), wanted)).tolist()
        keys = keys_of(block, "after") if here else []
        last |= {(block.table.full_name, keys[row].as_py()): int(block.offsets()[row]) for row in here}
    found: set[Offset] = set()
    for block, holes in _with_holes(copying, blocks) if last else ():
        name, keys, offsets = block.table.full_name, keys_of(block, "after").to_pylist(), block.offsets()
        found |= {
            int(offsets[row])
            for row in np.flatnonzero(holes).tolist()
            if int(offsets[row]) <= last.get((name, keys[row]), -1)
        }
    return found


def _with_holes(copying: Mapping[str, Offset | None], blocks: Iterable[Block]) -> Iterator[tuple[Block, Any]]:
    """Blocks of tables that are copied, each with which of its rows are updates that the copy completes."""
    for block in blocks:
        unchanged, name = block.column("unchanged"), block.table.full_name
        if unchanged is None or name not in copying:
            continue
        holes = (values(block.batch.column("op"), np.uint8) == int(Op.UPDATE)) & bits(unchanged.is_valid())
        until = copying[name]
        if until is not None:
            holes &= block.offsets() < np.uint64(until)
        if holes.any():
            yield block, holes
