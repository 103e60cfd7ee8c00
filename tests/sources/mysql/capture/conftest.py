"""A private server of each kind, with a database for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysql.capture.support import TABLE, names
from tidemill.lab.servers.mysql_family import Server


@pytest.fixture(scope="package", params=KINDS)
def private(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param) as server:
        yield server


@pytest.fixture
def shop(private: Server) -> Iterator[str]:
    """A database of the test's own."""
    name = f"shop{next(names)}"
    with private.database(name):
        private.query(TABLE.format("t"), database=name)
        yield name
