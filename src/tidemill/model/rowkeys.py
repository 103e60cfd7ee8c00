"""Keys of a block's rows as values that can be compared, whatever their types, and rows that lack columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.columns import column, values

_OF_SIDE = {"key": int(Side.KEY), "before": int(Side.BEFORE), "after": int(Side.AFTER)}


def keys_of(block: Block, side: str) -> pa.Array:
    """Each row's key in one image as bytes that are equal where the keys are; null where the row has no such image."""
    image = block.struct(side)
    names = block.table.key
    if image is None or any(name not in image for name in names):
        return pa.nulls(block.rows, pa.binary())
    odd = block.column("odd")
    parts = []
    for name in names:
        part = _bytes(image[name])
        if odd is not None and part.null_count:
            part = _with_odd(part, odd, _OF_SIDE[side], [c.name for c in block.table.columns].index(name))
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    framed: list[Any] = []
    for part in parts:  # with its length before it, so that no two keys run into the same bytes
        framed += [pc.binary_length(part).cast(pa.string()).cast(pa.binary()), part]
    return pc.binary_join_element_wise(*framed, b":")


def old_keys_of(block: Block) -> pa.Array:
    return pc.coalesce(keys_of(block, "key"), keys_of(block, "before"))


def old_key_strings(block: Block, rows: Sequence[int]) -> list[tuple[str, ...]]:
    """As `key_strings`, of the rows before the event."""
    found: list[tuple[str, ...]] = [()] * len(rows)
    for side in ("before", "key"):
        image = block.struct(side)
        if image is not None and all(name in image for name in block.table.key):
            found = [new or old for new, old in zip(key_strings(block, rows, side), found, strict=True)]
    return found


def key_strings(block: Block, rows: Sequence[int], side: str = "after") -> list[tuple[str, ...]]:
    """Keys as `Chunk.points` has them; an empty one where a key has no text that a reader would know."""
    image, odd = block.struct(side), block.column("odd")
    assert image is not None
    chosen = np.asarray(rows, np.int64)
    found = []
    for name in block.table.key:
        cells = take_rows(image[name], chosen)
        if pa.types.is_binary(cells.type):
            strings = [None if value is None else value.hex() for value in cells.to_pylist()]
        elif pa.types.is_nested(cells.type):
            strings = [None] * len(cells)
        elif pa.types.is_date32(cells.type) or pa.types.is_timestamp(cells.type) or pa.types.is_time64(cells.type):
            strings = _temporal_strings(cells)
        else:
            strings = cells.cast(pa.string()).to_pylist()
        if odd is not None and None in strings:
            place = [c.name for c in block.table.columns].index(name)
            for row, items in enumerate(take_rows(odd, chosen).to_pylist()):
                for item in items or ():
                    if item["side"] == _OF_SIDE[side] and item["column"] == place:
                        strings[row] = item["text"]
        found.append(strings)
    return [key if None not in key else () for key in zip(*found, strict=True)]


def moved_with_holes(block: Block) -> list[int]:
    """Rows of updates that change the key and leave columns out: such a row may be in no chunk."""
    ops = values(block.batch.column("op"), np.uint8)
    unchanged = block.column("unchanged")
    if unchanged is None or not (ops == int(Op.UPDATE)).any():
        return []
    differs = pc.fill_null(pc.not_equal(old_keys_of(block), keys_of(block, "after")), False)
    found = pc.and_(differs, unchanged.is_valid())
    return [row for row in np.flatnonzero(bits(found)).tolist() if ops[row] == int(Op.UPDATE)]


def bits(mask: pa.Array) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """A boolean column without nulls."""
    return values(mask.cast(pa.uint8()), np.uint8).astype(np.bool_)


def take_rows(array: pa.Array, rows: np.ndarray[Any, Any]) -> pa.Array:
    return array.take(column(rows.astype(np.int64), pa.int64()))


def _temporal_strings(cells: pa.Array) -> list[str | None]:
    """As Arrow prints them, and as databases do what Arrow has no words for: midnight at the end of a day, years before
    1, and those after 32767, which it prints as others."""
    strings: list[str | None] = cells.cast(pa.string()).to_pylist()
    if pa.types.is_time64(cells.type):
        return [None if text is None else "24:00:00" if text.startswith("<") else text for text in strings]
    zone = "Z" if pa.types.is_timestamp(cells.type) and cells.type.tz else ""
    unit = "D" if pa.types.is_date32(cells.type) else cells.type.unit
    numbers = cells.cast(pa.int32() if unit == "D" else pa.int64()).to_pylist()
    first, last = (int(np.array(day, f"datetime64[{unit}]").astype(np.int64)) for day in ("0001-01-01", "9999-12-31"))
    for row, number in enumerate(numbers):
        if number is None or first <= number < last:
            continue
        printed = str(np.array(number, f"datetime64[{unit}]"))
        year, _, rest = printed.lstrip("-").partition("-")
        before = number < first  # there is no year 0: what is called so is 1 BC
        strings[row] = f"{int(year) + before:04d}-{rest.replace('T', ' ')}{zone}{' BC' if before else ''}"
    return strings


def _bytes(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_date32(kind):
        array = array.cast(pa.int32())
    elif pa.types.is_nested(kind):
        return pa.array([None if value is None else repr(value).encode() for value in array.to_pylist()], pa.binary())
    if pa.types.is_binary(array.type):
        return array
    return array.cast(pa.string()).cast(pa.binary())


def _with_odd(part: pa.Array, odd: pa.Array, side: int, place: int) -> pa.Array:
    found = part.to_pylist()
    for row, items in enumerate(odd.to_pylist()):
        for item in items or ():
            if item["side"] == side and item["column"] == place:
                found[row] = b"odd " + item["text"].encode()
    return pa.array(found, pa.binary())
