"""MySQL's binary JSON to the text that the server prints, and the partial updates of it.

Documents of objects, arrays, strings, numbers and literals are written by a kernel (`json_text`). The rest (decimals,
dates, opaque bytes, and documents that are put together from a partial update) goes value by value (`json_value`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numba import config

from tidemill.decoders._shared.mysql.fields import Bytes
from tidemill.decoders.binlog import cells
from tidemill.decoders.binlog.column import BinlogCells
from tidemill.decoders.binlog.json import text as kernel
from tidemill.decoders.binlog.json.value import Node, broken_error, parse, quote, render
from tidemill.errors import DecodeError
from tidemill.model.columns import booleans

_COMPILED = not config.DISABLE_JIT  # the kernel's digits need instructions that only compiled code has
_REPLACE, _INSERT, _REMOVE = range(3)
_OPERATIONS = ("replace", "insert", "remove")


def convert(column: BinlogCells) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    bad = column.kind == cells.DIFF
    room = 3 * int(column.size.sum(dtype=np.int64)) + 64 * (len(column) + 1)
    if room > np.iinfo(np.int32).max:
        found = [None if value is None else text(value) for value in column.values()]
        return pa.array(found, pa.string()), bad if bad.any() else None
    offsets, out, slow = np.empty(len(column) + 1, np.int32), np.empty(room, np.uint8), np.zeros(len(column), np.bool_)
    left = kernel.strings(column.buffer, column.at, column.size, column.kind, _COMPILED, offsets, out, slow)
    nulls, bits = column.validity()
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(out[: int(offsets[-1])].copy())]
    array = pa.Array.from_buffers(pa.binary(), len(column), buffers, nulls)
    try:
        array = array.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise broken_error() from error
    if left:
        rest = [text(column.value(i)) for i in np.flatnonzero(slow).tolist()]
        array = pc.replace_with_mask(array, booleans(slow), pa.array(rest, pa.string()))
    return array, bad if bad.any() else None


def merge(column: BinlogCells, old: BinlogCells) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
    """As `convert`, where some values are changes of the old ones. Bad: changes of what was not sent."""
    found: list[str | None] = []
    bad = np.zeros(len(column), np.bool_)
    for i in range(len(column)):
        if column.kind[i] == cells.VALUE:
            found.append(text(column.value(i)))
        elif column.kind[i] == cells.DIFF and old.kind[i] == cells.VALUE:
            found.append(render(apply(parse(old.value(i)), column.value(i))))
        else:
            bad[i] = column.kind[i] == cells.DIFF
            found.append(None)
    return pa.array(found, pa.string()), bad if bad.any() else None


def text(value: bytes) -> str:
    """
    >>> text(bytes.fromhex("0001000c000b000100050100") + b"a")
    '{"a": 1}'
    """
    return render(parse(value))


@dataclass(frozen=True, slots=True)
class _Change:
    operation: int
    path: str
    value: Node | None


def _changes(data: bytes) -> list[_Change]:
    source = Bytes(data, "a partial update of a JSON value")
    found = []
    while source.left:
        operation = source.number(1)
        if operation > _REMOVE:
            raise broken_error()
        path = source.text(source.packed())
        value = None if operation == _REMOVE else parse(source.take(source.packed()))
        found.append(_Change(operation, path, value))
    return found


def odd_text(data: bytes) -> str:
    """Changes of a value that was not sent: all that is known of the new one."""
    found = []
    for change in _changes(data):
        value = "" if change.value is None else f', "value": {render(change.value)}'
        found.append(f'{{"op": "{_OPERATIONS[change.operation]}", "path": {quote(change.path)}{value}}}')
    return "[" + ", ".join(found) + "]"


def apply(document: Node, data: bytes) -> Node:
    """The document after its partial update."""
    for change in _changes(data):
        _apply(document, change)
    return document


def _apply(document: Node, change: _Change) -> None:
    """As a replica does (`apply_json_diffs`): a cell that is put in after the end of an array becomes its last one, a
    cell before its start the first; what is replaced or removed must be there."""
    legs = _legs(change.path)
    if not legs:  # a new root is sent whole, not as a change
        raise _misfit()
    parent = document
    for leg in legs[:-1]:
        parent = _child(parent, leg)
    last, value = legs[-1], change.value
    if change.operation != _INSERT:
        _child(parent, last)
    if isinstance(parent, list) and isinstance(last, _Cell):
        at, _ = last.within(len(parent))
        if value is None:
            del parent[at]
        elif change.operation == _INSERT:
            parent.insert(at, value)
        else:
            parent[at] = value
    elif isinstance(parent, dict) and isinstance(last, str):
        if value is None:
            del parent[last]
        elif change.operation == _INSERT:
            if last in parent:
                raise _misfit()
            # Members are in order of length, then of bytes.
            ordered = sorted([*parent.items(), (last, value)], key=lambda m: (len(m[0].encode()), m[0].encode()))
            parent.clear()
            parent.update(ordered)
        else:
            parent[last] = value
    else:
        raise _misfit()


def _child(node: Node, leg: str | _Cell) -> Node:
    if isinstance(node, list) and isinstance(leg, _Cell):
        at, is_there = leg.within(len(node))
        if is_there:
            return node[at]
    if isinstance(node, dict) and isinstance(leg, str) and leg in node:
        return node[leg]
    raise _misfit()


def _misfit() -> DecodeError:
    return DecodeError("a partial update of a JSON value does not fit the value")


@dataclass(frozen=True, slots=True)
class _Cell:
    """`[3]`, or counted from the end: `[last-3]`."""

    index: int
    from_end: bool

    def within(self, length: int) -> tuple[int, bool]:
        """Where it is in an array, or is put in, and whether the array has it (`Json_array_index`)."""
        is_there = self.index < length
        if self.from_end:
            return (length - self.index - 1 if is_there else 0), is_there
        return min(self.index, length), is_there


_CELL = re.compile(r"\[(?:(\d{1,10})|last(?:-(\d{1,10}))?)\]", re.ASCII)


def _legs(path: str) -> list[str | _Cell]:
    """`$.a[3]."b c"[last-1]`, as `Json_path::to_string` writes it."""
    legs: list[str | _Cell] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        if cell := _CELL.match(path, at):
            legs.append(_Cell(int(cell[1] or cell[2] or 0), from_end=cell[1] is None))
            at = cell.end()
        elif path[at] == ".":
            at += 1
            if at < len(path) and path[at] == '"':
                end = at + 1
                while end < len(path) and path[end] != '"':
                    end += 2 if path[end] == "\\" else 1
                try:
                    legs.append(str(orjson.loads(path[at : end + 1])))
                except orjson.JSONDecodeError as error:
                    raise broken_error() from error
                at = end + 1
            else:
                end = min((i for i in (path.find(".", at), path.find("[", at)) if i >= 0), default=len(path))
                legs.append(path[at:end])
                at = end
        else:
            raise broken_error()
    return legs
