"""Messages of our event triggers as events of captured tables. The decoder asks, at the place where one stands.

The tables are numbered here as they were at that place, with columns known by their attribute numbers: the catalog,
which may be ahead of the stream, is asked for names of types only (invariant 6).
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

from tidemill.contracts import Schemas
from tidemill.decoders.pgoutput import Relation, TableStatement
from tidemill.model.position import Position
from tidemill.model.table import Column, Initial, Table
from tidemill.sources.postgres import ddl_trigger
from tidemill.sources.postgres import tables as table_names
from tidemill.sources.postgres.catalog import RelationAttribute, RelationCatalog
from tidemill.sources.postgres.ddl_message import DdlMessage, DescribedTable
from tidemill.sources.postgres.lineage import GENERATED, REWRITTEN, initial_value, trace
from tidemill.sources.postgres.lsn import format_lsn
from tidemill.telemetry import events

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig


class SchemaStatements:
    """Of one connection."""

    def __init__(self, config: PostgresConfig, catalog: RelationCatalog, schemas: Schemas) -> None:
        self._config, self._catalog, self._schemas = config, catalog, schemas
        self._seal = ""
        self._patterns = [table_names.parse(text) for text in config.tables or ("*.*",)]

    def read(self, content: bytes, lsn: int) -> list[TableStatement]:
        """Of a table that was renamed two: under its old name and under its new one. `lsn` is where the transaction
        commits, as of rows."""
        try:
            message = DdlMessage.read(content)
        except (ValueError, KeyError, TypeError) as error:
            # Anybody may write a message with our prefix, and a later version another one. What changed is then known
            # from what the stream announces.
            events.warn("source.statement_not_read", error=repr(error), where=self._config.where)
            return []
        if not self._is_ours(message):
            events.warn("source.statement_forged", table=message.name, where=self._config.where)
            return []
        found, position = [], format_lsn(lsn)
        if message.before is not None and message.after is not None:  # what it was published by is not known of then
            before = replace(message.before, publications=message.after.publications)
            message = replace(message, before=before)
        if (message.after is None or message.renamed) and (known := self._last(message, position)) is not None:
            found.append(TableStatement(known, message.document()))
        if message.after is not None and self._captures(message.after):
            if message.before is not None:  # as it was: what a column was called is known from there
                self._register(message.before, position)
            relation, table = self._register(message.after, position)
            found.append(TableStatement(table, message.document(), relation))
        return found

    def _is_ours(self, message: DdlMessage) -> bool:
        """Anybody may write a message with our prefix; only our triggers know the token (ADR 54)."""
        seal = hashlib.sha256(message.token.encode()).hexdigest()
        if seal != self._seal:  # the triggers may have been made anew
            self._seal = self._catalog.ask(ddl_trigger.read_seal)
        return seal == self._seal

    def _last(self, message: DdlMessage, position: Position) -> Table | None:
        """The last structure under the name that is gone; None of a table that was never captured."""
        before = message.before
        known = self._schemas.newest(before.full_name if before is not None else message.name)
        if known is None and before is not None and self._captures(before):
            known = self._register(before, position)[1]
        return known

    def _captures(self, table: DescribedTable) -> bool:
        """In the publication, or about to be. Rows of a partition may come as those of its root."""
        given = table.publications.get(self._config.publication_name)
        if given is not None:
            return not (table.partition and given["root"])
        return not table.partition and any(pattern.matches(table.schema, table.name) for pattern in self._patterns)

    def _register(self, described: DescribedTable, position: Position) -> tuple[Relation, Table]:
        relation = described.relation_in(self._config.publication_name)
        attributes = {
            c.name: RelationAttribute(c.not_null, bool(c.generated), c.number in described.key, c.number)
            for c in described.columns
        }
        table = self._catalog.describe_as(relation, attributes)

        def initial(column: Column) -> Initial | None:
            return _initial(described, column)

        traced = trace(table, relation.oid, self._catalog, self._schemas, initial)
        return relation, self._schemas.register(traced, position)


def _initial(table: DescribedTable, column: Column) -> Initial | None:
    """Of a column that was added just now. A partitioned table has no rows itself, so that the catalog is asked."""
    if table.kind != "r":
        return None
    described = next(c for c in table.columns if c.name == column.name)
    if described.generated:
        return Initial(unknown=GENERATED)
    if described.has_missing or described.default_text is None:
        return initial_value(described.missing, column)
    return Initial(unknown=REWRITTEN)
