"""Which tables are meant: names and patterns of the configuration, matched against the catalog.

public.orders            one table; a name without a dot is in schema public
public.*                 every table of the schema
public.ord%              every table that begins so (`*` and `%` both stand for anything)
"My Schema"."a.b*c"      a quoted part is taken literally
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tidemill.sources._shared.patterns import Pattern, Unmatched

PARTITIONS = """
    parts (root, oid) AS (
        SELECT r, r FROM unnest(%s::oid[]) r UNION ALL
        SELECT p.root, i.inhrelid FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid
        JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition)"""
"""Tables and all that are partitions of them, of whatever depth; after WITH RECURSIVE. pg_partition_tree would wait for
locks on them, and capture with it."""

_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table in the catalog; a partition is known by `root`, the table it belongs to in the end."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    root: int

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"


def parse(text: str) -> Pattern:
    return Pattern.parse(text, quote='"', default="public")


def find(db: psycopg.Connection, patterns: Sequence[str]) -> tuple[list[FoundTable], list[Unmatched]]:
    """The tables to publish, in order of name, each once; partitions are replaced by the table they belong to.

    No pattern at all means every table. A pattern that matches nothing is named: silence would look like a quiet table,
    and an error would make a pipeline unstartable because a table was dropped.
    """
    relations = _relations(db)
    tables = [r for r in relations if r.kind in "rp" and r.persistence == "p"]
    by_oid = {r.oid: r for r in tables}
    chosen: dict[int, FoundTable] = {}
    unmatched: list[Unmatched] = []
    for pattern in [parse(text) for text in patterns] or [parse("*.*")]:
        matched = [by_oid.get(t.root, t) for t in tables if pattern.matches(t.schema, t.name)]
        if not matched:
            unmatched.append(_unmatched_notice(pattern, relations))
        chosen.update((table.oid, table) for table in matched)
    return sorted(chosen.values(), key=lambda t: (t.schema, t.name)), unmatched


def _relations(db: psycopg.Connection) -> list[FoundTable]:
    rows = db.execute(
        """
        SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
               CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid ELSE c.oid END
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
        """
    )
    return [FoundTable(*row) for row in rows]


def _unmatched_notice(pattern: Pattern, relations: Sequence[FoundTable]) -> Unmatched:
    other = next((r for r in relations if pattern.matches(r.schema, r.name)), None)
    if other is not None:
        reason = _KINDS.get(other.kind, "an unlogged table" if other.persistence == "u" else "a temporary table")
        what = f"{other.full_name} is {reason}: PostgreSQL does not log its changes"
        return Unmatched(pattern, what, "Name a plain table in `tables`.")
    names = [r.full_name for r in relations if r.kind in "rp"]
    return Unmatched.yet(pattern, names, 'Names are case-sensitive, and a name alone is in "public".')
