"""Chunks of a table: where ranges of its key end, or of its pages.

The server walks along the key's index to tell, which costs a fifth of reading the rows. A key of one integer column
with few gaps needs no walk: a range of so many values has at most so many rows.

A table without a key is read in ranges of its pages, by `ctid` (TID range scans, PostgreSQL 14 and later). A row that
is updated moves to another page, maybe into a range that was read before: then its event, which carries all of it, is
what brings it. So pages are used only where updates are published. What moves rows without an event writes the table
anew (VACUUM FULL, CLUSTER, some ALTER TABLE): then it has another file, and is read from its first page on.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg

from tidemill.errors import StructureChanged
from tidemill.model.snapshot import Bound, Chunk
from tidemill.sources.postgres.relations import identifier, literal

_INTEGERS = ("smallint", "integer", "bigint")
_FEWEST = 0.5  # of a range's values that have a row, on the average: chunks that are half empty cost less than the walk
_ROW_BYTES = 64  # of a table that was never analyzed
_TID_RANGES = 14_00_00
Pages = tuple[int, int, str]
"""How many there are, how many rows one has, and the table's file."""


@dataclass(frozen=True, slots=True)
class KeyRange:
    """Of one part of a table, when it was planned. `last` is its highest key: rows after it come by the stream, so that
    a table that grows has an end; None if it has no rows. `first` is the lowest one, of a key with few gaps only."""

    last: Bound | None
    first: int | None = None


_SYSTEM = "pg_catalog"
# What is no class of its own, as an enum or an array, is compared by the system's operators.
_OPERATORS = """
WITH RECURSIVE base (name, kind) AS (
    SELECT name, name::regtype::oid FROM unnest(%s::text[]) AS given (name)
    UNION ALL
    SELECT b.name, t.typbasetype FROM base b JOIN pg_type t ON t.oid = b.kind AND t.typtype = 'd'
)
SELECT b.name, n.nspname FROM base b
JOIN pg_opclass c ON c.opcintype = b.kind AND c.opcdefault
JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'btree'
JOIN pg_amop a ON a.amopfamily = c.opcfamily AND a.amopstrategy = 3 AND a.amoplefttype = b.kind
    AND a.amoprighttype = b.kind
JOIN pg_operator o ON o.oid = a.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
"""


def measure_keys(db: psycopg.Connection, relation: str, by: ChunkKey) -> KeyRange:
    key, types = by.names, by.types
    backwards = ", ".join(f"{identifier(column)} DESC" for column in key)
    row = db.execute(
        f"SELECT {_key_columns(key)} FROM ONLY {relation} ORDER BY {backwards} LIMIT 1".encode()
    ).fetchone()
    last = None if row is None else tuple(row)
    if last is None or len(key) != 1 or types[0] not in _INTEGERS:
        return KeyRange(last)
    estimate = f"(SELECT reltuples FROM pg_class WHERE oid = {literal(relation, 'regclass')})"
    row = db.execute(f"SELECT min({identifier(key[0])}), {estimate} FROM ONLY {relation}".encode()).fetchone()
    if row is None or row[0] is None or row[1] < _FEWEST * (int(last[0]) - row[0] + 1):  # -1: it was never analyzed
        return KeyRange(last)
    return KeyRange(last, int(row[0]))


def next_key(
    db: psycopg.Connection, relation: str, key: ChunkKey, known: KeyRange, after: Bound | None, rows: int
) -> Bound | None:
    """The last key of the range of at most `rows` rows after `after`; None if it is the last range."""
    if known.first is not None and known.last is not None:
        end = (known.first - 1 if after is None else int(after[0])) + rows
        return (str(end),) if end < int(known.last[0]) else None
    conditions = [key.compare(">", after)] if after is not None else []
    conditions += [key.compare("<=", known.last)] if known.last is not None else []
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = ", ".join(identifier(name) for name in key.names)
    walk = f"SELECT {_key_columns(key.names)} FROM ONLY {relation}{where} ORDER BY {order} OFFSET {rows - 1} LIMIT 1"
    row = db.execute(walk.encode()).fetchone()
    return None if row is None or tuple(row) == known.last else tuple(row)


@dataclass(frozen=True, slots=True)
class ChunkKey:
    """By what rows are ordered. `schemas`: where the operators of each column's type are; none: all are the system's.
    Sessions have no search path, so that those of an extension (ltree, citext) are found by their full name only."""

    names: Sequence[str]
    types: Sequence[str]
    schemas: Sequence[str] = ()

    def compare(self, operator: str, bound: Bound) -> str:
        names = [identifier(name) for name in self.names]
        values = [literal(text, kind) for text, kind in zip(bound, self.types, strict=True)]
        if all(schema == _SYSTEM for schema in self.schemas):
            return f"({', '.join(names)}) {operator} ({', '.join(values)})"
        return self._by_column(names, values, operator)

    def _by_column(self, names: Sequence[str], values: Sequence[str], operator: str) -> str:
        """A comparison of rows has the operators of one schema. a > 1 OR (a = 1 AND b > 2) is the same; the first
        column's own condition is implied, but the server finds a range by it."""

        def one(at: int, sign: str) -> str:
            return f"{names[at]} OPERATOR({identifier(self.schemas[at])}.{sign}) {values[at]}"

        last = len(names) - 1
        if operator == "=":
            return f"({' AND '.join(one(at, '=') for at in range(last + 1))})"
        if not last:
            return one(0, operator)
        ways = [
            " AND ".join(
                [*(one(before, "=") for before in range(at)), one(at, operator if at == last else operator[0])]
            )
            for at in range(last + 1)
        ]
        return f"({one(0, operator[0] + '=')} AND ({' OR '.join(f'({way})' for way in ways)}))"


def operator_schemas(db: psycopg.Connection, types: Collection[str]) -> dict[str, str]:
    """Of types by their full names: the schema of the operators that the type is ordered by."""
    outside = sorted(kind for kind in types if "." in kind)  # without a search path the system's own have no dot
    rows = db.execute(_OPERATORS, [outside]).fetchall() if outside else []
    return dict(rows)


def _key_columns(key: Sequence[str]) -> str:
    """Under names of their own: ORDER BY would take a column of the answer, which is text."""
    return ", ".join(f"{identifier(name)}::text AS tidemill_{n}" for n, name in enumerate(key))


def measure_pages(db: psycopg.Connection, relation: str) -> Pages | None:
    """None where the server cannot read a range of pages."""
    if db.info.server_version < _TID_RANGES:
        return None
    row = db.execute(
        "SELECT pages, CASE WHEN tuples < 0 THEN page / %s ELSE tuples / greatest(pages, 1) END, file FROM"
        " (SELECT pg_relation_size(oid) / current_setting('block_size')::int AS pages, reltuples AS tuples,"
        " current_setting('block_size')::int AS page, pg_relation_filenode(oid)::text AS file"
        " FROM pg_class WHERE oid = %s::regclass) AS measured",
        [_ROW_BYTES, relation],
    ).fetchone()
    return None if row is None else (int(row[0]), max(1, int(row[1])), str(row[2]))


def next_bound(pages: Pages, after: Bound | None, rows: int) -> Bound | None:
    """A bound is the first page that does not belong to the chunk, and the table's file."""
    count, density, file = pages
    end = (int(after[0]) if after is not None else 0) + max(1, rows // density)
    return (str(end), file) if end < count else None


def page_conditions(chunk: Chunk) -> list[str]:
    found = [] if chunk.lower is None else [f"ctid >= '({int(chunk.lower[0])},0)'"]
    return found if chunk.upper is None else [*found, f"ctid < '({int(chunk.upper[0])},0)'"]


def file_query(relation: str) -> str:
    return f"SELECT pg_relation_filenode({literal(relation, 'regclass')})::text"


def check_file(chunk: Chunk, file: str, where: str) -> None:
    bound = chunk.lower or chunk.upper
    if bound is not None and bound[1] != file:
        raise StructureChanged(f"{chunk.table} was written anew: its rows are in other pages", where=where)
