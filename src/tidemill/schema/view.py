"""A table as a sink sees it, where not every change of the source is made there (policies `ignore`, `try_evolve`).

A view follows the source's structure except for the kinds of change that it leaves out: a column that was added is not
there, one that was dropped stays and gets no values any more, one that was renamed keeps its name, and one whose type
changed keeps its type. Later changes are made on what is there. A name that the source gives to another column is that
one's here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass, replace
from typing import Any

from tidemill.model.schema_change import SchemaChangeKind
from tidemill.model.table import Column, Table
from tidemill.schema.diff import diff

NEVER_IGNORED = frozenset({SchemaChangeKind.CREATE_TABLE, SchemaChangeKind.CHANGE_KEY})
"""Rows of a table that is not there, or under another key, could not be delivered at all."""


@dataclass(frozen=True, slots=True)
class TableView:
    """`table` has what rows of `source` get; `origins` says for each of its columns which column of `source` it is,
    None for one that has no values any more."""

    source: Table
    table: Table
    origins: tuple[str | None, ...]

    @classmethod
    def whole(cls, source: Table) -> TableView:
        return cls(source, source, tuple(c.name for c in source.columns))

    @property
    def is_whole(self) -> bool:
        return self.table is self.source or self.table.fingerprint == self.source.fingerprint

    def follow(self, after: Table, ignored: Set[SchemaChangeKind]) -> TableView:
        """The view of the source's next structure, without the kinds of change that are `ignored`."""
        if self.is_whole and not ignored:
            return TableView.whole(after)
        found = diff(self.source, after)
        now = {c.name: c for c in after.columns}
        renamed = {old.name: new.name for old, new in found.renamed}
        gone = {c.name for c in found.dropped} | {old.name for old, _ in found.replaced}
        changed = {old.name: (old, new) for old, new in found.changed}
        columns: list[tuple[Column, str | None]] = []
        was: dict[str, str] = {}
        for column, origin in zip(self.table.columns, self.origins, strict=True):
            if origin is None or origin in gone:
                if origin is None or SchemaChangeKind.DROP_COLUMN in ignored:
                    columns.append((replace(column, nullable=True), None))
                continue
            target = now[renamed.get(origin, origin)]
            was[target.name] = column.name
            kept = _alter(column, *changed[origin], ignored) if origin in changed else column
            kept = replace(kept, origin=target.origin or kept.origin)  # it may not have been known before
            if origin in renamed and SchemaChangeKind.RENAME_COLUMN not in ignored and column.name == origin:
                kept = replace(kept, name=target.name)
            columns.append((kept, target.name))
        if SchemaChangeKind.ADD_COLUMN not in ignored:
            new = {c.name for c in found.added} | {column.name for _, column in found.replaced}
            columns += [(c, c.name) for c in after.columns if c.name in new]
        columns = _settle_names(columns)
        names = {origin: column.name for column, origin in columns if origin is not None}
        moved = tuple((was[origin], name) for origin, name in names.items() if was.get(origin, name) != name)
        table = replace(
            after, columns=tuple(column for column, _ in columns),
            key=tuple(names.get(name, name) for name in after.key), renamed=moved,
        ).with_fingerprint()  # fmt: skip
        made = {(old.name, new.name) for old, new in found.renamed}
        if table.fingerprint == after.fingerprint and set(moved) == made:
            return TableView.whole(after)
        return TableView(after, table, tuple(origin for _, origin in columns))

    def to_dict(self) -> dict[str, Any]:
        return {
            "source": self.source.to_json().decode(), "table": self.table.to_json().decode(),
            "origins": list(self.origins),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, doc: dict[str, Any]) -> TableView:
        return cls(Table.from_json(doc["source"]), Table.from_json(doc["table"]), tuple(doc["origins"]))


def _settle_names(columns: list[tuple[Column, str | None]]) -> list[tuple[Column, str | None]]:
    """A name that several columns have is the one's that has it at the source. A column that kept it without values any
    more goes, and one that kept it although it was renamed is called as at the source after all: its values would have
    no place."""
    while True:
        count = Counter(column.name for column, _ in columns)
        taken = {column.name for column, origin in columns if count[column.name] > 1 and column.name != origin}
        if not taken:
            return columns
        settled: list[tuple[Column, str | None]] = []
        for column, origin in columns:
            if column.name not in taken:
                settled.append((column, origin))
            elif origin is not None:
                settled.append((replace(column, name=origin), origin))
        columns = settled


def _alter(column: Column, old: Column, new: Column, ignored: Set[SchemaChangeKind]) -> Column:
    """The column of a view, with what this change altered of it at the source. What an earlier one altered and left
    out here stays out."""
    if old.type != new.type and SchemaChangeKind.CHANGE_TYPE not in ignored:
        column = replace(column, type=new.type)
    if old.nullable != new.nullable and SchemaChangeKind.CHANGE_NULLABILITY not in ignored:
        column = replace(column, nullable=new.nullable)
    if old.generated != new.generated and SchemaChangeKind.CHANGE_GENERATED not in ignored:
        column = replace(column, generated=new.generated)
    return column
