"""Both backends: a SQLite file, and a schema of a real PostgreSQL."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidemill.contracts import StateStore
from tidemill.lab.servers.postgres import Postgres
from tidemill.state import open_store

Opener = Callable[[], StateStore]

_names = itertools.count(1)


@pytest.fixture(params=["sqlite", "postgres"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield str(tmp_path / "state" / "state.sqlite")
        return
    server: Postgres = request.getfixturevalue("postgres18")
    with server.database(f"state_{next(_names)}") as dsn:
        yield dsn


@pytest.fixture
def opener(uri: str) -> Iterator[Opener]:
    """Each call is another process, as far as the store can tell."""
    opened: list[StateStore] = []

    def another() -> StateStore:
        opened.append(open_store(uri))
        return opened[-1]

    yield another
    for store in opened:
        store.close()
