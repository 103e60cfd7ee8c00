"""The last position confirmed to a pipeline's source: in the state store, before the source hears it (invariant 2).

Versions before the state store kept it in a file of the pipeline's directory. Such a file is imported and removed; one
that is there later was written by an older version that ran in between, so it is always the newer one.
"""

from __future__ import annotations

from pathlib import Path

import orjson

from tidemill.contracts import ConfirmedPosition, StateStore
from tidemill.disk.private import sync_path
from tidemill.errors import EnvironmentProblem, StateError
from tidemill.model.position import Offset, Position

_OLDER = "told.json"


def import_confirmed(state: StateStore, pipeline: str, directory: Path) -> None:
    """Moves what an older version left into the store. Killed in between, it is done again with the same outcome."""
    older = _read_older(directory)
    if older is not None:
        state.confirm(pipeline, older.position, older.offset)
        _remove_older(directory)


def read_confirmed(state: StateStore | None, pipeline: str, directory: Path, logged: Offset) -> Position | None:
    """The confirmed position, if the log still holds (or held and delivered) everything before it. Changes nothing.

    With a log that ends earlier, moved away or lost, it covers events that nobody has, and does not count.
    """
    known = _read_older(directory) or (state.confirmed(pipeline) if state else None)
    return known.position if known and known.offset <= logged else None


def forget_confirmed(state: StateStore, pipeline: str, directory: Path) -> None:
    """After a recovery: nothing was confirmed to the new slot."""
    _remove_older(directory)
    state.forget_confirmed(pipeline)


def _read_older(directory: Path) -> ConfirmedPosition | None:
    path = directory / _OLDER
    try:
        kept = orjson.loads(path.read_bytes())
        return ConfirmedPosition(Position(kept["position"]), int(kept["offset"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentProblem(
            "the file does not hold the position that was last confirmed to the source",
            where=str(path),
            fix="Restore it from a backup. Without one, remove the file: a slot that moved on while its database was "
            "idle may then be taken for one that somebody else moved.",
        ) from error


def _remove_older(directory: Path) -> None:
    """Durably: back after a power cut, the file would be taken for the newer one."""
    path = directory / _OLDER
    try:
        if path.exists():
            path.unlink()
            sync_path(directory)
    except OSError as error:
        raise StateError(
            f"a file of an older version cannot be removed: {error.strerror}",
            where=str(directory),
            fix="What it holds is in the state store. Give us the right to remove it; this is tried again.",
        ) from error
