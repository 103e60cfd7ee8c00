"""What real servers wrote into their binlogs is read with the tables of then."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import orjson
import pytest

from tests.decoders.mysql_schema.tables.support import QUERY, TABLE_MAP, Story, tables
from tests.support.mysqlbinlog import Event, statement
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.table_lookup import DdlChange
from tidemill.decoders.mysql_schema import MysqlTables, ServerCatalog
from tidemill.decoders.mysql_schema.catalog import CatalogDatabase
from tidemill.errors import DecodeError
from tidemill.model.table import Table
from tidemill.schema.registry import SchemaRegistry


def empty(story: Story) -> ServerCatalog:
    return ServerCatalog([CatalogDatabase("d", "utf8mb4")], [], story.start)


def shape_of(story: Story, event: Event) -> table_map.TableMap:
    return table_map.parse(event.body, mariadb=story.flavor is Flavor.MARIADB)


def replay(story: Story, made: MysqlTables, first: int = 0) -> Iterator[tuple[int, Table | DdlChange]]:
    """(number of the event, what became of it), from the event `first` on."""
    for number, event in enumerate(story.events[first:], first):
        if event.kind == TABLE_MAP:
            table = made.resolve(shape_of(story, event), event.place.text())
            if table is not None:
                yield number, table
        elif event.kind == QUERY:
            database, text = statement(event.body)
            for change in made.ddl(text, database, event.place.text()):
                yield number, change


def maps(story: Story) -> dict[int, tuple[str, tuple[str, ...], tuple[str, ...]]]:
    found = [n for n, e in enumerate(story.events) if e.kind == TABLE_MAP and shape_of(story, e).database == "d"]
    assert len(found) == len(story.then)
    return dict(zip(found, story.then, strict=True))


def _shown(table: Table) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return table.name, tuple(c.name for c in table.columns), table.key


def test_every_row_is_read_with_the_columns_that_its_table_had_then(story: Story, registry: SchemaRegistry) -> None:
    made = tables(story, registry)
    made.begin(story.start, lambda: empty(story), fresh=True)
    found = {number: _shown(item) for number, item in replay(story, made) if isinstance(item, Table)}
    assert found == maps(story)


def test_a_restart_at_any_place_reads_on_with_what_was_true_there(story: Story, registry: SchemaRegistry) -> None:
    made = tables(story, registry)
    made.begin(story.start, lambda: empty(story), fresh=True)
    whole = {number: item for number, item in replay(story, made) if isinstance(item, Table)}
    dice = Random(1)
    # Backwards, so that the registry is ahead of the place every time, as after a crash.
    for first in sorted(dice.sample(range(1, len(story.events)), 12), reverse=True):
        again = tables(story, registry)
        again.begin(story.events[first - 1].place, pytest.fail, fresh=False)
        found = {number: item for number, item in replay(story, again, first) if isinstance(item, Table)}
        assert found == {number: table for number, table in whole.items() if number >= first}


def test_an_old_place_without_a_history_is_read_right_or_not_at_all(story: Story, registry: SchemaRegistry) -> None:
    """The catalog is that of the end. What cannot be told from it and the statements since is an error, no guess."""
    expected = maps(story)
    right = 0
    for first in range(0, len(story.events), max(1, len(story.events) // 25)):
        made = tables(story, registry)
        place = story.events[first - 1].place if first else story.start
        later = [statement(e.body) for e in story.events[first:] if e.kind == QUERY]
        whole = story.catalog()
        made.begin(place, lambda: ServerCatalog(whole.databases, whole.tables, whole.at, since=later), fresh=True)  # noqa: B023
        try:
            for number, item in replay(story, made, first):
                if isinstance(item, Table):
                    assert _shown(item) == expected[number]
                    right += 1
        except DecodeError as error:
            assert "d.t" in error.what  # noqa: PT017
            assert "recover" in error.fix  # noqa: PT017
    assert right > 20


def test_ddl_events_tell_what_changed_and_name_the_table_as_it_is_afterwards(
    story: Story, registry: SchemaRegistry
) -> None:
    made = tables(story, registry)
    made.begin(story.start, lambda: empty(story), fresh=True)
    last: dict[str, Table] = {}
    for _, item in replay(story, made):
        if isinstance(item, Table):
            assert item.fingerprint == last[item.name].fingerprint, "rows of a structure that no event announced"
            continue
        document = orjson.loads(item.document)
        before, after = last.get(item.table.name), item.table
        if document["kind"] in ("create", "alter") and before is not None and before.columns:
            known = {c.name for c in before.columns}
            for change in document["changes"]:
                match change["change"]:
                    case "add":
                        assert change["column"] in {c.name for c in after.columns}
                    case "drop":
                        assert change["column"] in known
                    case "rename":
                        assert (change["from"], change["column"]) in after.renamed
            assert item.barrier or before.fingerprint == after.fingerprint
        last[item.table.name] = after
