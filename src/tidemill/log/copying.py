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
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.log.store import Store
from tidemill.model.block import Block, Op
from tidemill.model.columns import values
from tidemill.model.position import Offset
from tidemill.model.rowkeys import bits, keys_of, old_keys_of, take_rows

_NAME, _EARLIER = "copying.json", "copied.json"
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


def read_earlier(store: Store) -> dict[str, Offset]:
    """Of tables that are being copied once more: the offset from which on all rows were there the last time. A sink
    that is away, and has not come so far, needs it if the later copy is given up."""
    data = store.read(_EARLIER)
    found: dict[str, Offset] = orjson.loads(data) if data else {}
    return found


def write_earlier(store: Store, tables: Mapping[str, Offset]) -> None:
    store.replace(_EARLIER, orjson.dumps(tables))


def find_excused(
    copying: Mapping[str, Offset | None], blocks: Iterable[Block], refused: Collection[Offset]
) -> set[Offset]:
    """Of the events that a sink refused because they lack columns of a row that is not there (`Poisoned.lacking`), and
    of earlier ones that only change the same row, those that the copy makes good. Goes through the blocks twice.

    A sink that brings several updates of a row together names the last of them only. Earlier ones go with it as far
    back as the row has its key: what deleted a row of that key, or moved one away from it or onto it, was done at the
    destination, and is not taken back.
    """
    wanted = np.array(sorted(refused), np.uint64)
    lacking: dict[str, set[bytes]] = {}
    for block, holes in _of_copied(copying, blocks):
        rows = np.flatnonzero(holes & np.isin(block.offsets(), wanted))
        if len(rows):
            lacking.setdefault(block.table.full_name, set()).update(
                take_rows(keys_of(block, "after"), rows).to_pylist()
            )
    found: set[Offset] = set()
    pending: dict[tuple[str, bytes | None], list[Offset]] = {}  # by row: its updates with holes since it has its key
    for block, holes in _of_copied(copying, blocks) if lacking else ():
        name, offsets = block.table.full_name, block.offsets()
        if name not in lacking:
            continue
        old, new = old_keys_of(block), keys_of(block, "after")
        known = pa.array(sorted(lacking[name]), pa.binary())
        near = bits(pc.or_(_is_in(old, known), _is_in(new, known)))
        near |= values(block.batch.column("op"), np.uint8) == int(Op.TRUNCATE)
        for row in np.flatnonzero(near).tolist():
            offset, was, now = int(offsets[row]), old[row].as_py(), new[row].as_py()
            if holes[row] and was in (None, now):
                pending.setdefault((name, now), []).append(offset)
                if offset in refused:
                    found.update(pending.pop((name, now)))
                continue
            if was is None and now is None:  # TRUNCATE
                pending = {place: updates for place, updates in pending.items() if place[0] != name}
            pending.pop((name, was), None)
            pending.pop((name, now), None)
            if holes[row] and offset in refused:
                found.add(offset)
    return found


def _is_in(keys: pa.Array, some: pa.Array) -> pa.Array:
    return pc.fill_null(pc.is_in(keys, value_set=some, skip_nulls=True), False)


def _of_copied(copying: Mapping[str, Offset | None], blocks: Iterable[Block]) -> Iterator[tuple[Block, Any]]:
    """Blocks of tables that are copied, each with which of its rows are updates that the copy completes."""
    for block in blocks:
        unchanged, name = block.column("unchanged"), block.table.full_name
        if name not in copying:
            continue
        if unchanged is None:
            yield block, np.zeros(block.rows, np.bool_)
            continue
        holes = (values(block.batch.column("op"), np.uint8) == int(Op.UPDATE)) & bits(unchanged.is_valid())
        until = copying[name]
        if until is not None:
            holes &= block.offsets() < np.uint64(until)
        yield block, holes
