"""Which backend a URI means: a path is a SQLite file, `postgresql://` is a schema of that database."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from tidemill.contracts import StateStore
from tidemill.errors import ConfigError
from tidemill.state.migrations import latest
from tidemill.state.sqlite import SqliteState
from tidemill.state.store import Database, SqlStateStore


def open_store(uri: str) -> StateStore:
    """Connects on first use, and brings the store's tables up to date then."""
    return SqlStateStore(_database(uri))


def find_store(uri: str) -> StateStore | None:
    """For who only looks: None where there is no store yet, or one that was not opened since the last upgrade. Changes
    nothing."""
    with ExitStack() as unused:
        database = _database(uri, create=False)
        unused.callback(database.close)
        if database.version() != latest():
            return None
        unused.pop_all()
        return SqlStateStore(database)


def _database(uri: str, *, create: bool = True) -> Database:
    scheme, found, _ = uri.partition("://")
    if not found:
        return SqliteState(Path(uri), create=create)
    if scheme in ("postgresql", "postgres"):
        from tidemill.state.postgres import PostgresState  # loads the driver

        return PostgresState(uri, create=create)
    raise ConfigError(
        f'a state store of kind "{scheme}" does not exist',
        where="state_uri",
        fix="Give a postgresql:// URI, or nothing for state.sqlite in the state directory.",
    )
