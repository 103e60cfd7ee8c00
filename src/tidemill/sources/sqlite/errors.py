"""What can keep a SQLite file from being captured: one type for each thing a person has to do something else about.

SetupError
├── FileUnusable           no such file, no database, or it may not be written
└── TableUncapturable      a table that triggers cannot follow
PositionLost
├── ChangesRemoved         changes after our position are gone from the change table
└── FileReplaced           another file, or an older copy of it
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import ConnectionLost, PositionLost, SetupError, SourceError, TidemillError
from tidemill.sources._shared.errors import RECOVER
from tidemill.sources._shared.sqlite_catalog import is_unknown

__all__ = ["RECOVER"]


class FileUnusable(SetupError):
    code = "file-unusable"


class TableUncapturable(SetupError):
    code = "table-uncapturable"


class ChangesRemoved(PositionLost):
    code = "changes-removed"


class FileReplaced(PositionLost):
    code = "file-replaced"


# A program that died in a transaction left its journal to whoever may write, or the file was just moved away.
_MENDED_BY_OPENING = {
    sqlite3.SQLITE_READONLY_ROLLBACK,
    sqlite3.SQLITE_READONLY_RECOVERY,
    sqlite3.SQLITE_READONLY_CANTLOCK,
    sqlite3.SQLITE_READONLY_DBMOVED,
}
_UNUSABLE = ("unable to open", "file is not a database", "readonly", "read-only", "encrypted", "malformed")


def from_sqlite(error: sqlite3.Error, where: str) -> TidemillError:
    message = str(error)
    lowered = message.lower()
    if getattr(error, "sqlite_errorcode", 0) in _MENDED_BY_OPENING:
        return ConnectionLost(
            f"the file must be opened again: {message}", where=where,
            fix="A program that wrote to it was killed, or the file was moved; it is opened again by itself.",
        )  # fmt: skip
    if "locked" in lowered or "busy" in lowered or "disk i/o" in lowered:
        return ConnectionLost(
            f"the database is not to be had: {message}", where=where,
            fix="Another program holds it; it is tried again by itself. Raise busy_timeout_seconds if that is usual.",
        )  # fmt: skip
    if "is full" in lowered:
        return ConnectionLost(
            message, where=where, fix="Make room on the disk of the database; it is tried again by itself."
        )
    if any(part in lowered for part in _UNUSABLE):
        return FileUnusable(
            message, where=where,
            fix="Check `path`: it must be a SQLite 3 file that this account may read and write, its folder too.",
        )  # fmt: skip
    if is_unknown(error):
        return SourceError(
            message, where=where,
            fix="Only the application has it, and this read needs it: name the other tables in `tables`.",
        )  # fmt: skip
    return SourceError(message, where=where, fix="SQLite itself says so: look at the file with the sqlite3 shell.")


@contextmanager
def translate(where: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise from_sqlite(error, where) from error
