"""The tables that a pipeline has captured, and every structure they have had, from its schema registry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tidemill.config import Pipeline
from tidemill.model.table import Table


@dataclass(frozen=True, slots=True)
class TableSchema:
    """One version of a table: `position` is where the source described it so for the first time."""

    table: str
    version: int
    sequence: int
    fingerprint: str
    position: str
    registered_at: str
    columns: tuple[dict[str, Any], ...]


def list_schemas(pipeline: Pipeline, table: str | None = None) -> list[TableSchema]:
    """The newest version of every table, by name; of one `table` all versions, oldest first. Empty for a pipeline that
    has captured nothing yet."""
    opened = pipeline.find_registry()
    if opened is None:
        return []
    with closing(opened) as registry:
        found = registry.tables() if table is None else registry.history(table)
        return list(_show(found))


def newest_tables(pipeline: Pipeline) -> list[Table]:
    """As they are captured now; none of a pipeline that has captured nothing yet."""
    opened = pipeline.find_registry()
    if opened is None:
        return []
    with closing(opened) as registry:
        return [each.table for each in registry.tables()]


def _show(registrations: Any) -> Iterator[TableSchema]:
    for each in registrations:
        table = each.table
        key = set(table.key)
        columns = tuple(
            {
                "name": column.name, "type": column.type.native, "arrow": str(column.type.arrow),
                "nullable": column.nullable, "generated": column.generated, "key": column.name in key,
            }
            for column in table.columns
        )  # fmt: skip
        yield TableSchema(
            table.full_name, table.version, table.sequence, table.fingerprint, str(each.position),
            each.registered_at, columns,
        )  # fmt: skip
