"""What is so now and should be known: tables that are not published or have no replica identity, filters, kinds left
out, patterns without a table.

Derived from each look at the catalog, kept nowhere: it goes when it is no longer so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidemill.contracts import Notice
from tidemill.errors import TidemillError
from tidemill.sources.postgres import setup
from tidemill.sources.postgres.publication.published import KINDS, Published, PublishedRelation

if TYPE_CHECKING:
    from tidemill.sources.postgres.config import PostgresConfig


def list_notices(config: PostgresConfig, now: Published, refused: Mapping[str, TidemillError]) -> Iterator[Notice]:
    """`refused`: tables that we may add to the publication, and why that did not work."""
    publication, name = now.publication, config.publication_name
    for unmatched in now.unmatched:
        yield Notice("pattern-unmatched", unmatched.pattern.text, unmatched.what, unmatched.fix)
    if publication is not None and publication.missing_kinds:
        fix = f"If that is not meant, run as its owner: {setup.set_option(config, _ALL_KINDS)}."
        yield Notice("publication-partial", name, f'"{name}" leaves out {", ".join(publication.missing_kinds)}', fix)
    for unit in now.units.values():
        table = unit.table
        if not unit.published and (error := refused.get(unit.name)):
            yield Notice("table-unpublished", unit.name, f'it is not in publication "{name}": {error.what}', error.fix)
        elif not unit.published:
            statement = setup.addition(config, [unit.found]).as_string()
            fix = f"Run as the owner of both: {statement}. Until then none of its changes is captured."
            yield Notice("table-unpublished", unit.name, f'it is not in publication "{name}"', fix)
        elif unit.routes == {f"table {table.member}"}:  # who publishes all, or the schema, ignores both
            fix = "If that is not meant, take it out of the publication and add it without."
            if table.filter:
                yield Notice("table-filtered", unit.name, f"only rows are published with {table.filter}", fix)
            if table.columns:
                what = f"only these columns are published: {', '.join(table.columns)}"
                yield Notice("table-filtered", unit.name, what, fix)


def without_identity(
    config: PostgresConfig, table: PublishedRelation, error: TidemillError | None, *, usable: bool
) -> Notice:  # fmt: skip
    """`error`: why it could not be set, None if it is not ours to set."""
    what = "it is published and has no replica identity: its updates and deletes fail"
    if usable:
        what = "its replica identity is not FULL, so that old rows have only their key"
    if error is not None:
        what = f"{what}. It could not be set, and is tried again: {error.what}"
    statement = setup.full_identity(table.schema, table.name).as_string()
    fix = f"Run as its owner: {statement}"
    if config.replica_identity == "keep":
        fix = f"Add a primary key, or run as its owner: {statement}; or set replica_identity: auto"
    return Notice("table-without-identity", table.full_name, what, f"{fix}.")


_ALL_KINDS = f"publish = '{', '.join(KINDS)}'"
