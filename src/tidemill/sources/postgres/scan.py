"""The catalog of captured tables as a whole, for comparison with the schema registry. `snapshot` calls it."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from tidemill.contracts.catalog_scan import CatalogScan, ScannedTable
from tidemill.model.table import Table
from tidemill.sources.postgres.catalog import RelationCatalog
from tidemill.sources.postgres.client import connect
from tidemill.sources.postgres.config import PostgresConfig
from tidemill.sources.postgres.errors import translate
from tidemill.sources.postgres.publication.published import Published, PublishedRelation, streamed_relations
from tidemill.sources.postgres.relations import announce

_DEFAULTS = """
SELECT a.attrelid, a.attname, a.attgenerated <> '', coalesce(pg_get_expr(d.adbin, d.adrelid), '')
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = ANY (%s) AND a.attnum > 0 AND NOT a.attisdropped
"""
_UNIQUE = """
SELECT i.indrelid, array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a
  ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = ANY (%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indrelid, i.indexrelid
"""


def scan_catalog(config: PostgresConfig, seconds: float) -> CatalogScan:
    with connect(config) as db, translate(config.where):
        db.silence_seconds = seconds + config.network_timeout_seconds  # type: ignore[attr-defined]  # of a PgSession
        db.execute("SELECT set_config('statement_timeout', %s, false)", [str(int(seconds * 1000))])
        published = Published.read(db, config)
        found = _streamed_tables(db, config, published)
        silent = [unit.table for unit in published.units.values() if unit.wanted and not unit.published]
        tables = _with_facts(db, [*found, *((relation, None) for relation in silent)])
    return CatalogScan({each.name: each for each in tables})


def _streamed_tables(
    db: psycopg.Connection, config: PostgresConfig, published: Published
) -> list[tuple[PublishedRelation, Table | None]]:
    """As the stream would announce them."""
    publication = published.publication
    if publication is None:
        return []
    catalog = RelationCatalog(lambda: db, config.where)
    relations = [each for unit in published.units.values() for each, _ in streamed_relations(published, unit)]
    lists = {relation.oid: relation.columns for relation in relations}
    said = announce(db, lists, publication.oid, generated=publication.generated)
    with catalog.prefetch(one.relation for one in said.values()):
        return [
            (relation, catalog.describe(said[relation.oid].relation, {}))
            for relation in relations
            if relation.oid in said and said[relation.oid].relation.columns
        ]


def _with_facts(
    db: psycopg.Connection, relations: Sequence[tuple[PublishedRelation, Table | None]]
) -> list[ScannedTable]:
    oids = [relation.oid for relation, _ in relations]
    defaults: dict[int, dict[str, str]] = {}
    expressions: dict[int, dict[str, str]] = {}
    for oid, column, generated, text in db.execute(_DEFAULTS, [oids]):
        (expressions if generated else defaults).setdefault(oid, {})[column] = text
    unique: dict[int, list[tuple[str, ...]]] = {}
    for oid, columns in db.execute(_UNIQUE, [oids]):
        unique.setdefault(oid, []).append(tuple(columns))
    return [
        ScannedTable(
            relation.full_name, table, defaults.get(relation.oid, {}), expressions.get(relation.oid, {}),
            tuple(unique.get(relation.oid, ())),
        )
        for relation, table in relations
    ]  # fmt: skip
