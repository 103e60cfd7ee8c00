"""Which primary keys the tables had, look by look. Under REPLICA IDENTITY FULL the stream does not name the key of a
row, and the catalog, which may be ahead of the stream, has only the key of now.

    note(db, slot, tables, schemas)      by the watch, at each look, and before the slot is made
    since(position, table, schemas)      by the source, when it meets a table

A key that a look found held until the look that found another one, at the latest. One that came and went between two
looks is not known.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import psycopg

from tidemill.contracts import Schemas
from tidemill.model.position import Position
from tidemill.sources.postgres.lsn import parse_lsn

KEYS = "postgres.keys"  # the document: of each table, by oid, its keys and until when they held, "" for the last one
_FIRST = "0/0"
_Keys = dict[str, list[tuple[list[str], str]]]


def note(
    db: psycopg.Connection, slot: str, tables: Iterable[int], schemas: Schemas, *, afresh: bool = False
) -> None:  # fmt: skip
    """Durable when it returns. `afresh` forgets the keys of before, as there is no slot yet that has rows of then."""
    found = _read(db, list(tables))
    known: _Keys = {} if afresh else _recall(schemas)
    changed = {table for table in known.keys() | found.keys() if _last(known, table) != found.get(table, [])}
    if not changed and not afresh:
        return
    # Asked for after the catalog. Commits that are not yet flushed count: they can be seen already.
    row = db.execute(
        """
        SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)::text,
               (SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s)
        """,
        [slot],
    ).fetchone()
    until, confirmed = row or (None, None)
    for table in changed:
        held = [(key, end or until or _FIRST) for key, end in known.get(table, [])]
        known[table] = [*held, (found[table], "")] if table in found else held
    done = parse_lsn(confirmed or _FIRST)  # nothing before it comes again
    kept = {table: [(key, end) for key, end in keys if _holds(end, done)] for table, keys in known.items()}
    schemas.remember(KEYS, orjson.dumps({table: keys for table, keys in kept.items() if keys}))


def since(position: Position, table: int, schemas: Schemas) -> list[tuple[str, ...]]:
    """The keys that rows after `position` may have had. Who changes a table's key waits for the transactions that write
    to it: their rows stand before it in the WAL."""
    held = _recall(schemas).get(str(table), [])
    return [tuple(key) for key, end in held if _holds(end, parse_lsn(position))]


def _recall(schemas: Schemas) -> _Keys:
    document = schemas.recall(KEYS)
    known: _Keys = orjson.loads(document) if document else {}
    return known


def _holds(end: str, position: int) -> bool:
    return not end or parse_lsn(end) >= position


def _last(known: _Keys, table: str) -> list[str]:
    key, end = known[table][-1] if known.get(table) else ([], "")
    return [] if end else key


def _read(db: psycopg.Connection, tables: list[int]) -> dict[str, list[str]]:
    rows = db.execute(
        """
        SELECT i.indrelid::text, array_agg(a.attname::text ORDER BY a.attnum)
        FROM pg_index i JOIN pg_attribute a
            ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0 : i.indnkeyatts - 1])
        WHERE i.indisprimary AND i.indrelid = ANY (%s::oid[]) GROUP BY 1
        """,
        [tables],
    ).fetchall()
    return dict(rows)
