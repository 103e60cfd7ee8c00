"""One stand-in for all tests of the starrocks sink, a database for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sinks.starrocks.support import Bench
from tidemill.lab.servers.starrocks_standin import StarRocks


@pytest.fixture(scope="package")
def server() -> Iterator[StarRocks]:
    with StarRocks(password="secret") as running:
        yield running


@pytest.fixture
def bench(server: StarRocks) -> Iterator[Bench]:
    made = Bench(server)
    yield made
    made.close()
    server.start()
