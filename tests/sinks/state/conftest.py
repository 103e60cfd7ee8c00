"""One server of each kind for all tests here, a database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sinks.state.origins import mysql_origin, postgres_origin, target
from tests.sinks.state.support import Destination, clickhouse, databases, postgres_destination, starrocks
from tests.support.origin import session
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.starrocks_standin import StarRocks

__all__ = ["mysql_origin", "postgres_origin", "target"]  # fixtures


@pytest.fixture(scope="package")
def clickhouse_server() -> Iterator[ClickHouse]:
    with ClickHouse() as running:
        yield running


@pytest.fixture(scope="package")
def starrocks_server() -> Iterator[StarRocks]:
    with StarRocks() as running:
        yield running


@pytest.fixture(params=["clickhouse", "starrocks", "postgres"])
def there(request: pytest.FixtureRequest) -> Iterator[Destination]:
    name = f"state_{next(databases)}"
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres18")
        with server.database(name) as dsn, session(dsn) as db:
            made = postgres_destination(dsn, db)
            yield made
            made.close()
        return
    build = clickhouse if request.param == "clickhouse" else starrocks
    made = build(request.getfixturevalue(f"{request.param}_server"), name)
    yield made
    made.close()
