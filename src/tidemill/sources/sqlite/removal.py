"""Takes what `setup.install` has made out of the file again. Inside a write transaction."""

from __future__ import annotations

import sqlite3

from tidemill.sources._shared.sqlite_catalog import OWN, quote
from tidemill.sources.sqlite import gaps
from tidemill.sources.sqlite.resume import identity
from tidemill.sources.sqlite.triggers import READERS


def remove(db: sqlite3.Connection, reader: str) -> list[str]:
    """The reader goes; with the last one everything of ours. Answers what was dropped."""
    if identity(db) is not None:
        known = db.execute(f"DELETE FROM {READERS} WHERE name = ?", [reader]).rowcount
        gaps.forget(db, reader)
        if others := [f'"{name}"' for (name,) in db.execute(f"SELECT name FROM {READERS}")]:
            return [f'reader "{reader}"; triggers and tables stay for {", ".join(others)}'] if known else []
    return drop_everything(db)


def drop_everything(db: sqlite3.Connection) -> list[str]:
    """Triggers first: writers must not meet one whose table is gone."""
    kinds = {"trigger": "TRIGGER", "table": "TABLE"}
    rows = db.execute(
        "SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'trigger') AND substr(name, 1, ?) = ?"
        " ORDER BY type DESC, name",
        [len(OWN), OWN],
    ).fetchall()
    for kind, name in rows:
        db.execute(f"DROP {kinds[kind]} {quote(name)}")
    return [f"{kind} {name}" for kind, name in rows]
