"""The rows of one pipeline's schema registry in a SQLite file: `contracts.RegistryDatabase`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

from tidemill.contracts.registry_database import RegistryStatements, RegistryTables
from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import RegistryError

_SCHEMA = """
CREATE TABLE IF NOT EXISTS versions (
    sequence      INTEGER PRIMARY KEY AUTOINCREMENT,
    name          TEXT NOT NULL,
    version       INTEGER NOT NULL,
    fingerprint   TEXT NOT NULL,
    position      TEXT NOT NULL,
    registered_at TEXT NOT NULL,
    document      BLOB NOT NULL,
    UNIQUE (name, version),
    UNIQUE (name, fingerprint)
);
CREATE TABLE IF NOT EXISTS structures (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    position TEXT NOT NULL,
    name     TEXT NOT NULL,
    document BLOB
);
CREATE TABLE IF NOT EXISTS memory (
    name     TEXT PRIMARY KEY,
    document BLOB NOT NULL
);
"""


class RegistryFileTables:
    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.tables = RegistryTables()
        self._file = SqliteFile(path, _SCHEMA, self._unusable)

    @contextmanager
    def writing(self) -> Iterator[RegistryStatements]:
        with self._file.writing() as db:
            yield _statements(db)

    @contextmanager
    def reading(self) -> Iterator[RegistryStatements]:
        with self._file.connected() as db:
            yield _statements(db)

    def together(self) -> AbstractContextManager[None]:
        return self._file.together()

    def close(self) -> None:
        self._file.close()

    def _unusable(self, error: str) -> RegistryError:
        return RegistryError(
            f"the schema registry cannot be used: {error}",
            where=self.where,
            fix="Check that it is a Tidemill registry file, its permissions and the free space.",
        )


def _statements(db: sqlite3.Connection) -> RegistryStatements:
    def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(db.execute(statement, values)) as cursor:
            return cursor.fetchall()

    return run
