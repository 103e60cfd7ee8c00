"""What is known of a table from its events, and how two such are merged.

Merging is associative and commutative: lanes, batches and runs may be merged in any order. It is not idempotent, since
counts are added; that an event is counted once is up to the caller, who keeps the offset that was counted last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from tidemill.model.position import Offset
from tidemill.schema.sensing import shapes
from tidemill.schema.sensing.shapes import Shape

EXAMPLES = 5
VALUE_LOOKS = ("ranges", "enumerations", "formats")
"""What is looked at where it is asked for, as the options call it."""

Range = tuple[tuple[str, str], tuple[str, str]]
"""Least and greatest, each as a decimal number to compare and as text to show."""


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """Where an event is: our offset, the source's position, and when it was committed (ISO 8601, or empty)."""

    offset: Offset
    position: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many events, the first few of them, and the last."""

    count: int = 0
    examples: tuple[Spot, ...] = ()
    last: Spot | None = None

    def __add__(self, other: Tally) -> Tally:
        found = sorted({*self.examples, *other.examples})
        last = max((spot for spot in (self.last, other.last) if spot), default=None)
        return Tally(self.count + other.count, tuple(found[:EXAMPLES]), last)

    @property
    def first(self) -> Spot | None:
        return self.examples[0] if self.examples else None

    def to_list(self) -> list[Any]:
        return [self.count, [_spot(spot) for spot in self.examples], _spot(self.last) if self.last else None]

    @classmethod
    def from_list(cls, doc: list[Any]) -> Tally:
        return cls(doc[0], tuple(Spot(*spot) for spot in doc[1]), Spot(*doc[2]) if doc[2] else None)


def _spot(spot: Spot) -> list[Any]:
    return [spot.offset, spot.position, spot.at]


@dataclass(frozen=True, slots=True)
class SensedType:
    """A column as the table's structure declares it."""

    native: str
    json: str
    integer: bool
    nullable: bool

    @property
    def form(self) -> str:
        """How an event shows its values."""
        return "integer" if self.integer else self.json

    def to_list(self) -> list[Any]:
        return [self.native, self.json, self.integer, self.nullable]


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """`values` were looked at, NULL among them; `unchanged` were not sent (TOAST). `odd` are those that the event shows
    as text instead of their type (NaN, infinity). `enumeration` is None where it was not asked for, or where there are
    too many (`many`). `formats` are those that every text has; None before the first one. `paths` counts documents, in
    arrays and maps those of each key. `forms` are those of all types that the column has had. `last_seen` is the last
    event whose structure has the column. `whole` are those of `VALUE_LOOKS` that all of the values had."""

    type: SensedType
    forms: frozenset[str]
    values: int = 0
    unchanged: int = 0
    odd: int = 0
    nulls: Tally = Tally()
    range: Range | None = None
    enumeration: frozenset[str] | None = None
    many: bool = False
    formats: frozenset[str] | None = None
    documents: int = 0
    paths: Mapping[tuple[str, str], int] = field(default_factory=dict)
    last_seen: Offset = 0
    whole: frozenset[str] = frozenset()

    @property
    def null_rate(self) -> float:
        return self.nulls.count / self.values if self.values else 0.0

    def described_paths(self) -> list[tuple[str, list[str], float | None]]:
        """Path, types, and the share of documents that have it: None in arrays and maps, where keys are counted."""
        found: dict[str, list[str]] = {}
        counts: dict[str, int] = {}
        for (path, kind), count in sorted(self.paths.items()):
            found.setdefault(path, []).append(kind)
            counts[path] = counts.get(path, 0) + count
        return [
            (path, kinds, counts[path] / self.documents if shapes.is_counted_per_document(path) else None)
            for path, kinds in found.items()
        ]

    def describe(self) -> dict[str, Any]:
        """For programs, with names instead of places."""
        return {
            "type": self.type.native, "nullable": self.type.nullable, "looked_at": self.values,
            "nulls": self.nulls.count, "null_rate": self.null_rate, "unchanged": self.unchanged, "odd": self.odd,
            "range": {"min": self.range[0][1], "max": self.range[1][1]} if self.range else None,
            "values": None if self.enumeration is None else sorted(self.enumeration),
            "formats": None if self.formats is None else sorted(self.formats),
            "documents": self.documents,
            "paths": [{"path": path, "types": kinds, "share": share} for path, kinds, share in self.described_paths()],
        }  # fmt: skip

    def merge(self, other: ColumnProfile, *, max_values: int, max_keys: int) -> ColumnProfile:
        """`other` may be of a later structure; then its type stands."""
        many = self.many or other.many
        listed = _either(self.enumeration, other.enumeration, frozenset.__or__)
        if listed is not None and len(listed) > max_values:
            many = True
        return ColumnProfile(
            other.type,
            self.forms | other.forms,
            self.values + other.values,
            self.unchanged + other.unchanged,
            self.odd + other.odd,
            self.nulls + other.nulls,
            _either(self.range, other.range, _widest),
            None if many else listed,
            many,
            _either(self.formats, other.formats, frozenset.__and__),
            self.documents + other.documents,
            _add(self.paths, other.paths, max_keys),
            max(self.last_seen, other.last_seen),
            self.whole & other.whole,
        )

    def to_dict(self) -> dict[str, Any]:
        doc: dict[str, Any] = {"type": self.type.to_list(), "forms": sorted(self.forms), "values": self.values}
        rest: dict[str, Any] = {
            "unchanged": self.unchanged,
            "odd": self.odd,
            "nulls": self.nulls.to_list() if self.nulls.count else None,
            "range": self.range,
            "enumeration": None if self.enumeration is None else sorted(self.enumeration),
            "many": self.many,
            "formats": None if self.formats is None else sorted(self.formats),
            "documents": self.documents,
            "last_seen": self.last_seen,
            "whole": sorted(self.whole) or None,
            "paths": [[path, kind, count] for (path, kind), count in sorted(self.paths.items())],
        }
        return doc | {name: value for name, value in rest.items() if value or isinstance(value, list)}

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> ColumnProfile:
        enumeration, formats, found = doc.get("enumeration"), doc.get("formats"), doc.get("range")
        return cls(
            SensedType(*doc["type"]),
            frozenset(doc["forms"]),
            doc["values"],
            doc.get("unchanged", 0),
            doc.get("odd", 0),
            Tally.from_list(doc["nulls"]) if "nulls" in doc else Tally(),
            ((found[0][0], found[0][1]), (found[1][0], found[1][1])) if found else None,
            None if enumeration is None else frozenset(enumeration),
            doc.get("many", False),
            None if formats is None else frozenset(formats),
            doc.get("documents", 0),
            {(path, kind): count for path, kind, count in doc.get("paths", ())},
            doc.get("last_seen", 0),
            frozenset(doc.get("whole", ())),
        )


@dataclass(frozen=True, slots=True)
class TableProfile:
    """`events` passed, `sampled` of them were looked at. `fingerprint` and `sequence` are of the newest structure."""

    name: str
    fingerprint: str
    sequence: int
    events: int = 0
    sampled: int = 0
    first: Spot | None = None
    last: Spot | None = None
    columns: Mapping[str, ColumnProfile] = field(default_factory=dict)

    def merge(self, other: TableProfile, *, max_values: int, max_keys: int) -> TableProfile:
        old, new = (self, other) if _age(self) <= _age(other) else (other, self)
        columns = dict(old.columns)
        for name, column in new.columns.items():
            known = columns.get(name)
            columns[name] = column if known is None else known.merge(column, max_values=max_values, max_keys=max_keys)
        return TableProfile(
            self.name,
            new.fingerprint,
            new.sequence,
            self.events + other.events,
            self.sampled + other.sampled,
            min((spot for spot in (self.first, other.first) if spot), default=None),
            max((spot for spot in (self.last, other.last) if spot), default=None),
            columns,
        )

    def structure(self) -> list[Any]:
        """What a new version is told by: columns, their types, and the paths of JSON documents; no counts."""
        return [
            [name, *column.type.to_list(), sorted(column.forms), sorted(column.paths), sorted(column.formats or ())]
            for name, column in sorted(self.columns.items())
        ]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name, "fingerprint": self.fingerprint, "sequence": self.sequence, "events": self.events,
            "sampled": self.sampled, "first": _spot(self.first) if self.first else None,
            "last": _spot(self.last) if self.last else None,
            "columns": {name: column.to_dict() for name, column in self.columns.items()},
        }  # fmt: skip

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> TableProfile:
        return cls(
            doc["name"], doc["fingerprint"], doc["sequence"], doc["events"], doc["sampled"],
            Spot(*doc["first"]) if doc["first"] else None, Spot(*doc["last"]) if doc["last"] else None,
            {name: ColumnProfile.from_dict(column) for name, column in doc["columns"].items()},
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShapeTally:
    """Documents of one column and one shape."""

    shape: Shape
    seen: Tally

    def to_list(self) -> list[Any]:
        return [sorted(self.shape), self.seen.to_list()]

    @classmethod
    def from_list(cls, doc: list[Any]) -> ShapeTally:
        return cls(frozenset((path, kind) for path, kind in doc[0]), Tally.from_list(doc[1]))


def _age(profile: TableProfile) -> tuple[Offset, str]:
    return (profile.last.offset if profile.last else -1, profile.fingerprint)


def _either(one: Any, other: Any, both: Callable[[Any, Any], Any]) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)


def _widest(one: Range, other: Range) -> Range:
    def key(bound: tuple[str, str]) -> Decimal:
        return Decimal(bound[0])

    return min(one[0], other[0], key=key), max(one[1], other[1], key=key)


def _add(
    one: Mapping[tuple[str, str], int], other: Mapping[tuple[str, str], int], max_keys: int
) -> dict[tuple[str, str], int]:
    total = dict(one)
    for path, count in other.items():
        total[path] = total.get(path, 0) + count
    # Keys of what is a map on one side are no names on the other, however few there are.
    few = len(total) <= max_keys and not any(f"/{shapes.VALUE}" in path for path, _ in total)
    return total if few else shapes.collapse(total, max_keys)
