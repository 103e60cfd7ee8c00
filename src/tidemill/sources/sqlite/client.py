"""Connections to the file. None of them stays in a transaction longer than one statement or one set-up."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill.sources.sqlite.errors import FileUnusable, translate


def connect(path: Path, where: str, busy_seconds: float) -> sqlite3.Connection:
    """Never makes a file: a wrong path would be an empty database without changes."""
    if not path.is_file():
        raise FileUnusable(
            f"there is no file {path}", where=where, fix="Check `path`; the application makes the database, not we."
        )
    with translate(where):
        uri = f"{path.absolute().as_uri()}?mode=rw"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_seconds, check_same_thread=False)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return db


@contextmanager
def reading(db: sqlite3.Connection) -> Iterator[None]:
    """All reads inside see the same state of the file."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("COMMIT")


@contextmanager
def writing(db: sqlite3.Connection, where: str) -> Iterator[sqlite3.Connection]:
    """Nobody else writes meanwhile; others read on."""
    with translate(where):
        db.execute("BEGIN IMMEDIATE")
        try:
            yield db
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
