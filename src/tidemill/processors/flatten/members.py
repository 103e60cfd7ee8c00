"""The members of a column of JSON documents, as columns: found by one scan over all documents (scan.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.columns import booleans
from tidemill.model.table import Column
from tidemill.model.types import DataType, JsonForm
from tidemill.processors.flatten.scan import Kind, gather, scan

TypeName = Literal["bigint", "double", "boolean", "text", "json"]
TYPES: dict[str, DataType] = {
    "bigint": DataType("bigint", pa.int64(), JsonForm.NUMBER),
    "double": DataType("double precision", pa.float64(), JsonForm.NUMBER),
    "boolean": DataType("boolean", pa.bool_(), JsonForm.BOOL),
    "text": DataType("text", pa.string(), JsonForm.STRING),
    "json": DataType("jsonb", pa.string(), JsonForm.RAW),
}
_OF_KIND = {Kind.INTEGER: "bigint", Kind.NUMBER: "double", Kind.BOOLEAN: "boolean", Kind.STRING: "text"}


class Members:
    """`strings` are the documents by side. `bad` are rows that hold something else than an object, `misfits` rows with
    a member that its column cannot hold, each with its reason."""

    def __init__(
        self, strings: Mapping[str, pa.Array], column: str, separator: str, depth: int, *, doubled: bool
    ) -> None:
        self._sides = tuple(strings)
        self._column, self._separator, self._doubled = column, separator, doubled
        self._rows = len(next(iter(strings.values()))) if strings else 0
        whole = pa.concat_arrays([each.cast(pa.large_binary()) for each in strings.values()]) if strings else _EMPTY
        self._found = scan(whole, depth)
        bad = self._found.bad.reshape(len(self._sides), self._rows) if strings else np.zeros((1, 0), bool)
        self.bad = bad.any(axis=0)
        self.misfits: dict[int, str] = {}

    def columns(self, types: Mapping[str, DataType]) -> list[tuple[Column, dict[str, pa.Array]]]:
        """A column of each member, by side, of the type that it has (`types`) or that its values have. Columns of
        members that no document has now are null."""
        made: list[tuple[Column, dict[str, pa.Array]]] = []
        for path in range(len(self._found.parents)):
            leaves = np.flatnonzero(self._found.path == path)
            if len(leaves):
                name = self._name(path)
                kind = types.get(name) or self._kind(leaves)
                if kind is not None:
                    made.append((Column(name, kind), self._split(self._array(leaves, kind, name))))
        there = {column.name for column, _ in made}
        for name, kind in types.items():
            if name not in there:
                made.append((Column(name, kind), {side: pa.nulls(self._rows, kind.arrow) for side in self._sides}))
        return made

    def _name(self, path: int) -> str:
        parts: list[str] = []
        while path >= 0:
            key = bytes(self._found.data[self._found.key_starts[path] : self._found.key_ends[path]])
            text = str(orjson.loads(b'"' + key + b'"')) if b"\\" in key else key.decode()
            parts.append(text.replace(self._separator, self._separator * 2) if self._doubled else text)
            path = int(self._found.parents[path])
        return self._separator.join([self._column, *reversed(parts)])

    def _kind(self, leaves: Any) -> DataType | None:
        """None if nothing but null was met: the next document may tell."""
        kinds = {Kind(kind) for kind in np.unique(self._found.kinds[leaves]).tolist()} - {Kind.NULL}
        if not kinds:
            return None
        if kinds == {Kind.INTEGER, Kind.NUMBER}:
            return TYPES["double"]
        return TYPES[_OF_KIND.get(kinds.pop(), "json") if len(kinds) == 1 else "json"]

    def _array(self, leaves: Any, wanted: DataType, name: str) -> pa.Array:
        """Values at their rows. Rows with a value that the column cannot hold are noted."""
        found = self._found
        place = np.full(len(self._sides) * self._rows, -1, np.int64)
        place[found.row[leaves]] = leaves  # of a member that stands twice, the last counts
        rows = np.flatnonzero(place >= 0)
        kinds = found.kinds[place[rows]]
        fits = np.isin(kinds, _FITTING[wanted.native])
        for misfit in np.flatnonzero(~fits & (kinds != Kind.NULL)).tolist():
            better = "double" if wanted == TYPES["bigint"] and kinds[misfit] == Kind.NUMBER else "json"
            reason = f'"{name}" is {wanted.native} since it was first met, and its value is not'
            self.misfits.setdefault(
                int(rows[misfit] % self._rows), f"{reason}; `types: {{{name}: {better}}}` declares another type"
            )
        rows = rows[fits]
        at = place[rows]
        if wanted.json is JsonForm.RAW:
            return self._put(gather(found, at, quotes=True).cast(pa.string()), rows)
        strings = gather(found, at, quotes=False)
        if wanted.json is JsonForm.STRING:
            return self._put(_unescape(strings.cast(pa.string()), found.escaped[at]), rows)
        return self._put(
            pc.equal(strings, pa.scalar("true", strings.type))
            if wanted.json is JsonForm.BOOL
            else strings.cast(wanted.arrow),
            rows,
        )

    def _put(self, values: pa.Array, rows: Any) -> pa.Array:
        index = np.full(len(self._sides) * self._rows, -1, np.int64)
        index[rows] = np.arange(len(rows))
        if len(rows) == len(index):
            return values
        return values.take(pa.array(index, mask=index < 0))

    def _split(self, array: pa.Array) -> dict[str, pa.Array]:
        return {side: array.slice(number * self._rows, self._rows) for number, side in enumerate(self._sides)}


_FITTING: dict[str, list[Kind]] = {
    "bigint": [Kind.INTEGER], "double precision": [Kind.INTEGER, Kind.NUMBER], "boolean": [Kind.BOOLEAN],
    "text": [Kind.STRING], "jsonb": [kind for kind in Kind if kind is not Kind.NULL],
}  # fmt: skip
_EMPTY = pa.array([], pa.large_binary())


def _unescape(strings: pa.Array, escaped: Any) -> pa.Array:
    """Only strings with a backslash in them are looked at one by one."""
    if not escaped.any():
        return strings
    some = [str(orjson.loads(f'"{text}"')) for text in strings.filter(booleans(escaped)).to_pylist()]
    return pc.replace_with_mask(strings, booleans(escaped), pa.array(some, pa.string()))
