"""Drift: events that are not what was declared of their table. Six kinds, each with where it was seen.

Declared is the baseline of a table: the structure that it had when its first event passed, with the JSON structure
learned from the first documents; and beyond that what an operator says of columns. An operator accepts a drift by
making what is observed now the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.model.drift import DriftKind
from tidemill.schema.sensing import shapes
from tidemill.schema.sensing.options import DeclaredColumn
from tidemill.schema.sensing.profile import ColumnProfile, TableProfile, Tally
from tidemill.schema.sensing.sensor import Sensed
from tidemill.schema.sensing.shapes import Shape

MAX_SUBJECTS = 100
"""Of each table and kind; what is beyond is added up under `MORE`."""
MORE = "…"

# Which forms a JSON Schema type may have in an event.
_FORMS = {
    "integer": {"integer"}, "number": {"integer", "number"}, "boolean": {"bool"}, "array": {"array", "raw"},
    "object": {"raw"}, "string": {"string", "base64"},
}  # fmt: skip
# Of a text these are asked of each value (sensing/values.py).
_IN_TEXT = {"integer", "number"}


@dataclass(frozen=True, slots=True)
class DriftThreshold:
    """A drift is reported from so many events on, and from this share of the events that were looked at."""

    min_events: int = 1
    min_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is a column, or a path in its documents. `what` is a sentence without values."""

    table: str
    kind: DriftKind
    subject: str
    what: str
    seen: Tally
    fired: bool = False

    @property
    def key(self) -> tuple[str, DriftKind, str]:
        return self.table, self.kind, self.subject

    def to_dict(self) -> dict[str, Any]:
        return {"what": self.what, "seen": self.seen.to_list(), "fired": self.fired}

    @classmethod
    def from_dict(cls, table: str, kind: str, subject: str, doc: Mapping[str, Any]) -> Finding:
        return cls(table, DriftKind(kind), subject, doc["what"], Tally.from_list(doc["seen"]), doc["fired"])

    def is_above(self, threshold: DriftThreshold, profile: TableProfile) -> bool:
        looked_at = profile.events if self.kind in _OF_ALL_EVENTS else profile.sampled
        rate = self.seen.count / looked_at if looked_at else 0.0
        return self.seen.count >= threshold.min_events and rate >= threshold.min_rate


_OF_ALL_EVENTS = {DriftKind.UNDECLARED_COLUMN, DriftKind.MISSING_COLUMN}


@dataclass(frozen=True, slots=True)
class DocumentBaseline:
    """The structure of a JSON column: which types each path may have, and which paths stand in every object."""

    paths: Shape
    required: frozenset[str]

    @classmethod
    def of(cls, column: ColumnProfile) -> DocumentBaseline:
        counts: dict[str, int] = {}
        for (path, _), count in column.paths.items():
            counts[path] = counts.get(path, 0) + count
        required = {
            path
            for path, count in counts.items()
            if path and shapes.is_counted_per_document(path)
            and count == column.paths.get((shapes.parent_of(path), "object"), 0)
        }  # fmt: skip
        return cls(frozenset(column.paths), frozenset(required))

    def differences(self, shape: Shape) -> Iterator[tuple[str, str]]:
        """(path, what is different), of documents of one shape."""
        maps = {shapes.parent_of(path) for path, _ in self.paths if path.endswith(f"/{shapes.VALUE}")}
        seen = {(_in_maps(path, maps), kind) for path, kind in shape}
        for path, kind in sorted(seen - self.paths):
            if kind == "integer" and (path, "number") in self.paths:
                continue
            known = sorted(known for at, known in self.paths if at == path)
            yield path, f"is {kind}, was {' or '.join(known)}" if known else f"is new, of type {kind}"
        present = {path for path, _ in seen}
        for path in sorted(self.required - present):
            if (shapes.parent_of(path), "object") in seen:
                yield path, "is missing"


def _in_maps(path: str, maps: set[str]) -> str:
    """The path with `{}` for the keys of maps."""
    made = shapes.ROOT
    for part in path.split("/")[1:]:
        made += f"/{shapes.VALUE if made in maps and part != shapes.ELEMENT else part}"
    return made


@dataclass(frozen=True, slots=True)
class TableBaseline:
    """`columns` are native type and nullability by name. JSON columns whose structure is still learned are not in
    `documents`."""

    columns: Mapping[str, tuple[str, bool]]
    documents: Mapping[str, DocumentBaseline] = field(default_factory=dict)

    @classmethod
    def of(cls, newest: TableProfile, whole: TableProfile, enough: int) -> TableBaseline:
        """The columns of the newest events, and the documents of all of them where there were `enough`."""
        columns = {name: (column.type.native, column.type.nullable) for name, column in newest.columns.items()}
        return cls(columns).learn(whole, enough)

    def learn(self, whole: TableProfile, enough: int) -> TableBaseline:
        """With the structure of JSON columns of which `enough` documents have been seen by now."""
        learned = {
            name: DocumentBaseline.of(column)
            for name, column in whole.columns.items()
            if name in self.columns and name not in self.documents and column.documents >= max(enough, 1)
        }
        return TableBaseline(self.columns, {**self.documents, **learned}) if learned else self

    def to_dict(self) -> dict[str, Any]:
        documents = {
            name: {"paths": sorted(each.paths), "required": sorted(each.required)}
            for name, each in self.documents.items()
        }
        return {"columns": {name: list(column) for name, column in self.columns.items()}, "documents": documents}

    @classmethod
    def from_dict(cls, doc: Mapping[str, Any]) -> TableBaseline:
        return cls(
            {name: (native, nullable) for name, (native, nullable) in doc["columns"].items()},
            {
                name: DocumentBaseline(
                    frozenset((path, kind) for path, kind in each["paths"]), frozenset(each["required"])
                )
                for name, each in doc["documents"].items()
            },
        )


def compare(baseline: TableBaseline, declared: Mapping[str, DeclaredColumn], sensed: Sensed) -> list[Finding]:
    """What of these events is not as declared."""
    profile = sensed.profile
    every = Tally(profile.events, (profile.first,) if profile.first else (), profile.last)
    found: list[Finding] = []

    def add(kind: DriftKind, subject: str, what: str, seen: Tally) -> None:
        found.append(Finding(profile.name, kind, subject, what, seen))

    known = {**baseline.columns, **dict.fromkeys(declared, ("", True))}
    for name in profile.columns.keys() - known.keys():
        native = profile.columns[name].type.native
        add(DriftKind.UNDECLARED_COLUMN, name, f"column {name} of type {native} is not declared", every)
    for name in known.keys() - profile.columns.keys():
        add(DriftKind.MISSING_COLUMN, name, f"column {name} is declared, and events do not have it", every)
    for name in profile.columns.keys() & known.keys():
        column, said = profile.columns[name], declared.get(name, DeclaredColumn())
        native, nullable = baseline.columns.get(name, ("", True))
        if native and native != column.type.native:
            add(DriftKind.TYPE_MISMATCH, name, f"column {name} is {column.type.native}, was {native}", every)
        elif said.type and not _is_of(said.type, column.type.form):
            add(DriftKind.TYPE_MISMATCH, name, f"column {name} is {column.type.native}, declared {said.type}", every)
        elif name in sensed.mismatched:
            wanted = " and ".join(each for each in (said.type, said.format) if each)
            add(DriftKind.TYPE_MISMATCH, name, f"values of {name} are not {wanted}", sensed.mismatched[name])
        # By the baseline: a batch may have rows from before a SET NOT NULL, and its structure is that from after it.
        required = not said.nullable if said.nullable is not None else not nullable
        if required and column.nulls.count:
            add(DriftKind.UNEXPECTED_NULL, name, f"column {name} is declared not null, and has nulls", column.nulls)
        if name in sensed.beyond:
            add(DriftKind.OUT_OF_RANGE, name, f"values of {name} are beyond what is declared", sensed.beyond[name])
        if name in baseline.documents:
            for each in sensed.structures.get(name, ()):
                for path, what in baseline.documents[name].differences(each.shape):
                    add(DriftKind.STRUCTURE_CHANGE, name + path, f"{name}{path} {what}", each.seen)
    return merge((), found)


def merge(known: Iterable[Finding], new: Iterable[Finding]) -> list[Finding]:
    """One finding per table, kind and subject; the newer sentence stands."""
    found = {finding.key: finding for finding in known}
    counts: dict[tuple[str, DriftKind], int] = {}
    for table, kind, _ in found:
        counts[table, kind] = counts.get((table, kind), 0) + 1
    for finding in new:
        if finding.key not in found:
            of_kind = finding.table, finding.kind
            if counts.get(of_kind, 0) >= MAX_SUBJECTS:
                finding = Finding(finding.table, finding.kind, MORE, "more of this kind at other places", finding.seen)
            else:
                counts[of_kind] = counts.get(of_kind, 0) + 1
        before = found.get(finding.key)
        seen = finding.seen if before is None else before.seen + finding.seen
        fired = finding.fired or (before is not None and before.fired)
        found[finding.key] = Finding(finding.table, finding.kind, finding.subject, finding.what, seen, fired)
    return sorted(found.values(), key=lambda each: each.key)


def _is_of(declared: str, form: str) -> bool:
    return form in _FORMS.get(declared, {form}) or (declared in _IN_TEXT and form == "string")
