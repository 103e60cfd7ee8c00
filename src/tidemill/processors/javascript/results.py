"""What the script changed, back into a block. Columns that it did not touch keep their Arrow values as they are.

`ProcessingError` names the events whose new values do not fit. A reason says the column and its type, never the value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemill.errors import ProcessingError
from tidemill.model.block import ROUTE, Block, Side
from tidemill.model.derived import SIDES, derived_table, image, reshape, with_column
from tidemill.model.table import Column
from tidemill.model.types import DataType
from tidemill.processors.javascript.values import NUMBER_KINDS, ScriptKind, convert, declaration, describe, type_of

_CODES = {"key": Side.KEY, "before": Side.BEFORE, "after": Side.AFTER}
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Change:
    """Values that the script set in one column of one image, by place in what it returned."""

    side: str
    name: str
    rows: Rows
    kinds: npt.NDArray[np.uint8]
    numbers: npt.NDArray[np.float64]  # of all rows; where the kind is a number or a boolean
    strings: pa.StringArray  # of all rows; null where the kind has no text


def decode(block: Block, head: Mapping[str, Any], data: bytes, declared: Mapping[str, DataType]) -> Block:
    rows = head["rows"]
    if not head["same"]:
        source = np.frombuffer(data, np.int32, rows, head["src"])
        block = block.take(pa.array(source)) if rows else Block(block.table, block.batch.slice(0, 0))
    if head["op"] >= 0 and rows:
        block = with_column(block, "op", pa.array(np.frombuffer(data, np.uint8, rows, head["op"])))
    changes = [_change(each, data) for each in head["changes"]]
    routes = [change for change in changes if change.side == "route"]
    there = {side: np.frombuffer(data, np.uint8, rows, at) != 0 for side, at in head["there"].items()}
    block = _Rewrite(block, [c for c in changes if c.side != "route"], there, declared).block()
    return _route(block, routes) if routes else block


class _Rewrite:
    """The images with the changes in them."""

    def __init__(
        self, block: Block, changes: list[Change], there: Mapping[str, npt.NDArray[np.bool_]],
        declared: Mapping[str, DataType],
    ) -> None:  # fmt: skip
        self._block, self._there = block, there
        self._changes = {(c.side, c.name): c for c in changes}
        self._own = {c.name: c for c in block.table.columns}
        self._declared = declared
        self._reasons: dict[int, str] = {}
        self._fix = ""

    def block(self) -> Block:
        if not self._changes and not self._there:
            return self._block
        new = self._new_columns()
        gone = self._find_gone()
        columns = [c for c in self._block.table.columns if c.name not in gone] + new
        images = {side: self._image(side, columns) for side in SIDES}
        if self._reasons:
            raise ProcessingError(self._reasons, fix=self._fix)
        table = self._block.table if not new and not gone else derived_table(self._block.table, columns)
        cleaned = self._without_rewritten()
        return reshape(cleaned, table, images, [c.name if c.name in self._own else None for c in columns])

    def _new_columns(self) -> list[Column]:
        found: dict[str, Column] = {}
        for (_, name), change in self._changes.items():
            if name in self._own or name in found:
                continue
            kind = self._declared.get(name) or type_of(change.kinds)
            if kind is not None:
                found[name] = Column(name, kind)
        return list(found.values())

    def _find_gone(self) -> frozenset[str]:
        """Columns that the script deleted from every image there is. Key columns stay: they are null, and an error."""
        found = set()
        for name in self._own:
            if name in self._block.table.key:
                continue
            sides = [s for s in SIDES if (a := self._block.column(s)) is not None and a.type.get_field_index(name) >= 0]
            present = {side: self._present(side) for side in sides}
            if any(there.any() for there in present.values()) and all(
                self._absent(side, name)[there].all() for side, there in present.items()
            ):
                found.add(name)
        return frozenset(found)

    def _absent(self, side: str, name: str) -> npt.NDArray[np.bool_]:
        mask = np.zeros(self._block.rows, bool)
        if (change := self._changes.get((side, name))) is not None:
            mask[change.rows[change.kinds == ScriptKind.ABSENT]] = True
        return mask

    def _present(self, side: str) -> npt.NDArray[np.bool_]:
        if side in self._there:
            return self._there[side]
        struct = self._block.column(side)
        assert struct is not None
        return struct.is_valid().to_numpy(zero_copy_only=False)

    def _image(self, side: str, columns: list[Column]) -> pa.StructArray | None:
        struct = self._block.column(side)
        if struct is None and not (side in self._there and self._there[side].any()):
            return None
        children = {f.name: struct.field(n) for n, f in enumerate(struct.type)} if struct is not None else {}
        if side == "key":
            columns = [c for c in columns if c.name in children]
        arrays = [self._column(side, c, children.get(c.name)) for c in columns]
        mask = None if (present := self._present(side)).all() else pa.array(~present)
        if struct is not None and mask is None and struct.null_count == 0:
            return image(arrays, columns, struct)
        fields = [pa.field(c.name, c.type.arrow) for c in columns]
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def _column(self, side: str, column: Column, old: pa.Array | None) -> pa.Array:
        change, kind = self._changes.get((side, column.name)), column.type
        if old is None:
            old = pa.nulls(self._block.rows, kind.arrow)
        if change is None:
            return old
        values, bad = convert(change.kinds, change.numbers, change.strings, kind)
        if len(bad):
            self._refuse(change, bad, column)
            return old
        if len(change.rows) == self._block.rows:
            return values
        if pa.types.is_dictionary(old.type):
            old = old.dictionary_decode()
        index = np.arange(len(old))
        index[change.rows] = len(old) + np.arange(len(values))
        return pa.concat_arrays([old, values]).take(pa.array(index))

    def _refuse(self, change: Change, bad: Rows, column: Column) -> None:
        offsets = self._block.offsets()
        for at in bad.tolist():
            kind, number = int(change.kinds[at]), float(change.numbers[at])
            given = describe(kind, number, column.type)
            reason = f'column "{column.name}" holds {column.type.native}, and was given {given}'
            if column.name in self._own:
                fix = f"The table has it as {column.type.native}: set such a value, or set a column of another name."
            else:
                declared = f"columns: {{{column.name}: {declaration(kind, column.type)}}}"
                reason += f"; `{declared}` declares another type"
                fix = f"Declare its type in the processor's settings: `{declared}`; or set such values only."
            self._fix = self._fix or fix
            self._reasons.setdefault(int(offsets[change.rows[at]]), reason)

    def _without_rewritten(self) -> Block:
        """Exact strings (`odd`) and `unchanged` marks of values that the script set are theirs no more."""
        block = self._block
        numbers = {c.name: n for n, c in enumerate(block.table.columns)}
        for name in ("unchanged", "odd"):
            lists = block.column(name)
            if lists is None:
                continue
            entries, parents = lists.flatten(), pa.compute.list_parent_indices(lists).to_numpy()
            column = (entries.field("column") if name == "odd" else entries).to_numpy(zero_copy_only=False)
            side = entries.field("side").to_numpy(zero_copy_only=False) if name == "odd" else None
            keep = np.ones(len(column), bool)
            for (where, what), change in self._changes.items():
                if what in numbers and (name == "odd" or where == "after"):
                    hit = (column == numbers[what]) & np.isin(parents, change.rows[change.kinds != ScriptKind.ABSENT])
                    keep &= ~(hit if side is None else hit & (side == _CODES[where]))
            if name == "unchanged" and "after" in self._there:
                keep &= self._there["after"][parents]
            if not keep.all():
                counts = np.bincount(parents[keep], minlength=len(lists))
                ends = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
                kept = pa.ListArray.from_arrays(
                    ends, entries.filter(pa.array(keep)), type=lists.type, mask=pa.array(counts == 0)
                )
                block = with_column(block, name, kept)
        return block


def _change(head: Mapping[str, Any], data: bytes) -> Change:
    count = head["count"]
    rows = np.frombuffer(data, np.int32, count, head["rows"]).astype(np.int64)
    kinds = (
        np.full(count, head["kind"], np.uint8)
        if head["kind"] >= 0
        else np.frombuffer(data, np.uint8, count, head["kinds"])
    )
    numbers = np.frombuffer(data, np.float64, count, head["numbers"]) if head["numbers"] >= 0 else np.zeros(count)
    strings: pa.StringArray = pa.nulls(count, pa.string())
    if head["ends"] >= 0:
        written = ~np.isin(kinds, [*NUMBER_KINDS, ScriptKind.NULL, ScriptKind.ABSENT])
        many = int(np.count_nonzero(written))
        ends = np.frombuffer(data, np.int32, many + 1, head["ends"])
        body = pa.py_buffer(data).slice(head["text"], head["size"])
        strings = pa.StringArray.from_buffers(many, pa.py_buffer(ends), body)
        if many < count:
            places = np.cumsum(written) - 1
            strings = strings.take(pa.array(np.where(written, places, 0), mask=~written))
    return Change(head["side"], head["name"], rows, kinds, numbers, strings)


def _route(block: Block, routes: list[Change]) -> Block:
    """The route column; what an earlier processor said stays where the script says nothing."""
    offsets = block.offsets()
    parts = {}
    old = block.column("route")
    for field in ROUTE:
        known = old.field(ROUTE.get_field_index(field.name)) if old is not None else pa.nulls(block.rows, field.type)
        change = next((c for c in routes if c.name == field.name), None)
        parts[field.name] = known if change is None else _route_part(change, field, known, offsets)
    return with_column(block, "route", pa.StructArray.from_arrays(list(parts.values()), fields=list(ROUTE)))


def _route_part(change: Change, field: pa.Field, known: pa.Array, offsets: npt.NDArray[np.uint64]) -> pa.Array:
    wanted = ScriptKind.JSON if field.name == "headers" else ScriptKind.STRING
    bad = (change.kinds != wanted) & (change.kinds != ScriptKind.NULL)
    values: pa.Array = change.strings
    if field.name == "headers" and not bad.any():
        import orjson

        maps = [None if text is None else orjson.loads(text) for text in change.strings.to_pylist()]
        bad = np.array(
            [m is not None and not (isinstance(m, dict) and all(isinstance(v, str) for v in m.values())) for m in maps]
        )
        values = pa.array(
            [None if m is None or wrong else list(m.items()) for m, wrong in zip(maps, bad, strict=True)], field.type
        )
    if bad.any():
        wants = "an object of strings" if field.name == "headers" else "a string"
        raise ProcessingError({int(offsets[row]): f"route(): {field.name} must be {wants}" for row in change.rows[bad]})
    index = np.arange(len(known))
    index[change.rows] = len(known) + np.arange(len(values))
    return pa.concat_arrays([known, values]).take(pa.array(index))
