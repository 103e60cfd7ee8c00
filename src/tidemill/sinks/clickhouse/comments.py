"""The comment of a column: the source's type, what the source knows the column by, and what rows could not follow.

source: numeric(12,2) not null #16384.3 | tidemill: rows that did not change since offset 12 keep NULL here: …
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.net.clickhouse import quote
from tidemill.sinks.clickhouse.types import ClickHouseType

COMMENT = re.compile(r"source: (.*?)(?: #(\d+\.\d+))?(?: \| (tidemill: .*))?", re.DOTALL)


def rename(pairs: list[tuple[str, str]], kinds: dict[str, ClickHouseType], actions: list[str]) -> list[tuple[str, str]]:
    """What can be renamed one after the other, so that several lanes may do it at once; answers the rest."""
    left = [(was, now) for was, now in pairs if was in kinds]
    while free := [(was, now) for was, now in left if now not in kinds]:
        for was, now in free:
            kinds[now] = kinds.pop(was)
            actions.append(f"RENAME COLUMN IF EXISTS {quote(was)} TO {quote(now)}")
        left = [pair for pair in left if pair not in free]
    return left


def find_exchanged(table: Table, natives: Mapping[str, str], origins: Mapping[str, str]) -> list[tuple[str, str]]:
    """Columns that a statement gave each other's names, where the source knows them by nothing else."""
    olds = {was for was, _ in table.renamed}
    both = [(was, now) for was, now in table.renamed if now in olds and was in natives and now in natives]
    return [] if origins and any(c.origin for c in table.columns) else both


def elsewhere(table: Table, origins: Mapping[str, str]) -> set[str]:
    """Columns of an older structure whose names another column has now, or which have another name. Of another table
    that had the name before, columns go by their names."""
    of = {origin: name for name, origin in origins.items()}
    if not any(c.origin in of for c in table.columns):
        return set()
    return {
        c.name
        for c in table.columns
        if c.origin and (of.get(c.origin, c.name) != c.name or origins.get(c.name, c.origin) != c.origin)
    }


def is_taken(was: str, now: str, wanted: Collection[str], there: Collection[str], ours: Collection[str]) -> bool:
    """Whether a column that was renamed finds one of its new name that somebody else made."""
    return was in there and was not in wanted and now in wanted and now in there and now not in ours


def release(column: str, kind: ClickHouseType) -> str:
    """The column stays, with the values of rows that cannot follow, and is not ours any more. Later rows have nothing
    for it: NULL says so, a zero would not."""
    if kind.nullable or kind.element is not None:
        return f"COMMENT COLUMN {quote(column)} ''"
    return f"MODIFY COLUMN {quote(column)} {replace(kind, nullable=True)} COMMENT ''"


def native(column: Column) -> str:
    return f"{column.type.native}{'' if column.nullable else ' not null'}"


def text(kind: str, origin: str, said: str = "") -> str:
    return f"source: {kind}{f' #{origin}' if origin else ''}{f' | {said}' if said else ''}"


def table_of_notes(natives: Mapping[str, str], origins: Mapping[str, str]) -> Table:
    """The columns we made, under the types the source had for them: what the next structure is compared with."""
    return Table("", "", "", tuple(pseudo(name, kind, origins.get(name, "")) for name, kind in natives.items()))


def pseudo(name: str, native: str, origin: str) -> Column:
    import pyarrow as pa

    return Column(name, DataType(native, pa.null(), JsonForm.STRING), origin=origin)
