"""Which column is which over time, and what old rows have in a new one: what state sinks need to follow the source.

The stream names columns, and says nothing else about them. The catalog knows them by attribute number, which stays when
a column is renamed, and keeps the value that rows from before an ADD COLUMN have in it. Both are asked for when a
relation is announced, and kept with the version in the schema registry: a later restart, or a table that was written
anew since, changes nothing of what was found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import orjson

from tidemill.contracts import Schemas
from tidemill.decoders.pgoutput import value_of
from tidemill.model.table import Column, Initial, Table

_CATALOG_NEWER = "the catalog was ahead of the stream when the column was met"
_PERHAPS_RENAMED = (
    "it may be {}, renamed, whose values they keep: the catalog was ahead of the stream when that was met"
)
_PERHAPS_ANOTHER = (
    "it may have been another column, dropped since, whose values they keep: the catalog was ahead of the stream when"
    " the column was met"
)
REWRITTEN = (
    "the table was written anew since, so that each row may have its own (a default that is computed for each row, an"
    " identity column), or the catalog no longer tells (VACUUM FULL, CLUSTER, another type)"
)
GENERATED = "each row has its own, computed from its other columns"


@dataclass(frozen=True, slots=True)
class StoredAttribute:
    """A column of a table as the catalog has it now, by its attribute number; one that was dropped keeps its number."""

    number: int
    name: str
    dropped: bool
    generated: bool
    native_type: str


class StorageCatalog(Protocol):
    def stored_attributes(self, relation: int) -> list[StoredAttribute]: ...

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
    known = {c.origin for c in versions[-1].columns} - {""}
    asked = any(c.origin not in known for c in table.columns)
    attributes = catalog.stored_attributes(relation) if asked else ()
    placed = {} if all(c.origin for c in table.columns) else _place(table, before, attributes)
    columns = tuple(
        c if c.origin
        else replace(c, origin=f"{mine}{placed[c.name].number}") if c.name in placed
        else replace(c, origin=latest[c.name].origin) if c.name in latest
        else c
        for c in table.columns
    )  # fmt: skip
    there = {c.name for c in table.columns}
    # Of these it is not known which columns they were: one that comes now may be one of them.
    lost = [name for name, c in latest.items() if not c.origin and name not in there]
    names: dict[str, dict[str, None]] = {}  # all that a column was called, in the order of the versions
    for column in (c for version in versions for c in version.columns if c.origin):
        names.setdefault(column.origin, {})[column.name] = None
    return replace(
        table,
        columns=tuple(
            c
            if c.origin in names or not met
            else replace(
                c,
                initial=initial(c)
                or _initial(
                    c, relation, catalog, schemas, lost, placed, doubtful=_may_be_another(c, names, attributes)
                ),
            )
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


def _place(table: Table, before: Table | None, attributes: Sequence[StoredAttribute]) -> dict[str, StoredAttribute]:
    """Which columns of the catalog an announced table has, whatever they are called by now: empty where that is not
    sure. `before` is how the table was until then.

    Columns stand in the order of their numbers, and a new one gets the next. If none was dropped since `before`, those
    that were there are still there, so that the table has the first of them all, as many as were announced.
    """
    known = [_number(c.origin) for c in before.columns if c.origin] if before is not None else []
    if before is None or not known or len(known) < len(before.columns):
        return {}
    here = [each for each in attributes if not each.dropped]
    names = {each.name: each.number for each in here}
    found = dict(zip((c.name for c in table.columns), here, strict=False))
    was_whole = known == [each.number for each in here if each.number <= max(known)]  # else some are not published
    dropped = any(each.dropped and each.number > max(known) for each in attributes)
    hidden = any(each.generated and each.name not in found for each in here)
    if dropped or hidden or not was_whole or not len(known) <= len(table.columns) <= len(here):
        return {}
    # Not proof, but two more reasons for doubt where it is not all of them: a name that is another column's now, and
    # another type.
    sure = len(table.columns) == len(here) or all(
        names.get(c.name, found[c.name].number) == found[c.name].number
        and (c.name == found[c.name].name or c.type.native == found[c.name].native_type)
        for c in table.columns
    )
    return found if sure else {}


def _may_be_another(column: Column, known: Iterable[str], attributes: Sequence[StoredAttribute]) -> bool:
    """Whether there was a column meanwhile that could have had this one's name: dropped by now, and never announced.
    `known` are the origins of those that were. The stream does not say anything of it if the two are of one type."""
    number = _number(column.origin)
    last = max(map(_number, known), default=0)
    return any(each.dropped and last < each.number < number for each in attributes)


def _number(origin: str) -> int:
    return int(origin.partition(".")[2] or 0)


def _initial(
    column: Column, relation: int, catalog: StorageCatalog, schemas: Schemas, lost: Sequence[str],
    placed: Mapping[str, StoredAttribute], *, doubtful: bool,
) -> Initial:  # fmt: skip
    if column.generated:
        return Initial(unknown=GENERATED)
    if lost:
        return Initial(unknown=_PERHAPS_RENAMED.format(" or ".join(f'"{name}"' for name in lost)))
    if doubtful:
        return Initial(unknown=_PERHAPS_ANOTHER)
    document = schemas.recall(_name(relation))
    if not column.origin or document is None:
        return Initial(unknown=_CATALOG_NEWER)
    before = {int(oid): file for oid, file in orjson.loads(document).items()}
    now = catalog.storage(relation)
    # Tables that were there before the column: partitions that came since brought it with them.
    shared = [oid for oid in before if oid in now]
    missing = catalog.missing(shared, placed[column.name].name if column.name in placed else column.name)
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
