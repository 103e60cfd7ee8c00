"""Which tables are meant: names and patterns of the configuration, matched against the catalog.

public.orders            one table; a name without a dot is in schema public
public.*                 every table of the schema
public.ord%              every table that begins so (`*` and `%` both stand for anything)
"My Schema"."a.b*c"      a quoted part is taken literally
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from tidemill.errors import ConfigError
from tidemill.sources._pg_errors import TableMissing

_PART = r'"(?:[^"]|"")+"|[^".]+'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index"}


@dataclass(frozen=True, slots=True)
class Found:
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


@dataclass(frozen=True, slots=True)
class Pattern:
    text: str
    schema: re.Pattern[str]
    name: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> Pattern:
        found = _NAME.fullmatch(text)
        if not found:
            raise ConfigError(
                f'"{text}" is not a table name or pattern',
                fix='Write schema.table, schema.*, schema.prefix% or "a"."b".',
            )
        return cls(text, _matcher(found[1] or "public"), _matcher(found[2]))

    def matches(self, table: Found) -> bool:
        return bool(self.schema.fullmatch(table.schema) and self.name.fullmatch(table.name))


def _matcher(part: str) -> re.Pattern[str]:
    if part.startswith('"'):
        return re.compile(re.escape(part[1:-1].replace('""', '"')))
    return re.compile("".join(".*" if c in "*%" else re.escape(c) for c in part), re.DOTALL)


def find(db: psycopg.Connection, patterns: Sequence[str], where: str) -> list[Found]:
    """The tables to publish, in order of name, each once; partitions are replaced by the table they belong to.

    No pattern at all means every table. A pattern that matches nothing is `TableMissing`: silence would look like
    a quiet table.
    """
    relations = _relations(db)
    tables = [r for r in relations if r.kind in "rp" and r.persistence == "p"]
    by_oid = {r.oid: r for r in tables}
    chosen: dict[int, Found] = {}
    for pattern in [Pattern.parse(text) for text in patterns] or [Pattern.parse("*.*")]:
        matched = [by_oid.get(t.root, t) for t in tables if pattern.matches(t)]
        if not matched:
            raise _missing(pattern, relations, where)
        chosen.update((table.oid, table) for table in matched)
    return sorted(chosen.values(), key=lambda t: (t.schema, t.name))


def _relations(db: psycopg.Connection) -> list[Found]:
    rows = db.execute(
        """
        SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
               CASE WHEN c.relispartition THEN pg_partition_root(c.oid)::oid ELSE c.oid END
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
          AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
        """
    )
    return [Found(*row) for row in rows]


def _missing(pattern: Pattern, relations: Sequence[Found], where: str) -> TableMissing:
    other = next((r for r in relations if pattern.matches(r)), None)
    if other is not None:
        reason = _KINDS.get(other.kind, "an unlogged table" if other.persistence == "u" else "a temporary table")
        return TableMissing(
            f"{other.full_name} is {reason}: PostgreSQL does not log its changes",
            where=where,
            fix="Name a plain table.",
        )
    names = [r.full_name for r in relations if r.kind in "rp"]
    near = difflib.get_close_matches(pattern.text, names, n=1)
    hint = f"Did you mean {near[0]}? " if near else ""
    return TableMissing(
        f'no table matches "{pattern.text}"', where=where,
        fix=f'{hint}Create it first, or correct `tables` (names are case-sensitive, a name alone is in "public").',
    )  # fmt: skip
