"""A block as the columns that prelude.js reads: numbers and flags in one buffer, all text in one string.

A column that JavaScript can hold exactly goes as it is; the others as the text that events in JSON show
(docs/events.md): decimals, dates and times, bytes as base64. 64-bit integers go as words, and prelude.js decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.encoding.program import plain_type, render
from tidemill.model.block import Block, Side
from tidemill.model.derived import sub_ordinals
from tidemill.model.table import Column
from tidemill.model.types import JsonForm

_SAFE = 2**53 - 1
_SIDES = {"key": Side.KEY, "before": Side.BEFORE, "after": Side.AFTER}


class Arena:
    """What is sent beside the head: `put` returns where a vector begins, `text` where a string does."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._strings: list[Any] = []
        self._size = 0
        self._units = 0  # of the text so far, as JavaScript counts: UTF-16

    def put(self, vector: npt.NDArray[Any]) -> int:
        at, size = self._size, vector.nbytes
        self._parts.append(np.ascontiguousarray(vector).data.cast("B") if size else b"")
        if pad := -size % 8:
            self._parts.append(bytes(pad))
        self._size += size + pad
        return at

    def text(self, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
        """`ends` are n + 1 places in `data`; what is returned are the same places in the one string."""
        first, last = int(ends[0]), int(ends[-1])
        used, places = data[first:last], ends - first
        if len(used) and int(used.max()) >= 0x80:
            # A character outside the basic plane (four bytes) is two units; continuation bytes are none.
            units = ((used & 0xC0) != 0x80).astype(np.int64) + (used >= 0xF0)
            places = np.concatenate([[0], np.cumsum(units)])[places]
        self._strings.append(np.ascontiguousarray(used).data)
        shifted: npt.NDArray[np.uint32] = (places + self._units).astype(np.uint32)
        self._units += int(places[-1])
        return shifted

    def parts(self) -> tuple[bytes, bytes]:
        return b"".join(self._parts), b"".join(self._strings)


def encode(block: Block, source_id: str) -> tuple[dict[str, Any], bytes, bytes]:
    """The head, the arena and the text of one call."""
    arena, batch, table = Arena(), block.batch, block.table
    position = batch.column("position")
    if not pa.types.is_dictionary(position.type) or len(position.dictionary) > 2 * block.rows + 16:
        position = position.cast(pa.string()).dictionary_encode()  # a slice keeps the dictionary of the whole append
    sub = sub_ordinals(block)
    head = {
        "rows": block.rows, "source_id": source_id, "database": table.database, "schema": table.schema,
        "table": table.name, "schema_version": table.fingerprint, "positions": position.dictionary.to_pylist(),
        "op": arena.put(batch.column("op").to_numpy()),
        "position": arena.put(position.indices.cast(pa.int32()).fill_null(-1).to_numpy()),
        "time": arena.put(np.floor(_numbers(batch.column("commit_time").cast(pa.int64()), 0) / 1000)),
        "tx_id": arena.put(_numbers(batch.column("tx_id"), np.nan)),
        "ordinal": arena.put(_numbers(batch.column("ordinal"), 0)),
        "sub": -1 if sub is None else arena.put(sub.astype(np.float64)),
        "columns": [{"name": c.name, **_form(c)} for c in table.columns],
    }  # fmt: skip
    odd = _odd_by_column(block)
    for name, side in _SIDES.items():
        head[name] = _image(block, name, {n: found for (at, n), found in odd.items() if at == side}, arena)
    return head, *arena.parts()


def _image(block: Block, name: str, odd: dict[int, list[Any]], arena: Arena) -> dict[str, Any] | None:
    struct = block.column(name)
    if struct is None:
        return None
    there = arena.put(_flags(struct.is_valid())) if struct.null_count else -1
    omitted = _find_omitted(block) if name == "after" else {}
    numbers = {c.name: n for n, c in enumerate(block.table.columns)}
    columns = []
    keep = set(block.table.key) if name == "key" and block.table.key else set(numbers)
    for at, field in enumerate(struct.type):
        if field.name not in keep:
            continue
        number = numbers[field.name]
        sent = _column(block.table.columns[number], struct.field(at), arena)
        if number in odd:
            sent["odd"] = odd[number]
        if number in omitted:
            sent["omit"] = arena.put(omitted[number])
        columns.append({"name": field.name, **_form(block.table.columns[number]), **sent})
    return {"there": there, "columns": columns}


def _column(column: Column, array: pa.Array, arena: Arena) -> dict[str, Any]:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if plainer := plain_type(array.type):
        array = array.cast(plainer)
    kind = array.type
    valid = arena.put(_flags(array.is_valid())) if array.null_count else -1
    if pa.types.is_boolean(kind):
        return {"kind": "bool", "valid": valid, "data": arena.put(_flags(array))}
    if pa.types.is_integer(kind) and kind.bit_width == 64 and not _exact(array):
        words = array.fill_null(0).to_numpy()
        return {"kind": "int64" if words.dtype == np.int64 else "uint64", "valid": valid, "data": arena.put(words)}
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return {"kind": "number", "valid": valid, "data": arena.put(_numbers(array, 0))}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        data, ends = _characters(array)
        form = "json" if column.type.json is JsonForm.RAW else "text"
        return {"kind": form, "valid": valid, "trim": 0, "data": arena.put(arena.text(data, ends))}
    strings = render(array, column.type.json)
    data, ends = np.frombuffer(strings.data, np.uint8), strings.ends
    nested = pa.types.is_nested(kind)
    return {
        "kind": "json" if nested else "text", "valid": valid, "trim": 1, "data": arena.put(arena.text(data, ends)),
    }  # fmt: skip


def _form(column: Column) -> dict[str, Any]:
    """What a value that the script sets must become."""
    kind = column.type.arrow
    if pa.types.is_decimal(kind):
        return {"form": "decimal", "scale": max(kind.scale, 0)}
    if pa.types.is_nested(kind) or column.type.json is JsonForm.RAW:
        return {"form": "json", "scale": 0}
    return {"form": "plain", "scale": 0}


def _exact(array: pa.Array) -> bool:
    """Whether every number is one of JavaScript's without loss."""
    bounds = pc.min_max(array)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least >= -_SAFE and most <= _SAFE)


def _numbers(array: pa.Array, null: float) -> npt.NDArray[np.float64]:
    floats = array.cast(pa.float64(), safe=False)
    return (floats.fill_null(null) if floats.null_count else floats).to_numpy()


def _flags(array: pa.Array) -> npt.NDArray[np.uint8]:
    return array.cast(pa.uint8()).fill_null(0).to_numpy()


def _characters(array: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    wide = pa.types.is_large_string(array.type)
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)[array.offset : array.offset + len(array) + 1]
    return (np.frombuffer(data, np.uint8) if data else np.empty(0, np.uint8)), ends.astype(np.int64)


def _odd_by_column(block: Block) -> dict[tuple[int, int], list[Any]]:
    """Exact strings by side and column: [row, text]. Few blocks have any."""
    lists = block.column("odd")
    found: dict[tuple[int, int], list[Any]] = {}
    if lists is not None and lists.null_count < len(lists):
        rows = pc.list_parent_indices(lists).to_pylist()
        for row, entry in zip(rows, lists.flatten().to_pylist(), strict=True):
            found.setdefault((entry["side"], entry["column"]), []).append([row, entry["text"]])
    return found


def _find_omitted(block: Block) -> dict[int, npt.NDArray[np.uint8]]:
    """Of `unchanged` columns: 1 where the row lacks it."""
    lists = block.column("unchanged")
    if lists is None:
        return {}
    rows, numbers = pc.list_parent_indices(lists).to_numpy(), lists.flatten().to_numpy(zero_copy_only=False)
    found = {}
    for number in np.unique(numbers):
        mask = np.zeros(block.rows, np.uint8)
        mask[rows[numbers == number]] = 1
        found[int(number)] = mask
    return found
