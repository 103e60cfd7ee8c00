"""Keys and rows that an audit must remember beside the sink, in a temporary file: a table may be larger than memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence

_SCHEMA = """
CREATE TABLE seen (key BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE held (key BLOB PRIMARY KEY, place INTEGER NOT NULL, document BLOB);
"""
_AT_ONCE = 500


class AuditStore:
    """`seen` are keys of the source, `held` the sink's rows by key, with the place in the log that each is as of; a
    document that is None was deleted there. For one thread; gone when it is closed."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)  # a private file that SQLite removes by itself
        self._db.executescript(_SCHEMA)

    def note(self, keys: Iterable[bytes]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO seen VALUES (?)", ((key,) for key in keys))
        self._db.execute("COMMIT")

    def unseen(self, keys: Sequence[bytes]) -> list[bytes]:
        """Of these keys those that were not noted, in their order."""
        known: set[bytes] = set()
        for at in range(0, len(keys), _AT_ONCE):
            some = keys[at : at + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            known |= {key for (key,) in self._db.execute(f"SELECT key FROM seen WHERE key IN ({marks})", some)}
        return [key for key in keys if key not in known]

    def hold(self, rows: Iterable[tuple[bytes, int, bytes | None]]) -> None:
        """Rows by key; one of an earlier place than what is held changes nothing."""
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO held VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE"
            " SET place = excluded.place, document = excluded.document WHERE excluded.place >= held.place",
            rows,
        )
        self._db.execute("COMMIT")

    def truncate(self, place: int) -> None:
        """Everything before this place was deleted there."""
        self._db.execute("UPDATE held SET document = NULL WHERE place < ?", (place,))

    def get(self, key: bytes) -> tuple[int, bytes | None] | None:
        """What is held of a key, and as of which place; None if nothing ever was."""
        found = self._db.execute("SELECT place, document FROM held WHERE key = ?", (key,)).fetchone()
        return None if found is None else (int(found[0]), found[1])

    def held_unseen(self, most: int) -> Iterator[bytes]:
        """Documents of rows whose keys were not noted."""
        rows = self._db.execute(
            "SELECT document FROM held WHERE document IS NOT NULL AND key NOT IN (SELECT key FROM seen) LIMIT ?",
            (most,),
        )
        return (document for (document,) in rows)

    def close(self) -> None:
        self._db.close()
