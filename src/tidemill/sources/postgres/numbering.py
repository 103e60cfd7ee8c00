"""From announced relations to numbered tables: with the catalog, the keys that they had, and their columns' past.

number(…)       by the stream, at an announcement
keep(…)         the same, of a table that is as in the baseline
register(…)     for rows that come by another way: a snapshot's
baseline(…)     before the slot is made: how tables are then
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import psycopg

from tidemill.contracts import Schemas
from tidemill.decoders.pgoutput import Relation, StreamPlace
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.sources.postgres import announced
from tidemill.sources.postgres.announced import AnnouncedTables
from tidemill.sources.postgres.catalog import RelationCatalog
from tidemill.sources.postgres.errors import NoReplicaIdentity
from tidemill.sources.postgres.lineage import remember, trace
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn
from tidemill.sources.postgres.publication import keys as key_history
from tidemill.sources.postgres.publication.published import Published, PublishedRelation
from tidemill.sources.postgres.relations import Announcer, announce
from tidemill.sources.postgres.resume import wal_end

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig


class TableNumbering:
    def __init__(self, config: PostgresConfig, catalog: RelationCatalog, connect: Callable[[], psycopg.Connection]):
        self._config, self._catalog = config, catalog
        self._announcer = Announcer(connect, config)

    def number(
        self, relation: Relation, type_names: Mapping[int, str], schemas: Schemas, place: StreamPlace, began: Position,
        before: Table | None = None,
    ) -> Table:  # fmt: skip
        """`place` is where it is met, `began` where the connection begins, `before` how the table was until then."""
        if place.tx:
            self._catalog.await_visible(place.tx)
        newest = schemas.newest(relation.full_name)
        keys = [*([newest.key] if newest else []), *key_history.since(began, relation.oid, schemas)]
        table = self._catalog.describe(relation, type_names, keys)
        return self.keep(relation, table, schemas, format_lsn(place.lsn), before)

    def keep(
        self, relation: Relation, table: Table, schemas: Schemas, position: Position, before: Table | None = None
    ) -> Table:
        """Of a description that there is already."""
        known = schemas.register(trace(table, relation.oid, self._catalog, schemas, before=before), position)
        remember(relation.oid, self._catalog, schemas)
        return known

    def register(
        self, tables: Sequence[Table], schemas: Schemas, position: Position, began: Position,
        known: AnnouncedTables | None,
    ) -> list[Table]:  # fmt: skip
        """As the stream would number them: with what is known of their columns' past. If a table has changed since it
        was described, its structure of now is the answer; the read of its first chunk finds that out."""
        said, found, place = self._announcer.announce(tables), [], StreamPlace(parse_lsn(position))
        with self._catalog.prefetch(said), schemas.together():
            for table, now in zip(tables, said, strict=True):
                if now is None:
                    found.append(schemas.register(table, position))
                    continue
                found.append(self.number(now, {}, schemas, place, began))
                if known is not None:
                    known.meet_in_snapshot(now, found[-1], parse_lsn(position))
        return found

    def baseline(self, db: psycopg.Connection, schemas: Schemas) -> None:
        """Which tables there are, and how: what the stream announces is compared with it."""
        lsn = wal_end(db)
        published = Published.read(db, self._config)
        publication = published.publication
        if publication is None:
            return
        columns = {each.oid: each.columns for each in _find_streamed(published, via_root=publication.via_root)}
        said = [
            each.relation for each in announce(db, columns, publication.oid, generated=publication.generated).values()
        ]
        with self._catalog.prefetch(said):
            announced.begin(schemas, [(relation, self._describe(relation)) for relation in said], lsn)
        self._catalog.close()

    def _describe(self, relation: Relation) -> Table | None:
        try:
            return self._catalog.describe(relation, {}).with_fingerprint()
        except NoReplicaIdentity:
            return None  # it stops capture, if a row of it comes

    def close(self) -> None:
        self._announcer.close()


def _find_streamed(published: Published, *, via_root: bool) -> Iterator[PublishedRelation]:
    """What the stream calls the rows of published tables."""
    for unit in published.units.values():
        if unit.published and (unit.table.kind == "r" or via_root):
            yield unit.table
        elif unit.published:
            yield from (published.relations[leaf] for leaf in unit.leaves)
