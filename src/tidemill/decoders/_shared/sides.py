"""What every decoder's blocks have beside their images: who changed what when, `list_unchanged`, and `odd`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.decoders._shared.calendar import NO_TIME
from tidemill.model.block import COMMIT_TIME, ODD, POSITION, UNCHANGED, Side
from tidemill.model.columns import Ints, booleans, column


def meta(offset: Ints, op: npt.NDArray[np.uint8], ordinal: Ints) -> dict[str, pa.Array]:
    """Of all rows, also those of a transaction that is still open."""
    return {
        "offset": column(offset.astype(np.uint64), pa.uint64()),
        "op": column(op, pa.uint8()),
        "ordinal": column(ordinal.astype(np.uint32), pa.uint32()),
    }


def commits(positions: pa.Array, number: npt.NDArray[Any], time: Ints, index: Ints) -> dict[str, pa.Array]:
    """Of transactions, and for each row by `index` which one it belongs to. `number` is 0 where the source has none."""
    known = time != NO_TIME
    places = column(index.astype(np.int32), pa.int32())
    return {
        "position": pa.DictionaryArray.from_arrays(places, positions).cast(POSITION),
        "tx_id": column(number.astype(np.uint64)[index], pa.uint64(), (number == 0)[index]),
        "commit_time": column(np.where(known, time, 0)[index], COMMIT_TIME, ~known[index]),
    }


def runs(values: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int32], Ints]:
    """Of a vector in which equal values stand together: these values, and for each element which of them it is."""
    fresh = np.empty(len(values), np.bool_)
    fresh[:1] = True
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return values[fresh], np.cumsum(fresh) - 1


def table_runs(slot: npt.NDArray[np.int32], name: Callable[[int], str]) -> list[tuple[int, Ints]]:
    """Which rows make a block: (slot, rows), in order of their first rows. `name` is the table of a slot.

    All rows of a slot are one block, unless rows of another slot with the same table stand between them: a structure
    that comes back after another one (A, B, A), two relations that the stream calls by one name. Then each run is a
    block, because blocks of one table never overlap (log/order.py).
    """
    here = np.flatnonzero(np.bincount(slot)).tolist()
    slots_of = Counter(map(name, here))
    found = [(number, np.flatnonzero(slot == number)) for number in here if slots_of[name(number)] == 1]
    for table, count in slots_of.items():
        if count > 1:
            rows = np.flatnonzero(np.isin(slot, [number for number in here if name(number) == table]))
            cuts = np.flatnonzero(np.diff(slot[rows])) + 1
            found += [(int(slot[run[0]]), run) for run in np.split(rows, cuts)]
    return sorted(found, key=lambda block: int(block[1][0]))


def list_unchanged(unsent: npt.NDArray[np.bool_]) -> pa.Array:
    """`unsent[column, row]`: the source left the value out."""
    row, place = np.nonzero(unsent.T)
    none = np.bincount(row, minlength=unsent.shape[1]) == 0
    offsets = _offsets(row, unsent.shape[1])
    return pa.ListArray.from_arrays(offsets, column(place.astype(np.uint16), pa.uint16()), mask=booleans(none)).cast(
        UNCHANGED
    )


def side_values(found: list[tuple[Ints, Side, int, pa.Array]], rows: int) -> pa.Array:
    """The `odd` column from (rows, image, column, texts)."""
    row = np.concatenate([where for where, *_ in found])
    order = np.argsort(row, kind="stable")
    side = np.concatenate([np.full(len(where), int(side), np.uint8) for where, side, _, _ in found])[order]
    place = np.concatenate([np.full(len(where), j, np.uint16) for where, _, j, _ in found])[order]
    text = pa.concat_arrays([strings for *_, strings in found]).take(column(order, pa.int64()))
    items = pa.StructArray.from_arrays(
        [column(side, pa.uint8()), column(place, pa.uint16()), text], fields=list(ODD.value_type)
    )
    none = np.bincount(row, minlength=rows) == 0
    return pa.ListArray.from_arrays(_offsets(row[order], rows), items, mask=booleans(none)).cast(ODD)


def _offsets(row: Ints, rows: int) -> pa.Array:
    """List offsets for items whose owning rows are given, sorted."""
    return column(np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))]).astype(np.int32), pa.int32())
