"""A queue in a database of its own, and its consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.sinks.pgstream.support import Make
from tidemill.sinks.pgstream import Client, PgstreamConfig, PgstreamSink


@pytest.fixture
def db(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def make(database: str) -> Iterator[Make]:
    made: list[PgstreamSink] = []

    def build(**options: Any) -> PgstreamSink:
        made.append(PgstreamSink(PgstreamConfig(**{"id": "s", "dsn": database, "stream": "orders"} | options)))
        return made[-1]

    yield build
    for sink in made:
        sink.close()


@pytest.fixture
def client(database: str) -> Iterator[Client]:
    with Client(database) as made:
        made.install()
        yield made
