"""A table of the catalog as the stream would announce it, for rows that come by another way: a snapshot's.

`signature` tells that it would be announced otherwise by now. It is asked again inside each chunk's transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from tidemill.decoders.pgoutput import Relation, RelationColumn
from tidemill.model.table import Table
from tidemill.sources.postgres.errors import translate
from tidemill.sources.postgres.publication.published import Published

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig

_FRESH_SECONDS = 2.0

# Everything that the structure of a published table follows from. `tables` and `publication` are oids.
_SIGNATURE = """
SELECT {more}md5(concat_ws('|', n.nspname, c.relname, c.relreplident,
    (SELECT string_agg(concat_ws(',', attnum, attname, atttypid, atttypmod, attnotnull, attgenerated), ';'
                       ORDER BY attnum)
     FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
    (SELECT string_agg(concat_ws(',', indexrelid, indkey, indisprimary, indisreplident), ';' ORDER BY indexrelid)
     FROM pg_index WHERE indrelid = c.oid AND (indisprimary OR indisreplident)),
    (SELECT concat_ws(',', m.oid) FROM pg_publication_rel m WHERE m.prrelid = c.oid AND m.prpubid = {publication})))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid IN ({tables})
"""
_HEAD = "c.oid::int8, n.nspname, c.relname, c.relreplident::text, "

_COLUMNS = """
SELECT a.attrelid::int8, a.attname, a.atttypid::int8, a.atttypmod, a.attgenerated::text,
       format_type(a.atttypid, a.atttypmod),
       coalesce(a.attnum = ANY (k.keys), false), coalesce(k.place, 0)
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN LATERAL (
    SELECT n.keys, array_position(n.keys, a.attnum) AS place FROM pg_index i
    CROSS JOIN LATERAL (SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS keys) n  -- not what it merely INCLUDEs
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END) k ON true
WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attrelid, a.attnum
"""


@dataclass(frozen=True, slots=True)
class AnnouncedRelation:
    """`key` and `key_types` are those of the index that identifies rows, in the order of that index."""

    relation: Relation
    key: tuple[str, ...]
    key_types: tuple[str, ...]
    signature: str


def signature_query(table: int, publication: int) -> str:
    return _SIGNATURE.format(more="", tables=int(table), publication=int(publication))


def announce(
    db: psycopg.Connection, tables: Mapping[int, Sequence[str]], publication: int, *, generated: bool
) -> dict[int, AnnouncedRelation]:
    """By oid, without those that are gone: two queries, whatever the number of tables. `tables` has the columns of a
    column list, none for all of them; `generated`: the publication has stored generated columns."""
    if not tables:
        return {}
    wanted = ", ".join(str(int(oid)) for oid in tables)
    # First: what changes between the two queries is another signature when the first chunk is read.
    heads = db.execute(_SIGNATURE.format(more=_HEAD, tables=wanted, publication=int(publication)).encode()).fetchall()
    columns: dict[int, list[Any]] = {}
    for oid, *column in db.execute(_COLUMNS, [list(tables)]):
        columns.setdefault(oid, []).append(column)
    return {
        oid: _announce(Relation(oid, schema, name, identity, ()), columns.get(oid, []), tables[oid], generated, mark)
        for oid, schema, name, identity, mark in heads
    }


def _announce(
    relation: Relation, found: Sequence[Any], published: Sequence[str], generated: bool, signature: str
) -> AnnouncedRelation:
    columns, key = [], []
    for column, type_oid, typmod, made, printed, in_key, place in found:
        if in_key:
            key.append((place, column, printed))
        if (column not in published) if published else (made and not (generated and made == "s")):
            continue
        identifies = relation.identity == "f" or (relation.identity in "di" and in_key)
        columns.append(RelationColumn(column, type_oid, typmod, identifies))
    key.sort()
    sent = {c.name for c in columns}
    if not all(column in sent for _, column, _ in key):
        key = []  # rows of the log cannot be told apart by what is not published
    return AnnouncedRelation(
        replace(relation, columns=tuple(columns)), tuple(column for _, column, _ in key),
        tuple(kind for *_, kind in key), signature,
    )  # fmt: skip


class Announcer:
    """How the stream would announce tables now. One look at the publication serves all that are asked for together."""

    def __init__(self, connect: Callable[[], psycopg.Connection], config: PostgresConfig) -> None:
        self._connect, self._config = connect, config
        self._db: psycopg.Connection | None = None
        self._seen: tuple[float, Published] | None = None

    def announce(self, tables: Sequence[Table]) -> list[Relation | None]:
        """None for one that is not published any more."""
        with translate(self._config.where):
            if self._db is None or self._db.closed or self._db.broken:
                self._db = self._connect()
                self._seen = None
            if self._seen is None or time.monotonic() - self._seen[0] > _FRESH_SECONDS:
                self._seen = time.monotonic(), Published.read(self._db, self._config)
            published = self._seen[1]
            publication = published.publication
            if publication is None:
                return [None] * len(tables)
            oids = {(r.schema, r.name): r.oid for r in published.relations.values()}
            wanted = [oids.get((table.schema, table.name)) for table in tables]
            lists = {oid: published.relations[oid].columns for oid in wanted if oid is not None}
            said = announce(self._db, lists, publication.oid, generated=publication.generated)
        return [said[oid].relation if oid in said else None for oid in wanted]

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None


def literal(text: str, kind: str) -> str:
    return f"{sql.Literal(text).as_string()}::{kind}"


def identifier(*names: str) -> str:
    return sql.Identifier(*names).as_string()
