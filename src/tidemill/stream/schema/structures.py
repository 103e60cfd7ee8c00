"""Which columns a processor gives to the rows of each table, learned from what it returned and kept for ever.

Only for processors that cannot say it beforehand (`derive` returns None). A worker that meets columns which are not
known does not write the batch: it sends them home with its result, the driver keeps them (`DerivedStructures`), and the
lane is sent again with what is known by then. Lanes that met nothing new are written meanwhile without the new columns,
of which they have no value (ADR 37). Every later batch has one structure, also after a restart.
Columns are only ever added; one that was a number stays a number, and an event that does not fit is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import TidemillError
from tidemill.model.block import Block
from tidemill.model.derived import SIDES, derived_table, image, reshape, same_structure
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType

MOST_COLUMNS = 1000
"""That a processor may add to a table: names that are made of values would never come to an end."""

Known = dict[str, dict[str, list[list[Any]]]]
"""By processor (its digest) and table: [name, type] of each column; no type for a column that the table itself has."""


class DerivedStructures(Protocol):
    """Keeps what is known, durably; the driver's."""

    def load(self) -> Known: ...

    def save(self, known: Known) -> None: ...


def merge(known: Known, more: Known) -> Known:
    """Both, with new columns after those that were known; of two types for one column the known one stays."""
    merged = {stage: {table: list(columns) for table, columns in tables.items()} for stage, tables in known.items()}
    for stage, tables in more.items():
        for table, columns in tables.items():
            mine = merged.setdefault(stage, {}).setdefault(table, [])
            places = {name: place for place, (name, _) in enumerate(mine)}
            for name, kind in columns:
                if name not in places:
                    places[name] = len(mine)
                    mine.append([name, kind])
                elif mine[places[name]][1] is None:  # the table's own so far; it may have lost it
                    mine[places[name]] = [name, kind]
    return merged


def digest(chain: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Of processors, in order: other settings make another structure."""
    parts = [[kind, dict(config)] for kind, config in chain]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


class Structures:
    """The columns that one processor gives, by table. `grew` when a block had some that were not known."""

    def __init__(self, stage: str, known: Known) -> None:
        self._stage = stage
        self._known = {table: [list(column) for column in columns] for table, columns in known.get(stage, {}).items()}
        self._tables: dict[tuple[object, int], Table] = {}
        self.grew = False

    @property
    def known(self) -> Known:
        return {self._stage: self._known}

    def learn(self, name: str, given: Table, table: Table) -> None:
        """`given` is what the processor says rows of `table`, called `name`, have now."""
        mine = self._known.setdefault(name, [])
        there = {each[0]: each for each in mine}
        own = {c.name: c.type for c in table.columns}
        for column in given.columns:
            kept = None if own.get(column.name) == column.type else column.type.to_dict()
            entry = there.get(column.name)
            if entry is None:
                mine.append([column.name, kept])
            elif entry[1] is None and column.name not in own:
                entry[1] = kept  # the source has dropped it, the processor has not
            else:
                continue
            self.grew = True
            self._tables.clear()
        if sum(kind is not None for _, kind in mine) > MOST_COLUMNS:
            raise TidemillError(
                f"it has given rows of {name} more than {MOST_COLUMNS} columns that the table does not have",
                fix="Make column names of the structure, not of values; keep the rest in one JSON column.",
            )

    def of(self, name: str, table: Table) -> Table | None:
        """The structure that rows of `table` get; None if nothing is known of it."""
        mine = self._known.get(name)
        if mine is None:
            return None
        at = (table.lineage, len(mine))
        if at not in self._tables:
            own = {c.name: c for c in table.columns}
            columns = [
                own[name] if kind is None else Column(name, DataType.from_dict(kind))
                for name, kind in mine
                if kind is not None or name in own
            ]
            self._tables[at] = name_structure(derived_table(table, columns), table, self._stage)
        return self._tables[at]


def name_structure(derived: Table, table: Table, stage: str) -> Table:
    """With a fingerprint of its own, or the table itself where nothing changed."""
    if same_structure(derived, table):
        return table
    structure = replace(derived, fingerprint="").with_fingerprint().fingerprint
    whole = hashlib.sha256(f"{table.fingerprint}/{stage}/{structure}".encode()).hexdigest()
    return replace(derived, fingerprint=whole)


def conform(block: Block, table: Table) -> tuple[Block, dict[int, str]]:
    """The block with exactly the columns of `table`, found by name; those that it lacks are null. Rows with a value
    that its column cannot hold are named, by offset, and are null there."""
    if same_structure(block.table, table):
        return Block(table, block.batch), {}
    own = {c.name for c in block.table.columns}
    origins = [c.name if c.name in own else None for c in table.columns]
    images, bad = fit_images(block, table, origins)
    return reshape(block, table, images, origins), bad


def fit_images(
    block: Block, table: Table, origins: Sequence[str | None]
) -> tuple[dict[str, pa.StructArray | None], dict[int, str]]:
    """The block's images with the columns of `table`, each from the column that `origins` names, null without one; and
    rows with a value that its column cannot hold, by offset."""
    bad: dict[int, str] = {}
    images: dict[str, pa.StructArray | None] = {}
    for side in SIDES:
        struct = block.column(side)
        if struct is None:
            continue
        children = block.struct(side) or {}
        pairs = [
            (c, origin)
            for c, origin in zip(table.columns, origins, strict=True)
            if side != "key" or c.name in table.key
        ]
        columns = [fit(children.get(origin) if origin else None, c, block, bad) for c, origin in pairs]
        images[side] = image(columns, [c for c, _ in pairs], struct)
    return images, bad


def fit(values: pa.Array | None, column: Column, block: Block, bad: dict[int, str]) -> pa.Array:
    kind = column.type.arrow
    if values is None:
        return pa.nulls(block.rows, kind)
    if values.type == kind:
        return values
    reason = f'column "{column.name}" holds {kind} since it was first met, and its value is no such'
    if not _comparable(values.type, kind):
        for offset in block.offsets()[values.is_valid().to_numpy(zero_copy_only=False)].tolist():
            bad.setdefault(offset, reason)
        return pa.nulls(block.rows, kind)
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        fits = np.array([_casts(values.slice(row, 1), kind) for row in range(len(values))])
        for offset in block.offsets()[~fits].tolist():
            bad.setdefault(offset, reason)
        return pc.if_else(pa.array(fits), values, pa.scalar(None, values.type)).cast(kind)


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether a value of the one may be one of the other without being written otherwise: a number is no text."""
    families = (
        lambda t: pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t),
        lambda t: pa.types.is_string(t) or pa.types.is_large_string(t),
        lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t),
        pa.types.is_timestamp,
        pa.types.is_null,
    )  # fmt: skip
    return pa.types.is_null(one) or any(family(one) and family(other) for family in families)


def _casts(value: pa.Array, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
