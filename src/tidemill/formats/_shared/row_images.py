"""A row's images in JSON: before, after and key, with the columns that few events lack and the values that few have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.encoding.program import Odd, Program, quote
from tidemill.model.block import Block, Side
from tidemill.model.types import JsonForm


@dataclass(frozen=True, slots=True)
class Rare:
    """What few blocks have: unchanged columns, and values beyond their Arrow type."""

    rows: int
    lists: pa.Array | None  # columns left out, by number
    complete: np.ndarray[Any, np.dtype[np.uint8]]  # 1 where nothing was left out
    omitted: dict[str, np.ndarray[Any, np.dtype[np.uint8]]]  # column -> 1 where it was left out
    odds: dict[tuple[Side, str], Odd]

    @classmethod
    def of(cls, block: Block, placeholder: str = "") -> Rare:
        """With a placeholder, a column that was left out shows that text instead of being omitted."""
        names = [c.name for c in block.table.columns]
        odds: dict[tuple[Side, str], Odd] = {}
        if (odd := block.column("odd")) is not None:
            values, rows = odd.flatten(), _parents(odd)
            side, number = (values.field(i).to_numpy(zero_copy_only=False) for i in (0, 1))
            strings = values.field(2).cast(pa.string())
            for code in np.unique(side.astype(np.int64) << 16 | number):
                places = np.flatnonzero((side == code >> 16) & (number == code & 0xFFFF))
                index = np.full(block.rows, -1, np.int32)
                index[rows[places]] = places
                odds[Side(int(code >> 16)), names[code & 0xFFFF]] = Odd(index, strings)
        lists, complete = block.column("unchanged"), np.ones(block.rows, np.uint8)
        omitted: dict[str, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        if lists is not None:
            number, rows = lists.flatten().to_numpy(zero_copy_only=False), _parents(lists)
            complete[rows] = 0
            for column in np.unique(number):
                mask = np.zeros(block.rows, np.uint8)
                mask[rows[number == column]] = 1
                if placeholder:
                    _show(odds, names[column], mask, placeholder)
                else:
                    omitted[names[column]] = mask
        return cls(block.rows, lists, complete, omitted, odds)

    def odd(self, side: Side, column: str) -> Odd | None:
        return self.odds.get((side, column))


def _show(odds: dict[tuple[Side, str], Odd], column: str, mask: np.ndarray[Any, np.dtype[np.uint8]], text: str) -> None:
    """Replaces the column's value by `text` where the mask says so."""
    known = odds.get((Side.AFTER, column))
    strings = pa.array([text], pa.string())
    if known is None:
        odds[Side.AFTER, column] = Odd(mask.astype(np.int32) - 1, strings)
        return
    index = np.where(mask == 1, len(known.strings), known.index).astype(np.int32)
    odds[Side.AFTER, column] = Odd(index, pa.concat_arrays([known.strings, strings]))


def old_image(p: Program, block: Block, rare: Rare, *, whole: bool = False, plain: bool = False) -> None:
    """The old row, else the old key, else null."""
    if block.column("before") is None:
        image(p, block, Side.KEY, rare, b"null", whole=whole, plain=plain)
        return
    done = image(p, block, Side.BEFORE, rare, None, whole=whole, plain=plain)
    image(p, block, Side.KEY, rare, b"null", whole=whole, plain=plain)
    p.land(done)


def image(
    p: Program, block: Block, side: Side, rare: Rare, otherwise: bytes | None, *, whole: bool = False,
    plain: bool = False,
) -> list[int]:  # fmt: skip
    """An object, or `otherwise` in rows without this image. With None, returns the jumps past what comes next.
    `whole` has all columns, those that the image lacks as null; `plain` shows JSON columns as strings instead of
    embedding them."""
    array = image_of(block, side)
    if array is None:
        p.text(otherwise or b"")
        return []
    absent = p.jump_if_null(array) if array.null_count else None
    p.text(b"{")
    forms = {c.name: c.type.json for c in block.table.columns}
    if plain:
        forms = {name: JsonForm.STRING if form is JsonForm.RAW else form for name, form in forms.items()}
    children = columns_of(block, side)
    for name in forms if whole else children:
        child = children.get(name)
        if child is None:
            p.text(quote(name) + b":null,")
            continue
        omit = rare.omitted.get(name) if side is Side.AFTER else None
        p.field(name, child, forms[name], odd=rare.odd(side, name), omit=omit)
    p.close(b"}")
    done = [p.jump()] if absent is not None or otherwise is None else []
    if absent is not None:
        p.land([absent])
    if otherwise is None:
        return done
    if done:
        p.text(otherwise)
        p.land(done)
    return []


def image_of(block: Block, side: Side) -> pa.StructArray | None:
    return block.column(side.name.lower())


def columns_of(block: Block, side: Side) -> dict[str, pa.Array]:
    """Children by name, without the struct's own nulls: rows without the image are jumped over."""
    array = image_of(block, side)
    if array is None:
        return {}
    keep = set(block.table.key) if side is Side.KEY and block.table.key else {f.name for f in array.type}
    return {f.name: array.field(i) for i, f in enumerate(array.type) if f.name in keep}


def newest_odd(sides: list[tuple[np.ndarray[Any, np.dtype[np.bool_]], Odd | None]], rows: int) -> Odd | None:
    """Odd texts of the newest image a row has."""
    known = [odd for _, odd in sides if odd is not None]
    if not known:
        return None
    index, taken = np.full(rows, -1, np.int32), np.zeros(rows, np.bool_)
    for valid, odd in sides:
        if odd is not None:
            index = np.where(valid & ~taken, odd.index, index)
        taken |= valid
    return Odd(index.astype(np.int32), known[0].strings)  # one block has one list of texts


def _parents(lists: pa.ListArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row of each element of `lists.flatten()`."""
    sizes = pa.compute.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), sizes)
