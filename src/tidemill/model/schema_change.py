"""A change of a table's structure: what a source did, and which kinds a sink can do after it."""

from __future__ import annotations

import enum


class SchemaChangeKind(enum.StrEnum):
    CREATE_TABLE = "create table"
    ADD_COLUMN = "add column"
    RENAME_COLUMN = "rename column"
    CHANGE_TYPE = "change type"
    DROP_COLUMN = "drop column"
