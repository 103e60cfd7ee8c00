"""One server for all tests of the clickhouse sink, a database for each."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.sinks.clickhouse.support import Bench
from tidemill.lab.servers.clickhouse_standin import ClickHouse


@pytest.fixture(scope="package")
def server() -> Iterator[ClickHouse]:
    with ClickHouse(password="secret") as running:
        yield running


@pytest.fixture
def database(server: ClickHouse) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex[:8]}"
    yield name
    server.start()
    server.query(f"DROP DATABASE IF EXISTS {name}")


@pytest.fixture
def bench(server: ClickHouse, database: str) -> Iterator[Bench]:
    made = Bench(server, database)
    yield made
    made.close()
