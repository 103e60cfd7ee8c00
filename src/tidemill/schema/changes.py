"""From two versions of a table to the change between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from tidemill.model.position import Offset
from tidemill.model.schema_change import UNSEEN_KINDS, SchemaChange, SchemaChangeKind
from tidemill.model.table import Column, Table
from tidemill.schema.diff import Diff, diff


def change_between(source: str, offset: Offset, before: Table | None, after: Table, text: str = "") -> SchemaChange:
    """A column that went and came again under its name is dropped and added."""
    if before is None:
        return SchemaChange(source, offset, frozenset({SchemaChangeKind.CREATE_TABLE}), None, after, text)
    found = diff(before, after)
    kinds = {
        SchemaChangeKind.ADD_COLUMN: found.added or found.replaced,
        SchemaChangeKind.RENAME_COLUMN: found.renamed,
        SchemaChangeKind.CHANGE_TYPE: [1 for old, new in found.changed if _type(old) != _type(new)],
        SchemaChangeKind.CHANGE_NULLABILITY: [1 for old, new in found.changed if old.nullable != new.nullable],
        SchemaChangeKind.CHANGE_GENERATED: [1 for old, new in found.changed if old.generated != new.generated],
        SchemaChangeKind.DROP_COLUMN: found.dropped or found.replaced,
        SchemaChangeKind.CHANGE_KEY: _key_before(before, found) != after.key,
    }
    return SchemaChange(source, offset, frozenset(kind for kind, there in kinds.items() if there), before, after, text)


def with_unseen(change: SchemaChange, documents: Iterable[Mapping[str, Any]]) -> SchemaChange:
    """The change with the kinds that only the statements tell: `documents` are those of its DDL events."""
    names = {each["change"] for document in documents for each in document["changes"] or ()}
    return replace(change, kinds=change.kinds | {kind for name, kind in UNSEEN_KINDS.items() if name in names})


def _type(column: Column) -> tuple[object, ...]:
    return column.type.native, column.type.arrow


def _key_before(before: Table, found: Diff) -> tuple[str, ...]:
    """The old key, by the names that its columns have now."""
    names = {old.name: new.name for old, new in found.renamed}
    return tuple(names.get(name, name) for name in before.key)
