"""State in one SQLite file, for an installation on one machine: `state.sqlite` in the state directory, 0600.

Every process of the machine may have it open; writers take turns. Not for a directory that several machines share over
a network: SQLite's write-ahead log needs memory that its readers and writers share. They share a PostgreSQL instead.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import StateError
from tidemill.state import migrations
from tidemill.state.migrations import Rows


class SqliteState:
    columns_query = "SELECT name FROM pragma_table_info(?) ORDER BY cid"

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        self.where = str(path)
        self._file = SqliteFile(path, "", self._unusable, prepare=self._migrate if create else None)

    @contextmanager
    def writing(self, *pipelines: str) -> Iterator[Rows]:
        with self._file.writing() as db:
            yield _rows(db)

    @contextmanager
    def reading(self) -> Iterator[Rows]:
        with self._file.connected() as db:
            yield _rows(db)

    @contextmanager
    def snapshot(self) -> Iterator[Rows]:
        with self._file.connected() as db:
            db.execute("BEGIN")  # in WAL mode a transaction sees what was committed before its first statement
            try:
                yield _rows(db)
            finally:
                db.execute("ROLLBACK")

    @contextmanager
    def preparing(self) -> Iterator[Rows]:
        with self._file.writing() as db:
            yield _rows(db)

    def version_in(self, run: Rows) -> int:
        if not run("SELECT 1 FROM sqlite_master WHERE name = 'migrations'"):
            return 0
        current = migrations.version_of(run)
        migrations.check(current, self.where)
        return current

    def version(self) -> int:
        if not self.path.exists():
            return 0
        with self._file.connected() as db:
            return self.version_in(_rows(db))

    def write_problem(self) -> str:
        nearest = next(place for place in (self.path, *self.path.parents) if place.exists())
        if nearest != self.path and not nearest.is_dir():
            return f"{nearest} is not a directory"
        return "" if os.access(nearest, os.W_OK) else f"user {os.getuid()} may not write {nearest}"

    def close(self) -> None:
        self._file.close()

    def _migrate(self, db: sqlite3.Connection) -> None:
        if self.version_in(_rows(db)) == migrations.latest():
            return
        db.execute("BEGIN IMMEDIATE")  # another process may be at the same
        try:
            migrations.migrate(_rows(db), str(self.path))
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")

    def _unusable(self, error: str) -> StateError:
        return StateError(
            f"the state store cannot be used: {error}",
            where=str(self.path),
            fix="Check that it is a Tidemill state file, its permissions and the free space; what needed it is tried "
            "again.",
        )


def _rows(db: sqlite3.Connection) -> Rows:
    def run(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(db.execute(statement, values)) as cursor:
            return cursor.fetchall()

    return run
