"""What can keep a Turso file from being captured.

SetupError
├── DriverMissing          pyturso is not installed
├── MvccFile               its journal mode is mvcc, which one process alone may open
├── CdcMissing             the file has no change table: nobody set the pragma, or the library ignores it
├── CdcKeyMissing          a change was recorded by its rowid alone, which is not the key of its table
└── CdcUnknown             a change table, or a statement of the schema, of a form that this version does not know
PositionLost
└── CdcReset               changes after our position are gone: the table was emptied or made anew
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.errors import ConnectionLost, PositionLost, SetupError, SourceError, TidemillError


class DriverMissing(SetupError):
    code = "turso-driver-missing"


class MvccFile(SetupError):
    code = "turso-mvcc"


class CdcMissing(SetupError):
    code = "cdc-missing"


class CdcKeyMissing(SetupError):
    code = "cdc-key-missing"


class CdcUnknown(SetupError):
    code = "cdc-unknown"


class CdcReset(PositionLost):
    code = "cdc-reset"


SHARE = (
    "Turso lets one process open a file, unless all of them ask for its experimental feature multiprocess_wal: open it"
    ' with experimental_features="multiprocess_wal" in the application, too.'
)


UNREADABLE = "It is in a language of Turso's own that SQLite does not read. Name the other tables in `tables`."
MVCC = (
    "Turso lets one process alone open an MVCC file. Let the application run PRAGMA journal_mode = 'wal', before it"
    " sets the pragma that records changes."
)


def from_turso(error: Exception, where: str) -> TidemillError:
    message = str(error)
    lowered = message.lower()
    if "mvcc" in lowered:
        return MvccFile(message, where=where, fix=MVCC)
    if "lock" in lowered or "busy" in lowered:
        return ConnectionLost(f"the file is not to be had: {message}", where=where, fix=SHARE)
    if "schema changed" in lowered:
        # Turso 0.8: a connection that met another process's DDL inside a transaction says so for ever after.
        return ConnectionLost(
            f"the file must be opened again: {message}", where=where,
            fix="Another program has changed a table; it is opened again by itself.",
        )  # fmt: skip
    return SourceError(message, where=where, fix="Turso itself says so: look at the file with tursodb.")


@contextmanager
def translate(where: str) -> Iterator[None]:
    """Errors of pyturso as ours; it raises its own tree, which is imported only with it."""
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "turso":
            raise
        raise from_turso(error, where) from error
