"""Connections to the file. None of them stays in a transaction longer than one statement or one set-up."""

from __future__ import annotations

import fcntl
import sqlite3
import struct
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
    _refuse_shared(path, where)
    with translate(where):
        uri = f"{path.absolute().as_uri()}?mode=rw"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=busy_seconds, check_same_thread=False)
        db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        return db


def _refuse_shared(path: Path, where: str) -> None:
    """Programs that share a file by Turso's `multiprocess_wal` do not hold SQLite's locks. SQLite takes the file for
    its own then, and its last connection removes the WAL: what the others commit afterwards is lost."""
    file = path.resolve()
    shared = file.with_name(f"{file.name}-tshm")  # it stays when they are gone; the lock on it does not
    try:
        with shared.open("rb") as locked:
            lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
            if struct.unpack("hhqqi", fcntl.fcntl(locked, fcntl.F_GETLK, lock))[0] == fcntl.F_UNLCK:
                return
    except FileNotFoundError:
        return
    raise FileUnusable(
        f"{path} is open in a program that uses Turso with multiprocess_wal", where=where,
        fix="Use `type: turso`, or end that program first. Nothing may open the file with SQLite meanwhile, its shell"
        " neither: commits of that program would be lost.",
    )  # fmt: skip


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
