"""A change of a table's structure: what a source did, and which kinds a sink can do after it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from tidemill.model.position import Offset
from tidemill.model.table import Table


class SchemaChangeKind(enum.StrEnum):
    CREATE_TABLE = "create table"
    ADD_COLUMN = "add column"
    RENAME_COLUMN = "rename column"
    CHANGE_TYPE = "change type"
    DROP_COLUMN = "drop column"


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


@dataclass(frozen=True, slots=True)
class SchemaPlan:
    """What a sink would do about a schema change: statements, in order. None if there is nothing to do."""

    statements: tuple[str, ...] = ()
