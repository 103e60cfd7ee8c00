"""A table of the target: what its catalog says of it, and how the rows of one structure go into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidemill.contracts import Notice
from tidemill.errors import Refused
from tidemill.model.table import Table
from tidemill.sinks.postgres.exact import Doubt

if TYPE_CHECKING:
    from psycopg import sql

    from tidemill.sinks._shared.pg_client import Connection

_LONGEST_NAME = 63  # bytes; PostgreSQL cuts longer names off, and two could become one
CREATE_STATE = """
CREATE TABLE IF NOT EXISTS {table} (
    schema_name text NOT NULL,
    table_name text NOT NULL,
    source json NOT NULL,
    PRIMARY KEY (schema_name, table_name)
)
"""
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attgenerated <> '', a.attidentity = 'a',
    coalesce(col_description(a.attrelid, a.attnum), ''),
    (WITH RECURSIVE base(kind, modifier, depth) AS (
        SELECT a.atttypid, a.atttypmod, 0
        UNION ALL
        SELECT t.typbasetype, t.typtypmod, depth + 1 FROM base JOIN pg_type t ON t.oid = base.kind AND t.typtype = 'd'
    ) SELECT format_type(kind, modifier) FROM base ORDER BY depth DESC LIMIT 1)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind IN ('r', 'p')
ORDER BY a.attnum
"""
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indnkeyatts HAVING count(*) = i.indnkeyatts
"""
_UNIQUE_INDEXES = """
SELECT array(SELECT pg_get_indexdef(i.indexrelid, n, true) FROM generate_series(1, i.indnkeyatts) n),
    coalesce(pg_get_expr(i.indpred, i.indrelid, true), 'true'),
    array(
        SELECT a.attname::text FROM pg_attribute a
        WHERE a.attrelid = i.indrelid AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS (
            SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))
    )
FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND i.indisunique AND i.indisvalid
ORDER BY i.indexrelid
"""
_REWRITE_RULES = """
SELECT r.rulename FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s AND r.ev_type <> '1' AND r.ev_enabled <> 'D'
"""


@dataclass(slots=True)
class Target:
    """A table that is ready to be written. `numbers` are the source's columns that it has, by their place there."""

    schema: str
    name: str
    table: Table
    numbers: tuple[int, ...]
    key: tuple[int, ...]
    counted: tuple[int, ...] = ()  # of them: GENERATED ALWAYS AS IDENTITY, which an INSERT may set and an UPDATE never
    doubts: tuple[Doubt, ...] = ()  # columns that may not keep a value as it is
    domains: Mapping[int, str] = field(default_factory=dict)  # what they are made of
    notices: tuple[Notice, ...] = ()
    names: tuple[str, ...] = ()  # of an older structure: what its columns are called now, "" where they are gone
    initials: Mapping[str, sql.Composed] = field(default_factory=dict)  # of columns since: what its new rows have there
    stage: str = ""
    optimistic: bool = True  # whether new rows may be tried as new rows

    @property
    def identifier(self) -> sql.Identifier:
        from psycopg import sql

        return sql.Identifier(self.schema, self.name)

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def column(self, number: int) -> str:
        return self.names[number] if self.names else self.table.columns[number].name


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target as its catalog has it."""

    kind: str
    not_null: bool
    generated: bool  # computed from other columns: not ours to write
    counted: bool  # GENERATED ALWAYS AS IDENTITY
    comment: str
    base: str  # the kind, or what it is a domain of


def columns(db: Connection, schema: str, name: str) -> dict[str, TargetColumn]:
    rows = db.execute(_COLUMNS, [schema, name]).fetchall()
    return {column: TargetColumn(*rest) for column, *rest in rows}


def has_unique(db: Connection, schema: str, name: str, key: tuple[str, ...]) -> bool:
    rows: list[Any] = db.execute(_UNIQUE, [schema, name]).fetchall()
    return any(set(found) == set(key) for (found,) in rows)


@dataclass(frozen=True, slots=True)
class TargetUnique:
    """`terms` and `predicate` are SQL over the bare names of the table's columns."""

    terms: tuple[str, ...]
    predicate: str
    columns: frozenset[str]  # that they use


def target_uniques(db: Connection, schema: str, name: str) -> tuple[TargetUnique, ...]:
    """All of a table, its key's too."""
    rows = db.execute(_UNIQUE_INDEXES, [schema, name]).fetchall()
    return tuple(TargetUnique(tuple(terms), predicate, frozenset(used)) for terms, predicate, used in rows)


def rewrite_rule(db: Connection, schema: str, name: str) -> str | None:
    """One that makes something else of what is written."""
    row = db.execute(_REWRITE_RULES, [schema, name]).fetchone()
    return row[0] if row else None


def check_names(schema: str, name: str, table: Table, where: str) -> None:
    for text in (schema, name, *(c.name for c in table.columns)):
        if not 0 < len(text.encode()) <= _LONGEST_NAME:
            raise Refused(
                f'"{text}" cannot be a name in PostgreSQL: it has {len(text.encode())} bytes', where=where,
                fix="Names have 1 to 63 bytes. Choose another `table`, or leave the column out.",
            )  # fmt: skip
