"""What a table of the postgres sink was made like before, and where the columns of an older structure are now.

Events of an older structure come again as dead letters, or after a rewind. Their columns are found by what they are and
not by their names, which other columns may have now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import orjson
import pyarrow as pa

from tidemill.model.position import Offset
from tidemill.model.table import Column, Initial, Table
from tidemill.schema.diff import diff

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._shared.pg_client import Connection

T = TypeVar("T")
_MOST_BEFORE = 1000

Writer = tuple[str, str]
"""The id of a source, and the full name of its table."""


@dataclass(frozen=True, slots=True)
class StructureMemory:
    """What the target was last made like, and the offset that this came with. `before` are the structures that it had
    until then; None where a version that did not note them made the table. `writers`: the source tables that have
    filled it."""

    table: Table | None = None
    since: Offset = 0
    before: tuple[str, ...] | None = ()
    writers: tuple[Writer, ...] = ()

    @classmethod
    def from_json(cls, text: str) -> StructureMemory:
        doc = orjson.loads(text)
        before = doc.get("before")
        return cls(
            Table.from_json(text), int(doc.get("since", 0)), None if before is None else tuple(before),
            tuple((source, table) for source, table in doc.get("writers", ())),
        )  # fmt: skip

    def to_json(self) -> str:
        assert self.table is not None
        doc = orjson.loads(self.table.to_json()) | {"since": self.since, "writers": self.writers}
        return orjson.dumps(doc if self.before is None else doc | {"before": self.before}).decode()

    def then(self, table: Table, since: Offset) -> StructureMemory:
        before = self.before
        if before is not None and self.table is not None:
            before = (*before, _digest(self.table))[-_MOST_BEFORE:]
        return StructureMemory(_with_initials(table, self.table), since, before, self.writers)

    def written_by(self, writer: Writer) -> StructureMemory:
        return self if writer in self.writers else replace(self, writers=(*self.writers, writer))

    def is_newer(self, table: Table, since: Offset, there: Collection[str], redelivered: bool) -> bool:
        """Whether the target has followed a later structure. An offset alone does not tell: a log that began anew
        counts from 0, and brings structures that the target never had. Those are followed."""
        known = self.table
        if known is None or since >= self.since:
            return False
        if known.fingerprint == table.fingerprint and not is_replaced(known, table):
            return False
        if redelivered:
            return True
        had = known.version > table.version if self.before is None else _digest(table) in self.before
        # A column that is nowhere any more is made again: without it, the values would be lost.
        return had and all(c.name in there for c in diff(table, known).dropped)


class StructureMemories:
    """What the targets of a database were made like, in `tidemill_tables`. Inside of the caller's transaction."""

    def __init__(self, db: Connection, state_schema: str) -> None:
        self._db, self._state = db, state_schema

    def recall(self, table: Table, schema: str, name: str) -> StructureMemory:
        found = self.read(schema, name)
        if found.table is not None and found.table.full_name == table.full_name:
            return found
        # Made like another table of the source: no column of this one was renamed or dropped since.
        return StructureMemory(writers=found.writers)

    def read(self, schema: str, name: str) -> StructureMemory:
        """Empty before the first delivery has made the sink's own tables."""
        from psycopg import sql

        state = sql.Identifier(self._state, "tidemill_tables")
        if self._db.execute("SELECT to_regclass(%s)", [state.as_string(self._db)]).fetchone() == (None,):
            return StructureMemory()
        row = self._db.execute(
            sql.SQL("SELECT source::text FROM {} WHERE schema_name = %s AND table_name = %s").format(state),
            [schema, name],
        ).fetchone()
        return StructureMemory() if row is None else StructureMemory.from_json(row[0])

    def remember(self, schema: str, name: str, memory: StructureMemory) -> None:
        from psycopg import sql

        self._db.execute(
            sql.SQL(
                "INSERT INTO {} (schema_name, table_name, source) VALUES (%s, %s, %s::json) "
                "ON CONFLICT (schema_name, table_name) DO UPDATE SET source = EXCLUDED.source"
            ).format(sql.Identifier(self._state, "tidemill_tables")),
            [schema, name, memory.to_json()],
        )


def is_replaced(known: Table, table: Table) -> bool:
    """Whether the same structure is of other columns than it was."""
    then, now = ([c.origin for c in t.columns] for t in (known, table))
    return all(then) and all(now) and then != now and bool(diff(known, table))


def _with_initials(table: Table, known: Table | None) -> Table:
    """A source tells once what rows from before a column have in it, with the structure that brought the column. Rows
    that come later from before that have it too, whatever changed since."""
    if known is None:
        return table
    change = diff(known, table)
    was = {c.name: c for c in known.columns} | {new.name: old for old, new in change.renamed}
    for column in (*change.added, *(new for _, new in change.replaced)):
        was.pop(column.name, None)
    return replace(
        table,
        columns=tuple(
            c if c.initial is not None or c.name not in was else replace(c, initial=_convert(was[c.name].initial, c))
            for c in table.columns
        ),
    )


def _convert(initial: Initial | None, column: Column) -> Initial | None:
    if initial is None or initial.value is None:
        return initial
    try:
        return Initial(initial.value.cast(column.type.arrow))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _digest(table: Table) -> str:
    parts = [table.fingerprint, *(c.origin for c in table.columns)]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:16]


def renames(
    pairs: list[tuple[str, str]], there: dict[str, T]
) -> tuple[list[tuple[str, sql.Composed]], list[tuple[str, str]]]:
    """All at once: a column that takes a name which another one gives up goes by a third name in between. Second, what
    cannot be renamed: the target has a column of the new name besides."""
    from psycopg import sql

    pairs, stuck = [(old, new) for old, new in pairs if old in there], []
    while taken := [pair for pair in pairs if pair[1] in there and pair[1] not in dict(pairs)]:
        stuck += taken
        pairs = [pair for pair in pairs if pair not in taken]
    detours = {old: f"tidemill_renamed_{n}" for n, (old, new) in enumerate(pairs) if new in there}
    moved = {new: there[old] for old, new in pairs}
    for old, _ in pairs:
        del there[old]
    there |= moved
    hops = list(detours.items())
    hops += [(old, new) for old, new in pairs if old not in detours]
    hops += [(detours[old], new) for old, new in pairs if old in detours]
    return [
        ("renamed", sql.SQL("RENAME COLUMN {} TO {}").format(sql.Identifier(old), sql.Identifier(new)))
        for old, new in hops
    ], stuck


def places(older: Table, newer: Table, there: Collection[str]) -> tuple[str, ...]:
    """What each column of the older structure is called at the target now; empty if it is gone, or another column has
    its name."""
    change = diff(older, newer)
    now = {was.name: column.name for was, column in change.renamed}
    gone = {was.name for was, _ in change.replaced}
    taken = {c.name for c in newer.columns}
    gone |= {c.name for c in change.dropped if c.name in taken}
    names = [now.get(c.name, "" if c.name in gone else c.name) for c in older.columns]
    return tuple(name if name in there else "" for name in names)
