"""From two versions of a table to the change between them."""

from __future__ import annotations

from tidemill.model.position import Offset
from tidemill.model.schema_change import SchemaChange, SchemaChangeKind
from tidemill.model.table import Table
from tidemill.schema.diff import diff


def change_between(source: str, offset: Offset, before: Table | None, after: Table, text: str = "") -> SchemaChange:
    """A column that went and came again under its name is dropped and added."""
    if before is None:
        return SchemaChange(source, offset, frozenset({SchemaChangeKind.CREATE_TABLE}), None, after, text)
    found = diff(before, after)
    kinds = {
        SchemaChangeKind.ADD_COLUMN: found.added or found.replaced,
        SchemaChangeKind.RENAME_COLUMN: found.renamed,
        SchemaChangeKind.CHANGE_TYPE: found.changed,
        SchemaChangeKind.DROP_COLUMN: found.dropped or found.replaced,
    }
    return SchemaChange(
        source, offset, frozenset(kind for kind, columns in kinds.items() if columns), before, after, text
    )
