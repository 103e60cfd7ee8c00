"""A change of a table's structure: what a source did, and which kinds a sink can do after it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemill.model.position import Offset
from tidemill.model.table import Table


class SchemaChangeKind(enum.StrEnum):
    CREATE_TABLE = "create_table"
    ADD_COLUMN = "add_column"
    RENAME_COLUMN = "rename_column"
    CHANGE_TYPE = "change_type"
    CHANGE_NULLABILITY = "change_nullability"
    CHANGE_GENERATED = "change_generated"
    DROP_COLUMN = "drop_column"
    CHANGE_KEY = "change_key"
    DROP_TABLE = "drop_table"
    RENAME_TABLE = "rename_table"
    CHANGE_DEFAULT = "change_default"
    CHANGE_INDEX = "change_index"
    CHANGE_COMMENT = "change_comment"


UNSEEN_KINDS = {
    "rename_table": SchemaChangeKind.RENAME_TABLE, "default": SchemaChangeKind.CHANGE_DEFAULT,
    "index": SchemaChangeKind.CHANGE_INDEX, "comment": SchemaChangeKind.CHANGE_COMMENT,
}  # fmt: skip
"""What two structures do not show: known only from a statement, by their names in its `changes`. No sink makes them."""

COLUMN_KINDS = frozenset(SchemaChangeKind) - {
    SchemaChangeKind.CHANGE_KEY, SchemaChangeKind.DROP_TABLE, *UNSEEN_KINDS.values(),
}  # fmt: skip
"""What a sink with tables can do: create one, and change its columns."""


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """A table went from `before` to `after`; None where it was not there, or is not any more. `kinds` are what the way
    consists of, `text` is the source's statement where it tells it. Rows from `offset` on have the new structure."""

    source: str
    offset: Offset
    kinds: frozenset[SchemaChangeKind]
    before: Table | None
    after: Table | None
    text: str = ""

    @property
    def table(self) -> Table:
        found = self.after or self.before
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What a sink would do about a schema change: statements, in order. None if there is nothing to do."""

    statements: tuple[str, ...] = ()
