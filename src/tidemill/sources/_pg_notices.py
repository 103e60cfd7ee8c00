"""What is so now and should be known: tables that are not published, filters, kinds left out, patterns without a table.

Derived from each look at the catalog, kept nowhere: it goes when it is no longer so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tidemill.component import Notice
from tidemill.errors import TidemillError
from tidemill.sources import _pg_setup
from tidemill.sources._pg_published import KINDS, Published

if TYPE_CHECKING:
    from tidemill.sources.postgres import PostgresConfig


def standing(config: PostgresConfig, now: Published, refused: Mapping[str, TidemillError]) -> Iterator[Notice]:
    """`refused`: tables that we may add to the publication, and why that did not work."""
    publication, name = now.publication, config.publication_name
    for unmatched in now.unmatched:
        yield Notice("pattern-unmatched", unmatched.pattern.text, unmatched.what, unmatched.fix)
    if publication is not None and publication.missing_kinds:
        fix = f"If that is not meant, run as its owner: {_pg_setup.set_option(config, _ALL_KINDS)}."
        yield Notice("publication-partial", name, f'"{name}" leaves out {", ".join(publication.missing_kinds)}', fix)
    for unit in now.units.values():
        table = unit.table
        if not unit.published and (error := refused.get(unit.name)):
            yield Notice("table-unpublished", unit.name, f'it is not in publication "{name}": {error.what}', error.fix)
        elif not unit.published:
            statement = _pg_setup.addition(config, [unit.found]).as_string()
            fix = f"Run as the owner of both: {statement}. Until then none of its changes is captured."
            yield Notice("table-unpublished", unit.name, f'it is not in publication "{name}"', fix)
        elif unit.routes == {f"table {table.member}"}:  # who publishes all, or the schema, ignores both
            fix = "If that is not meant, take it out of the publication and add it without."
            if table.filter:
                yield Notice("table-filtered", unit.name, f"only rows are published with {table.filter}", fix)
            if table.columns:
                what = f"only these columns are published: {', '.join(table.columns)}"
                yield Notice("table-filtered", unit.name, what, fix)


_ALL_KINDS = f"publish = '{', '.join(KINDS)}'"
