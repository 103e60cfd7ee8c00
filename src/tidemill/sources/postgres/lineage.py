"""Which column is which over time, and what old rows have in a new one: what state sinks need to follow the source.

The stream names columns, and says nothing else about them. The catalog knows them by attribute number, which stays when
a column is renamed, and keeps the value that rows from before an ADD COLUMN have in it. Both are asked for when a
relation is announced, and kept with the version in the schema registry: a later restart, or a table that was written
anew since, changes nothing of what was found out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import orjson

from tidemill.contracts import Schemas
from tidemill.decoders.pgoutput import value_of
from tidemill.model.table import Column, Initial, Table

_CATALOG_NEWER = "the catalog was ahead of the stream when the column was met"
REWRITTEN = (
    "the table was written anew since, so that each row may have its own (a default that is computed for each row, an"
    " identity column), or the catalog no longer tells (VACUUM FULL, CLUSTER, another type)"
)
GENERATED = "each row has its own, computed from its other columns"


class StorageCatalog(Protocol):
    def storage_then(self, relation: int) -> dict[int, int] | None: ...

    def storage(self, relation: int) -> dict[int, int]: ...

    def missing(self, tables: list[int], column: str) -> dict[int, str]: ...


def trace(
    table: Table,
    relation: int,
    catalog: StorageCatalog,
    schemas: Schemas,
    initial: Callable[[Column], Initial | None] = lambda column: None,
    before: Table | None = None,
) -> Table:
    """The table with what is known of its columns' past. Call `remember` once it is registered. `initial` is what old
    rows have in a new column, where that is known; else the catalog is asked. `before` is how the table was last,
    where it has no version yet: nobody wrote to it, or it had another name."""
    mine = f"{relation}."
    versions = [v for v in schemas.versions(table.full_name) if any(c.origin.startswith(mine) for c in v.columns)]
    met = bool(versions)
    if not met and before is not None and any(c.origin.startswith(mine) for c in before.columns):
        versions = [before]
    if not versions:
        return table  # met for the first time: nothing to compare with
    latest = {c.name: c for c in versions[-1].columns}
    columns = tuple(c if c.origin or c.name not in latest else replace(c, origin=latest[c.name].origin)
                    for c in table.columns)  # fmt: skip
    names: dict[str, dict[str, None]] = {}  # all that a column was called, in the order of the versions
    for column in (c for version in versions for c in version.columns if c.origin):
        names.setdefault(column.origin, {})[column.name] = None
    return replace(
        table,
        columns=tuple(
            c
            if c.origin in names or not met
            else replace(c, initial=initial(c) or _initial(c, relation, catalog, schemas))
            for c in columns
        ),
        renamed=tuple((was, c.name) for c in columns for was in names.get(c.origin, {}) if was != c.name),
    )


def remember(relation: int, catalog: StorageCatalog, schemas: Schemas) -> None:
    """Where the table's rows are now: the next new column is compared with it."""
    files = catalog.storage_then(relation)
    if files is None:
        return
    document = orjson.dumps({str(oid): file for oid, file in sorted(files.items())})
    if schemas.recall(_name(relation)) != document:
        schemas.remember(_name(relation), document)


def _initial(column: Column, relation: int, catalog: StorageCatalog, schemas: Schemas) -> Initial:
    if column.generated:
        return Initial(unknown=GENERATED)
    document = schemas.recall(_name(relation))
    if not column.origin or document is None:
        return Initial(unknown=_CATALOG_NEWER)
    before = {int(oid): file for oid, file in orjson.loads(document).items()}
    now = catalog.storage(relation)
    # Tables that were there before the column: partitions that came since brought it with them.
    shared = [oid for oid in before if oid in now]
    missing = catalog.missing(shared, column.name)
    initials = {missing.get(oid) for oid in shared}
    if any(oid not in missing and before[oid] != now[oid] for oid in shared) or len(initials) != 1:
        return Initial(unknown=REWRITTEN)
    return initial_value(initials.pop(), column)


def initial_value(text: str | None, column: Column) -> Initial:
    """As the catalog prints it, None for NULL."""
    value, odd = value_of(text, column.type)
    return Initial(unknown="their value is none of the type's that is kept here") if odd else Initial(value)


def _name(relation: int) -> str:
    return f"storage of {relation}"
