"""Changes of one table as texts for COPY, and their last state per key: what a window of the delivery comes down to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.model.types import JsonForm
from tidemill.sinks._shared.images import FRAGMENT, Mask
from tidemill.sinks.postgres import copy_text as text

_WORTHWHILE = 64  # new rows that are sent apart from the others of their window
KEYLESS = "the key has no value, so the row cannot be found again"
INCOMPLETE = (
    "the row is not at the target, and the change does not bring all of its columns (TOAST or a partial row image)"
)


@dataclass(frozen=True, slots=True)
class RowStrings:
    """One text per column and row. A deleted row has its key only.

    `unchanged[column, row]` says which values the source did not send; None where all were sent. `old_key` are the
    key's texts before an UPDATE that changes it in one piece (docs/adr/0003), with nulls for all other rows.
    """

    offsets: np.ndarray[Any, np.dtype[np.uint64]]
    ops: np.ndarray[Any, np.dtype[np.uint8]]
    columns: tuple[pa.Array, ...]
    unchanged: Mask | None = None
    old_key: tuple[pa.Array, ...] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def of(cls, block: Block) -> RowStrings:
        table, ops = block.table, block.batch.column("op").to_numpy()
        odd = _odd(block)
        after = _strings(block, Side.AFTER, odd, [c.name for c in table.columns])
        old = [_strings(block, side, odd, table.key) for side in (Side.KEY, Side.BEFORE)]
        columns, before = [], []
        for column in table.columns:
            found = [image[column.name] for image in (after, *old) if column.name in image]
            columns.append(pc.coalesce(*found) if len(found) > 1 else found[0] if found else _nothing(block.rows))
        if any(old):
            for name in table.key:
                found = [image[name] for image in old if name in image]
                before.append(pc.coalesce(*found) if found else _nothing(block.rows))
        rows = cls(block.offsets(), ops, tuple(columns), _find_unchanged(block), None)
        return _with_moves(rows, table, before) if before else rows

    def take(self, picked: np.ndarray[Any, Any]) -> RowStrings:
        at = pa.array(picked)
        return RowStrings(
            self.offsets[picked], self.ops[picked], tuple(c.take(at) for c in self.columns),
            None if self.unchanged is None else self.unchanged[:, picked],
            None if self.old_key is None else tuple(c.take(at) for c in self.old_key),
        )  # fmt: skip

    def some(self, picked: np.ndarray[Any, Any]) -> RowStrings | None:
        """These, in their order; None if there are none."""
        if len(picked) == len(self):
            return self
        return self.take(picked) if len(picked) else None

    def slice(self, at: int, count: int) -> RowStrings:
        return RowStrings(
            self.offsets[at : at + count], self.ops[at : at + count],
            tuple(c.slice(at, count) for c in self.columns),
            None if self.unchanged is None else self.unchanged[:, at : at + count],
            None if self.old_key is None else tuple(c.slice(at, count) for c in self.old_key),
        )  # fmt: skip

    @property
    def nbytes(self) -> int:
        return sum(int(c.nbytes) for c in self.columns)


def unwritable(block: Block, rows: RowStrings) -> dict[Offset, str]:
    """Events of the block, which came down to these rows, that would become others than the source's, and that no
    server would refuse."""
    found: dict[Offset, str] = {}
    for number, column in enumerate(block.table.columns):
        if column.name in block.table.key and rows.columns[number].null_count:
            missing = rows.columns[number].is_null().to_numpy(zero_copy_only=False) & (rows.ops != Op.TRUNCATE)
            found |= dict.fromkeys(rows.offsets[missing].tolist(), KEYLESS)
    lists = block.column("unchanged")
    if lists is not None:
        # binlog_row_image MINIMAL leaves columns to their defaults. The target may have a row of that key still, one
        # that is deleted in this very window: its values are not the new row's.
        fresh = np.isin(block.batch.column("op").to_numpy(), [int(Op.INSERT), int(Op.READ)])
        partial = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False) > 0
        found |= dict.fromkeys(block.offsets()[fresh & partial].tolist(), INCOMPLETE)
    odd = block.column("odd")
    documents = [n for n, c in enumerate(block.table.columns) if c.type.json is JsonForm.RAW]
    if odd is not None and documents:
        number = odd.flatten().field(1).to_numpy(zero_copy_only=False)
        those = np.unique(_parents(odd)[np.isin(number, documents)])
        found |= dict.fromkeys(block.offsets()[those].tolist(), FRAGMENT)  # JSON has no other odd values
    return found


def join(parts: Sequence[RowStrings]) -> RowStrings:
    """One after the other; all of the same version of a table."""
    if len(parts) == 1:
        return parts[0]
    width, masks, keys = len(parts[0].columns), None, None
    if any(p.unchanged is not None for p in parts):
        masks = np.concatenate(
            [np.zeros((width, len(p)), bool) if p.unchanged is None else p.unchanged for p in parts], axis=1
        )
    if found := next((p.old_key for p in parts if p.old_key is not None), None):
        keys = tuple(
            pa.concat_arrays([_nothing(len(p)) if p.old_key is None else p.old_key[k] for p in parts])
            for k in range(len(found))
        )
    return RowStrings(
        np.concatenate([p.offsets for p in parts]), np.concatenate([p.ops for p in parts]),
        tuple(pa.concat_arrays([p.columns[c] for p in parts]) for c in range(width)), masks, keys,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows that are applied together, one per key. `fresh` are whole, and new: their key's first change is an INSERT,
    so the target has none of it, unless events come again. A row that stands for itself (TRUNCATE, a key changed in
    one piece) is `alone`. Of a table without a key all rows are here, as `rest`."""

    fresh: RowStrings | None
    rest: RowStrings | None
    alone: bool = False

    def all(self) -> RowStrings:
        return join([part for part in (self.fresh, self.rest) if part is not None])


def stretches(rows: RowStrings, key: Sequence[int]) -> Iterator[Stretch]:
    """Cut at rows that stand for themselves."""
    alone = rows.ops == Op.TRUNCATE
    if rows.old_key is not None:
        alone |= rows.old_key[0].is_valid().to_numpy(zero_copy_only=False)
    at = 0
    for place in [*np.flatnonzero(alone).tolist(), len(rows)]:
        if place > at:
            part = rows.slice(at, place - at) if place - at < len(rows) else rows
            yield collapse(part, key) if key else Stretch(None, part)
        if place < len(rows):
            yield Stretch(None, rows.slice(place, 1), alone=True)
        at = place + 1


def collapse(rows: RowStrings, key: Sequence[int]) -> Stretch:
    """One row per key: its last, completed by what earlier ones say of columns that later ones left out."""
    codes = _codes([rows.columns[k] for k in key])
    last = np.full(int(codes.max(initial=-1)) + 1, -1, np.int64)
    first = last.copy()
    last[codes] = np.arange(len(rows))  # of equal indexes numpy keeps the last assignment
    first[codes[::-1]] = np.arange(len(rows) - 1, -1, -1)
    kept = np.zeros(len(rows), bool)
    kept[last[last >= 0]] = True
    final = np.flatnonzero(kept)
    new = (rows.ops[first[codes[final]]] == Op.INSERT) & (rows.ops[final] != Op.DELETE)
    if rows.unchanged is not None and len(final):
        rows = _collapse(rows, key, codes, final)
        final = np.arange(len(rows))
        if rows.unchanged is not None:
            new &= ~rows.unchanged.any(axis=0)
    if not new.all() and new.sum() < _WORTHWHILE:
        new[:] = False
    return Stretch(rows.some(final[new]), rows.some(final[~new]))


def _collapse(
    rows: RowStrings, key: Sequence[int], codes: np.ndarray[Any, Any], final: np.ndarray[Any, Any]
) -> RowStrings:
    if len(final) == len(rows) or rows.unchanged is None:
        return rows
    # Sorted by key, each key's rows in order. A run begins where the row is new, not a change of what was there.
    order = np.argsort(codes, kind="stable")
    place = np.arange(len(rows))
    begins = (rows.ops[order] != Op.UPDATE) | (np.diff(codes[order], prepend=-1) != 0)
    run = np.maximum.accumulate(np.where(begins, place, 0))
    where = np.empty(len(rows), np.int64)
    where[order] = place
    ends = where[final]
    columns, unchanged = [], np.zeros((len(rows.columns), len(final)), bool)
    for number, column in enumerate(rows.columns):
        sent = ~rows.unchanged[number][order] & (rows.ops[order] != Op.DELETE)
        source = np.maximum.accumulate(np.where(sent, place, -1))[ends]
        known = source >= run[ends]
        if number in key:
            columns.append(column.take(pa.array(final)))
            continue
        unchanged[number] = ~known & (rows.ops[final] != Op.DELETE)
        columns.append(column.take(pa.array(np.where(known, order[np.maximum(source, 0)], final))))
    return RowStrings(rows.offsets[final], rows.ops[final], tuple(columns), unchanged if unchanged.any() else None)


def sets(rows: RowStrings) -> list[tuple[np.ndarray[Any, Any], tuple[int, ...]]]:
    """Rows by what must be left as it is at the target: (row numbers, unchanged columns), whole rows first."""
    if rows.unchanged is None:
        return [(np.arange(len(rows)), ())]
    patterns, group = np.unique(np.packbits(rows.unchanged, axis=0).T, axis=0, return_inverse=True)
    found = []
    for number in range(len(patterns)):
        members = np.flatnonzero(group.ravel() == number)
        found.append((members, tuple(np.flatnonzero(rows.unchanged[:, members[0]]).tolist())))
    return found


def _codes(columns: Sequence[pa.Array]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A number per row, the same for the same values in all columns."""
    codes = columns[0].dictionary_encode("encode").indices.to_numpy().astype(np.int64)
    for column in columns[1:]:
        more = column.dictionary_encode("encode").indices.to_numpy().astype(np.int64)
        codes = np.unique(codes * (int(more.max(initial=0)) + 1) + more, return_inverse=True)[1]
    return codes


def _with_moves(rows: RowStrings, table: Table, before: Sequence[pa.Array]) -> RowStrings:
    """UPDATEs whose key was another one before. Decoders split them (docs/adr/0003) where the new row is whole, and so
    does this, should anything between have made one. The others keep their old key, and go alone."""
    numbers = {c.name: n for n, c in enumerate(table.columns)}
    key = [numbers[name] for name in table.key]
    moved = np.zeros(len(rows), bool)
    for number, old in zip(key, before, strict=True):
        unequal = pc.not_equal(rows.columns[number], old).fill_null(False)
        moved |= unequal.to_numpy(zero_copy_only=False)
    moved &= rows.ops == Op.UPDATE
    if not moved.any():
        return rows
    none = pa.scalar(None, pa.large_binary())
    whole = moved if rows.unchanged is None else moved & ~rows.unchanged.any(axis=0)
    if (moved & ~whole).any():
        rows = replace(rows, old_key=tuple(pc.if_else(pa.array(moved & ~whole), old, none) for old in before))
    if not whole.any():
        return rows
    twice = np.repeat(np.arange(len(rows)), 1 + whole)
    second = np.flatnonzero(whole) + np.cumsum(whole)[whole]
    gone = np.zeros(len(twice), bool)
    gone[second - 1] = True
    rows, mask = rows.take(twice), pa.array(gone)
    rows.ops[second - 1], rows.ops[second] = Op.DELETE, Op.INSERT
    columns = [pc.if_else(mask, none, column) for column in rows.columns]
    for number, old in zip(key, before, strict=True):
        columns[number] = pc.if_else(mask, old.take(pa.array(twice)), rows.columns[number])
    return replace(rows, columns=tuple(columns))


def _strings(block: Block, side: Side, odd: dict[tuple[int, str], Any], names: Sequence[str]) -> dict[str, pa.Array]:
    image = block.struct(side.name.lower())
    if image is None:
        return {}
    strings = {}
    for name in names:
        if name not in image:
            continue
        found = odd.get((int(side), name))
        if found is None:
            strings[name] = text.column(image[name])
            continue
        mask, exact = found
        plain = text.plain(image[name]).cast(pa.large_binary())
        strings[name] = text.escape(pc.replace_with_mask(plain, mask, exact.cast(pa.large_binary())))
    return strings


def _odd(block: Block) -> dict[tuple[int, str], tuple[pa.Array, pa.Array]]:
    """Exact texts by side and column: which rows, and their texts in order."""
    odd = block.column("odd")
    if odd is None:
        return {}
    values, rows = odd.flatten(), _parents(odd)
    side, number = (values.field(i).to_numpy(zero_copy_only=False).astype(np.int64) for i in (0, 1))
    names = [c.name for c in block.table.columns]
    found = {}
    for code in np.unique(side << 16 | number).tolist():
        places = np.flatnonzero((side << 16 | number) == code)
        mask = np.zeros(block.rows, bool)
        mask[rows[places]] = True
        found[code >> 16, names[code & 0xFFFF]] = (pa.array(mask), values.field(2).take(pa.array(places)))
    return found


def _find_unchanged(block: Block) -> Mask | None:
    lists = block.column("unchanged")
    if lists is None:
        return None
    mask = np.zeros((len(block.table.columns), block.rows), bool)
    mask[lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64), _parents(lists)] = True
    return mask if mask.any() else None


def _parents(lists: pa.ListArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The row of each element of `lists.flatten()`."""
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), sizes)


def _nothing(rows: int) -> pa.Array:
    return pa.nulls(rows, pa.large_binary())
