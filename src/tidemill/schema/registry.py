"""Which structures each table has had, numbered and kept: what lets an event name its schema (invariant 6).

Capture registers a table whenever its source describes it; the command line and the API read at the same time.
One SQLite file per source, `registry.sqlite`. No version is ever removed or renumbered. Beside them it keeps what a
source notes for itself: a binlog does not describe its tables, so that MySQL's source has to remember how they were.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tidemill.contracts import Structure
from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import RegistryError
from tidemill.model.position import Position
from tidemill.model.table import Table

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
_FIELDS = "sequence, version, fingerprint, position, registered_at, document"


@dataclass(frozen=True, slots=True)
class Registration:
    """A numbered table, and the source position at which this structure was first met."""

    table: Table
    position: Position
    registered_at: str


class SchemaRegistry:
    """Safe between threads and between processes. With `create=False` a missing file is an error, for readers."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self.path = path
        if not create and not path.exists():
            raise RegistryError(
                "there is no schema registry here", where=str(path), fix="It is made when the pipeline first runs."
            )
        self._file = SqliteFile(path, _SCHEMA, self._unusable)

    def register(self, table: Table, position: Position) -> Table:
        """The table with its fingerprint, version and sequence.

        Idempotent: a structure that was registered before, even with others in between, is the same version with
        the same sequence and keeps its first position. So a replay gives every event the numbers it had. What it says
        of renamed and added columns is against the structures before it, and those may be others this time.
        """
        wanted = table.with_fingerprint()
        with self._file.connected() as db:
            if found := _find(db, "name = ? AND fingerprint = ?", wanted.full_name, wanted.fingerprint):
                came = _as_it_came(found.table, wanted)
                if came.to_json() == found.table.to_json():
                    return came
        with self._file.writing() as db:  # of two processes with the same news, one finds the other's row
            found = _find(db, "name = ? AND fingerprint = ?", wanted.full_name, wanted.fingerprint)
            if found is None:
                return _insert(db, wanted, position)
            came = _as_it_came(found.table, wanted)
            db.execute("UPDATE versions SET document = ? WHERE sequence = ?", (came.to_json(), came.sequence))
            return came

    def get(self, name: str, version: int) -> Registration | None:
        with self._file.connected() as db:
            return _find(db, "name = ? AND version = ?", name, version)

    def at(self, name: str, sequence: int) -> Registration | None:
        """The newest registration of the table whose sequence is not above `sequence`."""
        with self._file.connected() as db:
            return _find(db, "name = ? AND sequence <= ? ORDER BY sequence DESC LIMIT 1", name, sequence)

    def latest(self, name: str) -> Registration | None:
        with self._file.connected() as db:
            return _find(db, "name = ? ORDER BY sequence DESC LIMIT 1", name)

    def newest(self, name: str) -> Table | None:
        found = self.latest(name)
        return found.table if found else None

    def versions(self, name: str) -> list[Table]:
        return [found.table for found in self.history(name)]

    def history(self, name: str) -> list[Registration]:
        """Every version of the table, oldest first."""
        with self._file.connected() as db:
            return _all(db, "name = ? ORDER BY sequence", name)

    def tables(self) -> list[Registration]:
        """The newest version of every table, by name."""
        with self._file.connected() as db:
            return _all(db, "sequence IN (SELECT max(sequence) FROM versions GROUP BY name) ORDER BY name")

    def structures(self) -> list[Structure]:
        with self._file.connected() as db:
            rows = db.execute("SELECT sequence, position, name, document FROM structures ORDER BY sequence")
            return [Structure(number, Position(position), name, document) for number, position, name, document in rows]

    def keep_structures(self, position: Position, documents: Mapping[str, bytes | None]) -> None:
        with self._file.writing() as db:
            db.executemany(
                "INSERT INTO structures (position, name, document) VALUES (?, ?, ?)",
                [(position, name, document) for name, document in documents.items()],
            )

    def forget_structures(self, after: int) -> None:
        with self._file.writing() as db:
            db.execute("DELETE FROM structures WHERE sequence > ?", (after,))

    def recall(self, name: str) -> bytes | None:
        with self._file.connected() as db:
            row = db.execute("SELECT document FROM memory WHERE name = ?", (name,)).fetchone()
            return row[0] if row else None

    def remember(self, name: str, document: bytes | None) -> None:
        with self._file.writing() as db:
            if document is None:
                db.execute("DELETE FROM memory WHERE name = ?", (name,))
            else:
                db.execute("INSERT OR REPLACE INTO memory (name, document) VALUES (?, ?)", (name, document))

    def sequence(self) -> int:
        """The last number given out, 0 when nothing is registered."""
        with self._file.connected() as db:
            return int(db.execute("SELECT coalesce(max(sequence), 0) FROM versions").fetchone()[0])

    def close(self) -> None:
        self._file.close()

    def _unusable(self, error: str) -> RegistryError:
        return RegistryError(
            f"the schema registry cannot be used: {error}",
            where=str(self.path),
            fix="Check that it is a Tidemill registry file, its permissions and the free space.",
        )


def _as_it_came(known: Table, wanted: Table) -> Table:
    """The known version, with what is told of its columns now. What is not told any more stays as it was, for the same
    columns."""
    columns = tuple(
        was if now.initial is None and now.origin in ("", was.origin)
        else replace(was, origin=now.origin or was.origin, initial=now.initial)
        for was, now in zip(known.columns, wanted.columns, strict=True)
    )  # fmt: skip
    return replace(known, renamed=wanted.renamed or known.renamed, columns=columns)


def _insert(db: sqlite3.Connection, table: Table, position: Position) -> Table:
    count = db.execute("SELECT count(*) FROM versions WHERE name = ?", (table.full_name,)).fetchone()[0]
    table = replace(table, version=count + 1)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    cursor = db.execute(
        "INSERT INTO versions (name, version, fingerprint, position, registered_at, document)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (table.full_name, table.version, table.fingerprint, position, now, table.to_json()),
    )
    return replace(table, sequence=cursor.lastrowid or 0)


def _find(db: sqlite3.Connection, condition: str, *values: object) -> Registration | None:
    found = _all(db, condition, *values)
    return found[0] if found else None


def _all(db: sqlite3.Connection, condition: str, *values: object) -> list[Registration]:
    rows = db.execute(f"SELECT {_FIELDS} FROM versions WHERE {condition}", values)
    return [
        Registration(
            replace(Table.from_json(document), sequence=sequence, version=version, fingerprint=fingerprint),
            Position(position),
            at,
        )
        for sequence, version, fingerprint, position, at, document in rows
    ]
