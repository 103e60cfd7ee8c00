"""Turns the members of JSON columns, and of text that holds JSON, into columns of their own.

`payload: {"a": {"b": 1}}` becomes `payload_a_b: 1`.

A column gets its type when its member is first met: bigint, double, boolean, text, or JSON for lists and for what has
several types. It keeps that type; an event with another one is an error. An object without members leaves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tidemill.contracts import BaseProcessor
from tidemill.errors import ConfigError, ProcessingError
from tidemill.model.block import UNCHANGED, Block, Side
from tidemill.model.derived import SIDES, derived_table, image, reshape, with_column
from tidemill.model.odd import OddValues
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.processors._shared.columns import ColumnsConfig, choose, find_unmatched
from tidemill.processors.flatten.members import TYPES, Members, TypeName


class FlattenConfig(ColumnsConfig):
    columns: tuple[str, ...] = Field(
        default=("*",),
        min_length=1,
        description="Columns to flatten: names, or patterns. All JSON columns by default; one of text that holds JSON "
        "is flattened where its name stands here.",
    )
    separator: str = Field(default="_", min_length=1, max_length=3, description="What stands between the names.")
    depth: int = Field(default=0, ge=0, description="Levels that are flattened; what is deeper stays JSON. 0: all.")
    collision: Literal["error", "rename"] = Field(
        default="error",
        description="Two members that would have one name: an error of the event; or `rename`, which doubles a "
        "separator that a member's name has in it.",
    )
    types: dict[str, TypeName] = Field(
        default={}, description="Types of new columns that are not to be found out: {payload_amount: double}."
    )


class FlattenProcessor(BaseProcessor[FlattenConfig]):
    Config = FlattenConfig
    whole_rows = True

    def derive(self, table: Table) -> Table | None:
        return None if self._flatten(table) else table

    def process(self, blocks: Iterator[Block]) -> Iterator[Block]:
        for block in blocks:
            names = self._flatten(block.table)
            yield self._flat(block, names) if names else block

    def unmatched_columns(self, tables: Sequence[Table]) -> Sequence[str]:
        return find_unmatched([text for text in self.config.columns if text != "*"], tables)

    def _flatten(self, table: Table) -> list[str]:
        named = choose(table, self.config.columns, self.config.missing)
        asked = [c for c in table.columns if c.name in named and (_is_json(c) or c.name in self.config.columns)]
        for column in asked:
            if not _is_json(column) and not pa.types.is_string(column.type.arrow):
                raise ConfigError(
                    f'"{column.name}" of {table.full_name} is {column.type.native}, neither JSON nor text',
                    fix="Take it out of flatten's columns.",
                )
        return [c.name for c in asked if c.name not in table.key]

    def _flat(self, block: Block, names: list[str]) -> Block:
        known = self.learned(block.table)
        members = {name: self._members(block, name) for name in names}
        columns: list[Column] = []
        sources: list[str | None] = []
        made: dict[str, dict[str, pa.Array]] = {side: {} for side in SIDES}
        parents: dict[str, str] = {}
        for column in block.table.columns:
            if column.name not in members:
                columns.append(column)
                sources.append(column.name)
                continue
            for new, arrays in members[column.name].columns(self._types(known, column.name, names)):
                if new.name in parents or any(c.name == new.name for c in block.table.columns if c.name not in names):
                    raise ProcessingError(_find_collisions(block, new.name, arrays))
                parents[new.name] = column.name
                columns.append(new)
                sources.append(None)
                for side, array in arrays.items():
                    made[side][new.name] = array
        misfits = {row: reason for each in members.values() for row, reason in each.misfits.items()}
        if misfits:
            raise ProcessingError({int(block.offsets()[row]): reason for row, reason in misfits.items()})
        table = derived_table(block.table, columns)
        images = {side: self._image(block, side, table, made[side]) for side in SIDES if block.column(side) is not None}
        flat = reshape(block, table, images, sources)
        return _with_unsent(flat, block, parents)

    def _types(self, known: Table | None, column: str, names: list[str]) -> dict[str, DataType]:
        """Of columns that the members of this one have already, or are declared to have."""
        found = {name: TYPES[kind] for name, kind in self.config.types.items()}
        found |= {c.name: c.type for c in (known.columns if known is not None else ())}
        prefixes = sorted((f"{name}{self.config.separator}" for name in names), key=len, reverse=True)
        mine = f"{column}{self.config.separator}"
        return {
            name: kind
            for name, kind in found.items()
            if next((prefix for prefix in prefixes if name.startswith(prefix)), "") == mine
        }

    def _members(self, block: Block, name: str) -> Members:
        number = next(n for n, c in enumerate(block.table.columns) if c.name == name)
        odd = OddValues(block)
        strings: dict[str, pa.Array] = {}
        for side in ("before", "after"):
            struct = block.struct(side)
            if struct is not None and name in struct:
                strings[side] = struct[name]
                partly = odd.of(Side[side.upper()], number)
                if partly is not None and partly.null_count < block.rows:
                    rows = partly.is_valid().to_numpy(zero_copy_only=False)
                    reason = f'only a change of the document in "{name}" was sent'
                    raise ProcessingError(dict.fromkeys(block.offsets()[rows].tolist(), reason))
        config = self.config
        declared = _is_json(block.table.columns[number])
        if not declared and (wrong := sorted({row for each in strings.values() for row in _find_invalid(each)})):
            raise ProcessingError(
                dict.fromkeys(block.offsets()[wrong].tolist(), f'"{name}" holds a text that is no JSON')
            )
        found = Members(strings, name, config.separator, config.depth, doubled=config.collision == "rename")
        if found.bad.any():
            reason = f'"{name}" holds no JSON object'
            raise ProcessingError(dict.fromkeys(block.offsets()[found.bad].tolist(), reason))
        return found

    def _image(self, block: Block, side: str, table: Table, made: dict[str, pa.Array]) -> pa.StructArray:
        struct: pa.StructArray = block.column(side)
        children = block.struct(side) or {}
        columns, arrays = [], []
        for column in table.columns:
            if column.name in made or column.name in children:
                columns.append(column)
                arrays.append(made[column.name] if column.name in made else children[column.name])
            elif side != "key":
                columns.append(column)
                arrays.append(pa.nulls(block.rows, column.type.arrow))
        return image(arrays, columns, struct)


def _is_json(column: Column) -> bool:
    return column.type.json is JsonForm.RAW


def _find_invalid(strings: pa.Array) -> Iterator[int]:
    """Rows whose text is no JSON: no database has looked at it, and the scan for members takes it as it is."""
    for row, text in enumerate(strings.to_pylist()):
        try:
            if text is not None:
                orjson.loads(text)
        except orjson.JSONDecodeError:
            yield row


def _find_collisions(block: Block, name: str, arrays: dict[str, pa.Array]) -> dict[int, str]:
    rows = np.zeros(block.rows, bool)
    for array in arrays.values():
        rows |= array.is_valid().to_numpy(zero_copy_only=False)
    rows = rows if rows.any() else ~rows
    reason = f'two columns would be called "{name}": another separator, or collision: rename, keeps them apart'
    return dict.fromkeys(block.offsets()[rows].tolist(), reason)


def _with_unsent(flat: Block, block: Block, parents: dict[str, str]) -> Block:
    """A document that the source did not send again leaves all of its members as they are."""
    lists = block.column("unchanged")
    if lists is None or not parents:
        return flat
    old = {c.name: n for n, c in enumerate(block.table.columns)}
    new: dict[int, list[int]] = {}
    for number, column in enumerate(flat.table.columns):
        of = parents.get(column.name, column.name)
        if of in old:
            new.setdefault(old[of], []).append(number)
    sizes = np.array([len(new.get(number, ())) for number in range(len(old))], np.int64)
    flatly = np.array([each for number in range(len(old)) for each in new.get(number, ())], np.uint16)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    entries: npt.NDArray[np.int64] = lists.flatten().to_numpy().astype(np.int64)
    row = pc.list_parent_indices(lists).to_numpy()
    counts = sizes[entries]
    at = np.repeat(starts[entries] - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts) + np.arange(counts.sum())
    per_row = np.bincount(row, weights=counts, minlength=block.rows).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    made = pa.ListArray.from_arrays(pa.array(ends), pa.array(flatly[at]), type=UNCHANGED, mask=mask)
    return with_column(flat, "unchanged", made)


component = FlattenProcessor
