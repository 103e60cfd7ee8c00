"""A source, a target and sinks between them, on each version of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.sinks.postgres.support import Make, numbers
from tests.support.origin import Origin, origin, session
from tidemill.lab.servers.postgres import Postgres
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig


@pytest.fixture
def source(postgres: Postgres) -> Iterator[Origin]:
    with origin(postgres, f"origin_{next(numbers)}") as made:
        yield made


@pytest.fixture
def target(database: str) -> Iterator[psycopg.Connection[Any]]:
    with session(database) as db:
        yield db


@pytest.fixture
def make(database: str) -> Iterator[Make]:
    made: list[PostgresSink] = []

    def build(**options: Any) -> PostgresSink:
        made.append(PostgresSink(PostgresSinkConfig(**{"id": "s", "dsn": database} | options)))
        return made[-1]

    yield build
    for sink in made:
        sink.close()
