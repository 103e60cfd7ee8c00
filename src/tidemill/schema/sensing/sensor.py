"""In a Spark worker: looks at the blocks of one lane, and says what it saw.

Which events are looked at follows from their offsets, so that a replay looks at the same ones: the first few of each
structure that this worker meets, then one in `sample_rate`. A `SensorCache` stays in the worker between batches.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op, Side
from tidemill.model.columns import column as to_arrow
from tidemill.model.columns import values
from tidemill.model.table import Column
from tidemill.model.types import JsonForm
from tidemill.schema.sensing import values as look
from tidemill.schema.sensing.options import DeclaredColumn, SensingOptions
from tidemill.schema.sensing.profile import (
    VALUE_LOOKS,
    ColumnProfile,
    SensedType,
    ShapeTally,
    Spot,
    TableProfile,
    Tally,
)
from tidemill.schema.sensing.shapes import Counted, Shape, collapse, shape_of
from tidemill.schema.sensing.structure import structure_hashes

Rows = npt.NDArray[np.int64]

_ROWS = (int(Op.INSERT), int(Op.UPDATE), int(Op.READ))  # a message has an image too, and is no row

# Documents of unknown structure that are parsed per block and column. A column whose documents all differ would cost
# more than its delivery; what is beyond is not counted as looked at.
_MAX_PARSED = 2000
# Structures that travel one by one, so that drift can name the events of each; the rest travels added up.
_MAX_NAMED = 64


@dataclass(slots=True)
class SensorCache:
    """`shapes` are by table, column and number of the structure, the least recently used goes first."""

    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    shapes: OrderedDict[tuple[str, str, int], Counted] = field(default_factory=OrderedDict)
    ruled_out: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    changing: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class Sensed:
    """Of one table. `beyond` and `mismatched` are by column: events that contradict what an operator declared."""

    profile: TableProfile
    structures: Mapping[str, tuple[ShapeTally, ...]] = field(default_factory=dict)
    beyond: Mapping[str, Tally] = field(default_factory=dict)
    mismatched: Mapping[str, Tally] = field(default_factory=dict)

    def merge(self, other: Sensed, options: SensingOptions) -> Sensed:
        structures: dict[str, dict[Shape, Tally]] = {}
        for part in (self, other):
            for name, some in part.structures.items():
                known = structures.setdefault(name, {})
                for each in some:
                    known[each.shape] = known.get(each.shape, Tally()) + each.seen
        return Sensed(
            self.profile.merge(other.profile, max_values=options.max_values, max_keys=options.max_keys),
            {
                name: tuple(ShapeTally(shape, seen) for shape, seen in found.items())
                for name, found in structures.items()
            },
            _sum(self.beyond, other.beyond),
            _sum(self.mismatched, other.mismatched),
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "profile": self.profile.to_dict(),
            "structures": {name: [each.to_list() for each in some] for name, some in self.structures.items()},
            "beyond": {name: tally.to_list() for name, tally in self.beyond.items()},
            "mismatched": {name: tally.to_list() for name, tally in self.mismatched.items()},
        }

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> Sensed:
        return cls(
            TableProfile.from_dict(doc["profile"]),
            {name: tuple(map(ShapeTally.from_list, some)) for name, some in doc["structures"].items()},
            {name: Tally.from_list(tally) for name, tally in doc["beyond"].items()},
            {name: Tally.from_list(tally) for name, tally in doc["mismatched"].items()},
        )


def unpack(packed: bytes) -> Iterator[Sensed]:
    return map(Sensed.from_dict, orjson.loads(packed))


class Sensor:
    """One lane of one batch. `observe` may be called from several threads; a block's number is looked at once."""

    def __init__(self, options: SensingOptions, cache: SensorCache | None = None) -> None:
        self._options = options
        self._whole = frozenset(name for name in VALUE_LOOKS if getattr(options, name))
        self._cache = cache or SensorCache()
        self._numbers: set[int] = set()
        self._tables: dict[str, Sensed] = {}

    def observe(self, number: int, block: Block | None) -> None:
        """None: there is nothing in it for this lane."""
        with self._cache.changing:
            if number in self._numbers:
                return
            self._numbers.add(number)
            found = self._look(block) if block is not None else None
            if found is not None:
                known = self._tables.get(found.profile.name)
                self._tables[found.profile.name] = found if known is None else known.merge(found, self._options)

    def has_observed(self, number: int) -> bool:
        return number in self._numbers

    def take(self) -> bytes:
        """Everything so far, packed for `unpack`; empty for nothing."""
        if not self._tables:
            return b""
        return orjson.dumps([sensed.to_dict() for sensed in self._tables.values()])

    def tables(self) -> dict[str, Sensed]:
        return dict(self._tables)

    def _look(self, block: Block) -> Sensed | None:
        after = block.column("after")
        if after is None:
            return None
        offsets = block.offsets()
        ops = values(block.batch.column("op"), np.uint8)
        there = look.booleans(after.is_valid()) & np.isin(ops, _ROWS) & (offsets >= np.uint64(self._options.since))
        rows = np.flatnonzero(there)
        if not len(rows):
            return None
        table = block.table
        sampled = self._sample(table.full_name, table.fingerprint, offsets, rows)
        name = table.full_name
        spots = _Spots(block)
        profile = TableProfile(
            name, table.fingerprint, table.sequence, len(rows), len(sampled), spots.at(rows[0]), spots.at(rows[-1])
        )
        unchanged, odd = _find_unchanged(block), _odd(block)
        columns: dict[str, ColumnProfile] = {}
        structures: dict[str, tuple[ShapeTally, ...]] = {}
        beyond: dict[str, Tally] = {}
        mismatched: dict[str, Tally] = {}
        declared = self._options.declared.get(name, {})
        numbers = {c.name: number for number, c in enumerate(table.columns)}
        children = {f.name: after.field(i) for i, f in enumerate(after.type)}
        for column in table.columns:
            if column.name not in children:
                continue
            seen = _Seen(
                column, children[column.name], sampled, unchanged.get(numbers[column.name]),
                odd.get(numbers[column.name]), spots,
            )  # fmt: skip
            columns[column.name] = replace(self._column(name, seen), last_seen=int(offsets[rows[-1]]))
            if column.type.json is JsonForm.RAW and self._options.max_depth:
                found = self._documents(name, seen)
                columns[column.name] = replace(
                    columns[column.name], documents=sum(tally.count for tally in found.values()),
                    paths=collapse(_paths(found), self._options.max_keys),
                )  # fmt: skip
                structures[column.name] = _name_shapes(found)
            if column.name in declared:
                _check(seen, declared[column.name], beyond, mismatched)
        return Sensed(replace(profile, columns=columns), structures, beyond, mismatched)

    def _sample(self, table: str, fingerprint: str, offsets: Any, rows: Rows) -> Rows:
        seen = self._cache.seen.get((table, fingerprint), 0)
        self._cache.seen[table, fingerprint] = seen + len(rows)
        rate = self._options.sample_rate
        warm = max(0, self._options.warmup_events - seen)
        if rate == 1 or warm >= len(rows):
            return rows
        # Offsets of one table may be multiples of the rate; their hashes are not.
        chosen = (offsets[rows] * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)) % np.uint64(rate) == 0
        chosen[:warm] = True
        return rows[chosen]

    def _column(self, table: str, seen: _Seen) -> ColumnProfile:
        column, options = seen.column, self._options
        kind = SensedType(
            column.type.native, str(column.type.json), pa.types.is_integer(column.type.arrow), column.nullable
        )
        found = ColumnProfile(
            kind, frozenset({kind.form}), len(seen.rows), seen.unchanged, seen.odd,
            seen.tally(seen.nulls) if seen.nulls.any() else Tally(), whole=self._whole,
        )  # fmt: skip
        arrow = column.type.arrow
        if options.ranges:
            found = replace(found, range=look.range_of(seen.values))
        if options.enumerations and look.can_be_listed(arrow) and column.type.json is not JsonForm.RAW:
            out = self._cache.ruled_out.setdefault((table, column.name), set())
            listed = None if "enumeration" in out else look.enumeration_of(seen.values, options.max_values)
            if listed is None:
                out.add("enumeration")
            found = replace(found, enumeration=listed, many=listed is None)
        if options.formats and look.is_text(arrow) and column.type.json is JsonForm.STRING:
            strings = seen.values.drop_null()
            if len(strings):
                out = self._cache.ruled_out.setdefault((table, column.name), set())
                formats = look.formats_of(strings, look.FORMATS.keys() - out)
                out |= look.FORMATS.keys() - formats
                found = replace(found, formats=formats)
        return found

    def _documents(self, table: str, seen: _Seen) -> dict[Counted, Tally]:
        """The structures of a JSON column, each with how many documents have it and where."""
        there = np.flatnonzero(look.booleans(seen.values.is_valid()))
        if not len(there):
            return {}
        strings = seen.values.drop_null()
        hashes = structure_hashes(strings, self._options.max_depth)
        kinds, first, which, counts = np.unique(hashes, return_index=True, return_inverse=True, return_counts=True)
        last = np.zeros(len(kinds), np.int64)
        last[which] = np.arange(len(which))  # the later one stands
        found: dict[Counted, Tally] = {}
        parsed = 0

        def note(shape: Counted, count: int, begin: int, end: int) -> None:
            tally = Tally(count, (seen.spot(there[begin]),), seen.spot(there[end]))
            found[shape] = found.get(shape, Tally()) + tally

        for number, kind in enumerate(kinds.tolist()):
            if kind == 0:  # not JSON, or not as the kernel knows it: one by one
                for row in np.flatnonzero(which == number)[:_MAX_PARSED].tolist():
                    note(self._parse(strings[row]), 1, row, row)
                continue
            shape = self._cache.shapes.get((table, seen.column.name, kind))
            if shape is None:
                if parsed >= _MAX_PARSED:
                    continue
                parsed += 1
                shape = self._parse(strings[int(first[number])])
                self._keep((table, seen.column.name, kind), shape)
            else:
                self._cache.shapes.move_to_end((table, seen.column.name, kind))
            note(shape, int(counts[number]), int(first[number]), int(last[number]))
        return found

    def _parse(self, document: pa.Scalar) -> Counted:
        return shape_of(document.as_buffer().to_pybytes(), self._options.max_depth, self._options.max_keys)

    def _keep(self, key: tuple[str, str, int], shape: Counted) -> None:
        self._cache.shapes[key] = shape
        while len(self._cache.shapes) > self._options.structures:
            self._cache.shapes.popitem(last=False)


class _Spots:
    """Where the events of a block are; few are asked for."""

    def __init__(self, block: Block) -> None:
        self._batch = block.batch
        self._offsets = block.offsets()

    def at(self, row: int) -> Spot:
        row = int(row)
        position, time = self._batch.column("position")[row].as_py(), self._batch.column("commit_time")[row]
        at = time.cast(pa.string()).as_py() if time.is_valid else ""
        return Spot(int(self._offsets[row]), position or "", at)


class _Seen:
    """One column of the sampled rows that have it."""

    def __init__(
        self, column: Column, child: pa.Array, sampled: Rows, unchanged: Rows | None, odd: Rows | None, spots: _Spots
    ) -> None:
        self.column, self._spots = column, spots
        self.rows = sampled if unchanged is None else sampled[~np.isin(sampled, unchanged)]
        self.unchanged = len(sampled) - len(self.rows)
        whole = len(self.rows) == len(child)
        self.values = child if whole else child.take(to_arrow(np.ascontiguousarray(self.rows), pa.int64()))
        self.nulls = look.booleans(self.values.is_null()) if self.values.null_count else np.zeros(len(self.rows), bool)
        self.odd = 0
        if odd is not None:
            strange = np.isin(self.rows, odd)
            self.odd = int(np.count_nonzero(strange))
            self.nulls = self.nulls & ~strange

    def spot(self, index: int) -> Spot:
        return self._spots.at(self.rows[index])

    def tally(self, mask: look.Mask) -> Tally:
        places = np.flatnonzero(mask)
        return Tally(len(places), tuple(map(self.spot, places[:5].tolist())), self.spot(int(places[-1])))


def _check(seen: _Seen, declared: DeclaredColumn, beyond: dict[str, Tally], mismatched: dict[str, Tally]) -> None:
    for found, mask in (
        (beyond, look.out_of_range(seen.values, declared)),
        (mismatched, look.mismatches(seen.values, declared)),
    ):
        if mask is not None:
            found[seen.column.name] = seen.tally(mask)


def _paths(documents: Mapping[Counted, Tally]) -> dict[tuple[str, str], int]:
    total: dict[tuple[str, str], int] = {}
    for shape, tally in documents.items():
        for path, kind, count in shape:
            total[path, kind] = total.get((path, kind), 0) + count * tally.count
    return total


def _name_shapes(documents: Mapping[Counted, Tally]) -> tuple[ShapeTally, ...]:
    """The most frequent ones. What is beyond stays out: a column with so many is full of maps, and they say little one
    by one."""
    found: dict[Shape, Tally] = {}
    for counted, tally in documents.items():
        shape = frozenset((path, kind) for path, kind, _ in counted)
        found[shape] = found.get(shape, Tally()) + tally
    ranked = sorted(found.items(), key=lambda each: (-each[1].count, each[1].examples))
    return tuple(ShapeTally(shape, tally) for shape, tally in ranked[:_MAX_NAMED])


def _find_unchanged(block: Block) -> dict[int, Rows]:
    """Rows by number of the column that the source did not send."""
    lists = block.column("unchanged")
    if lists is None or not len(lists.flatten()):
        return {}
    number = values(lists.flatten(), np.uint16)
    rows = values(pc.list_parent_indices(lists).cast(pa.int64()), np.int64)
    return {int(column): rows[number == column] for column in np.unique(number)}


def _odd(block: Block) -> dict[int, Rows]:
    """Rows by number of the column whose new value is beyond its type."""
    lists = block.column("odd")
    if lists is None or not len(lists.flatten()):
        return {}
    side, number, _ = lists.flatten().flatten()
    rows = values(pc.list_parent_indices(lists).cast(pa.int64()), np.int64)
    new = values(side, np.uint8) == int(Side.AFTER)
    columns = values(number, np.uint16)
    return {int(column): rows[(columns == column) & new] for column in np.unique(columns[new])}


def _sum(one: Mapping[str, Tally], other: Mapping[str, Tally]) -> dict[str, Tally]:
    return {name: one.get(name, Tally()) + other.get(name, Tally()) for name in {**one, **other}}
