"""Removes recorded changes that every reader has delivered, in write transactions of a few milliseconds each.

They hinder programs as little as can be: the write lock is not waited for for long, and a commit hardly at all. With a
rollback journal one that waits for somebody's long read keeps everybody else from reading. To remove a large value
SQLite reads all of its pages (2,000 of 100 kB took 0.3 s), so a transaction removes what it can in milliseconds.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.sources.sqlite.triggers import CHANGES, READERS

_ROWS = 5_000
_FIRST_ROWS = 8
_HELD_SECONDS = 0.005  # after which no more is removed in a transaction
_SECONDS = 0.1  # of one call; the capture loop waits for it
_LOCK_MS, _COMMIT_MS = 100, 20


def trim(db: sqlite3.Connection, reader: str, number: int) -> bool:
    """Whether all of it is gone. The last delivered change stays: its time tells whether a file is the same one. False,
    with nothing lost, where another program has the file."""
    deadline = time.monotonic() + _SECONDS
    try:
        with _impatient(db):
            while time.monotonic() < deadline:
                db.execute(f"PRAGMA busy_timeout = {_LOCK_MS}")
                db.execute("BEGIN IMMEDIATE")
                done = _remove(db, reader, number)
                db.execute(f"PRAGMA busy_timeout = {_COMMIT_MS}")
                db.execute("COMMIT")
                if done:
                    return True
    except sqlite3.OperationalError:  # locked: the next call goes on here
        pass
    return False


def _remove(db: sqlite3.Connection, reader: str, number: int) -> bool:
    """Inside a write transaction. Whether nothing is left to remove."""
    db.execute(f"UPDATE {READERS} SET confirmed = ? WHERE name = ? AND confirmed < ?", [number, reader, number])
    (floor,) = db.execute(f"SELECT min(confirmed) FROM {READERS}").fetchone()
    (first,) = db.execute(f"SELECT min(change_id) FROM {CHANGES}").fetchone()
    if floor is None or first is None:
        return True
    began, until, step = time.monotonic(), first, _FIRST_ROWS
    while until < min(floor, first + _ROWS) and (until == first or time.monotonic() - began < _HELD_SECONDS):
        until, step = min(floor, until + step), 2 * step
        db.execute(f"DELETE FROM {CHANGES} WHERE change_id < ?", [until])
    return bool(until >= floor)


@contextmanager
def _impatient(db: sqlite3.Connection) -> Iterator[None]:
    """What the connection waits for a lock otherwise is restored, and a transaction that was left open is undone."""
    (usual,) = db.execute("PRAGMA busy_timeout").fetchone()
    try:
        yield
    finally:
        with contextlib.suppress(sqlite3.OperationalError):
            if db.in_transaction:
                db.execute("ROLLBACK")
        db.execute(f"PRAGMA busy_timeout = {usual}")
