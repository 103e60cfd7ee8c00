"""Chunks of a table without a key: ranges of its pages, read by `ctid` (TID range scans, PostgreSQL 14 and later).

A row that is updated moves to another page, maybe into a range that was read before: then its event, which carries all
of it, is what brings it. So pages are used only where updates are published. What moves rows without an event writes
the table anew (VACUUM FULL, CLUSTER, some ALTER TABLE): then it has another file, and is read from its first page on.
"""

from __future__ import annotations

import psycopg

from tidemill.errors import StructureChanged
from tidemill.model.snapshot import Bound, Chunk
from tidemill.sources.postgres.relations import literal

_ROW_BYTES = 64  # of a table that was never analyzed
_TID_RANGES = 14_00_00
Pages = tuple[int, int, str]
"""How many there are, how many rows one has, and the table's file."""


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
