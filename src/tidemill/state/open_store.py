"""Which backend a URI means: a path is a SQLite file, `postgresql://` is a schema of that database."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tidemill.contracts import StateStore
from tidemill.errors import ConfigError
from tidemill.state.installation import InstallationStore
from tidemill.state.leases import LeaseStore
from tidemill.state.migrations import latest
from tidemill.state.registry_tables import StateRegistry
from tidemill.state.sqlite import SqliteState
from tidemill.state.store import Database, SqlStateStore


def open_store(uri: str) -> StateStore:
    """Connects on first use, and brings the store's tables up to date then."""
    return SqlStateStore(_database(uri))


def find_store(uri: str) -> StateStore | None:
    """For who only looks: None where there is no store yet, or one that was not opened since the last upgrade. Changes
    nothing."""
    database = _find_database(uri)
    return SqlStateStore(database) if database is not None else None


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """`version` of its tables, 0 where there are none yet; `latest` is ours. `problem`: why it could not be written."""

    where: str
    version: int
    latest: int
    problem: str = ""


def inspect_store(uri: str) -> StoreFacts:
    """Opens the store as it is and changes nothing. `StateError` if it cannot be opened, `StateTooNew` if a later
    version of Tidemill made it."""
    database = _database(uri, create=False)
    try:
        return StoreFacts(database.where, database.version(), latest(), database.write_problem())
    finally:
        database.close()


def open_database(uri: str, *, create: bool = True) -> Database:
    """The store itself, for who moves it as a whole. Without `create` its tables are left as they are."""
    return _database(uri, create=create)


def open_installation(uri: str) -> InstallationStore:
    """What a server keeps in the same store. Connects on first use, as `open_store`."""
    return InstallationStore(_database(uri), uri)


def open_leases(uri: str, *, seconds: float) -> LeaseStore:
    """Which server runs which pipeline, in the same store; its own connection gives up after `seconds`."""
    return LeaseStore(_database(uri, seconds=seconds))


def is_shared(uri: str) -> bool:
    """Whether several machines may use the store: a file is of one."""
    return "://" in uri


def is_same_store(one: str, other: str) -> bool:
    files = not is_shared(one) and not is_shared(other)
    return one == other or (files and Path(one).resolve() == Path(other).resolve())


def open_registry(uri: str, pipeline: str) -> StateRegistry:
    """The schema registry of a pipeline in the same store. Connects on first use, as `open_store`."""
    return StateRegistry(_database(uri), pipeline)


def find_registry(uri: str, pipeline: str) -> StateRegistry | None:
    """As `find_store`: None where the store is not there yet, or was not opened since the last upgrade."""
    database = _find_database(uri)
    return StateRegistry(database, pipeline) if database is not None else None


def _find_database(uri: str) -> Database | None:
    with ExitStack() as unused:
        database = _database(uri, create=False)
        unused.callback(database.close)
        if database.version() != latest():
            return None
        unused.pop_all()
        return database


def _database(uri: str, *, create: bool = True, seconds: float | None = None) -> Database:
    scheme, found, _ = uri.partition("://")
    if not found:
        return SqliteState(Path(uri), create=create)
    if scheme in ("postgresql", "postgres"):
        from tidemill.state.postgres import PostgresState  # loads the driver

        return PostgresState(uri, create=create, seconds=seconds)
    raise ConfigError(
        f'a state store of kind "{scheme}" does not exist',
        where="state_uri",
        fix="Give a postgresql:// URI, or nothing for state.sqlite in the state directory.",
    )
