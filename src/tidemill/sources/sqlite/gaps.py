"""What was found missing, kept in the file for each reader until it has noted it: whoever installs triggers again finds
the gap, and it is one for all.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from tidemill.sources.sqlite.triggers import META

_KIND = "gap"


def record(db: sqlite3.Connection, gaps: Mapping[str, str], reader: str) -> None:
    """Inside a write transaction. `gaps`: tables, and why changes of theirs may be missing."""
    for table, why in gaps.items():
        db.execute(f"INSERT OR REPLACE INTO {META} VALUES (?, ?)", [json.dumps([_KIND, reader, table]), why])


def read_pending(db: sqlite3.Connection, reader: str) -> dict[str, str]:
    return {table: why for _, table, why in _of(db, reader)}


def forget(db: sqlite3.Connection, reader: str) -> None:
    """Inside a write transaction."""
    for name, _, _ in _of(db, reader):
        db.execute(f"DELETE FROM {META} WHERE name = ?", [name])


def _of(db: sqlite3.Connection, reader: str) -> list[tuple[str, str, str]]:
    rows = db.execute(f"SELECT name, value FROM {META} WHERE name <> 'identity'").fetchall()
    found = [(name, *json.loads(name), value) for name, value in rows]
    return [(name, table, why) for name, kind, whose, table, why in found if (kind, whose) == (_KIND, reader)]
