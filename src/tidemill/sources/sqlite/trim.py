"""Removes recorded changes that every reader has delivered, in write transactions of a few milliseconds each."""

from __future__ import annotations

import contextlib
import sqlite3
import time

from tidemill.sources.sqlite.triggers import CHANGES, READERS

_ROWS = 5_000
_SECONDS = 0.1  # of one call; the capture loop waits for it


def trim(db: sqlite3.Connection, reader: str, number: int) -> bool:
    """Whether all of it is gone. The last delivered change stays: its time tells whether a file is the same one. False,
    with nothing lost, where another program has the file."""
    deadline = time.monotonic() + _SECONDS
    try:
        db.execute(f"UPDATE {READERS} SET confirmed = max(confirmed, ?) WHERE name = ?", [number, reader])
        while True:
            (floor,) = db.execute(f"SELECT min(confirmed) FROM {READERS}").fetchone()
            (first,) = db.execute(f"SELECT min(change_id) FROM {CHANGES}").fetchone()
            if floor is None or first is None or first >= floor:
                return True
            db.execute("BEGIN IMMEDIATE")
            db.execute(f"DELETE FROM {CHANGES} WHERE change_id < ?", [min(floor, first + _ROWS)])
            db.execute("COMMIT")
            if time.monotonic() > deadline:
                return False
    except sqlite3.OperationalError:  # locked: the next call goes on here
        with contextlib.suppress(sqlite3.OperationalError):
            if db.in_transaction:
                db.execute("ROLLBACK")
        return False
