"""The watch looks often here, at PostgreSQL 18."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.postgres.publication.support import Make, Watched
from tidemill.lab.servers.postgres import Postgres
from tidemill.sources.postgres.publication import watch as watching


@pytest.fixture(params=["18"], ids=["pg18"])
def postgres(request: pytest.FixtureRequest) -> Postgres:
    server: Postgres = request.getfixturevalue(f"postgres{request.param}")
    return server


@pytest.fixture(autouse=True)
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes looks slow, and slow looks rare: not here."""
    monkeypatch.setattr(watching, "_SHARE", 1)


@pytest.fixture
def watched(database: str, tmp_path: Path) -> Make:
    return lambda *tables, **options: Watched(database, tmp_path, *tables, **options)
