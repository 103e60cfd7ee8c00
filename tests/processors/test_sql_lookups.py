"""Lookups that the processor `sql` reads from a real PostgreSQL: loaded again by interval, kept while it is away."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from tests.support.blocks import make_block
from tidemill.errors import ConfigError, EnvironmentProblem
from tidemill.lab.servers.postgres import Postgres
from tidemill.processors.sql import SqlConfig, SqlProcessor
from tidemill.processors.sql import lookups as lookups_module
from tidemill.telemetry import events

TABLE = "CREATE TABLE regions (id bigint PRIMARY KEY, name text, rate numeric(12,4), since date, big numeric)"
JOIN = "SELECT events.id, r.name, r.rate FROM events LEFT JOIN regions r ON r.id = events.id"
_names = itertools.count()


@pytest.fixture
def dsn(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database(f"lookup_{next(_names)}") as dsn:
        execute(dsn, TABLE)
        yield dsn


@pytest.fixture
def join() -> Iterator[Callable[..., SqlProcessor]]:
    made: list[SqlProcessor] = []

    def make(dsn: str, query: str = "SELECT * FROM regions", *, reload_seconds: float = 1e-6) -> SqlProcessor:
        lookup = {"dsn": dsn, "query": query, "reload_seconds": reload_seconds}
        made.append(SqlProcessor(SqlConfig.model_validate({"id": "q", "query": JOIN, "lookups": {"regions": lookup}})))
        return made[-1]

    yield make
    for processor in made:
        processor.close()


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def joined(processor: SqlProcessor) -> list[Any]:
    [made] = processor.process(iter([make_block(2)]))
    return [(row["name"], row["rate"]) for row in made.batch.column("after").to_pylist()]


def test_a_table_is_joined_and_read_again_after_its_interval(dsn: str, join: Callable[..., SqlProcessor]) -> None:
    often, seldom = join(dsn), join(dsn, reload_seconds=3600)
    none = [(None, None), (None, None)]
    assert joined(often) == joined(seldom) == none, "an empty table has types too"
    execute(dsn, "INSERT INTO regions VALUES (0, 'north', 1.5, NULL, 1e9), (1, 'süd', 12345678.9, '2026-01-01', 0.1)")
    assert joined(often) == [("north", Decimal("1.5000")), ("süd", Decimal("12345678.9000"))]
    assert joined(seldom) == none
    execute(dsn, "DELETE FROM regions WHERE id = 0")
    assert joined(often)[0] == (None, None)


def test_a_server_that_is_away_leaves_the_lookup_as_it_was(
    private_postgres: Postgres, join: Callable[..., SqlProcessor], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(events.LOGGER, "propagate", True)
    dsn = private_postgres.create_database("away")
    execute(dsn, TABLE, "INSERT INTO regions VALUES (0, 'north', 1, NULL, 1)")
    processor, later = join(dsn), join(dsn)
    assert joined(processor)[0] == ("north", 1)
    private_postgres.stop()
    assert joined(processor)[0] == ("north", 1)
    assert "processor.lookup_not_reloaded" in [record.getMessage() for record in caplog.records]
    with pytest.raises(EnvironmentProblem, match='lookup "regions" cannot be loaded: OperationalError'):
        joined(later)
    [check] = later.doctor()
    assert check.outcome == "fail"
    private_postgres.start()
    execute(dsn, "UPDATE regions SET name = 'south'")
    assert joined(processor)[0] == joined(later)[0] == ("south", 1)


@pytest.mark.parametrize(
    ("query", "what"),
    [
        ("SELECT * FROM no_such", 'relation "no_such" does not exist'),
        ("SELECT id, name, rate, '{}'::json AS doc FROM regions", 'column "doc" is of type json: cast it'),
        ("DELETE FROM regions", "syntax error"),
        ("SELECT nextval('regions_id_seq')", "does not exist|read-only"),
    ],
)
def test_a_query_that_is_no_lookup_is_said_with_the_reason(
    dsn: str, join: Callable[..., SqlProcessor], query: str, what: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=what) as caught:
        joined(join(dsn, query))
    assert "cannot be loaded" in caught.value.what


def test_a_table_that_is_not_small_is_not_loaded(
    dsn: str, join: Callable[..., SqlProcessor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookups_module, "_MAX_BYTES", 1 << 20)
    endless = "SELECT n AS id, repeat('x', 1000) AS name, 0::numeric(12,4) AS rate FROM generate_series(1, 1000000) n"
    with pytest.raises(EnvironmentProblem, match="a lookup may have"):
        joined(join(dsn, endless))


def test_a_table_whose_columns_change_stops_the_pipeline(dsn: str, join: Callable[..., SqlProcessor]) -> None:
    processor = join(dsn)
    joined(processor)
    execute(dsn, "ALTER TABLE regions ALTER COLUMN name TYPE bigint USING NULL")
    with pytest.raises(ConfigError, match="other columns or types than before"):
        joined(processor)
