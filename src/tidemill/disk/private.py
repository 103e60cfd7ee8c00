"""Files and directories that only their owner may read: log, registry, checkpoints, dead letters hold rows.

Everything that Tidemill keeps for itself is made here. What sinks write is the user's data and follows the umask.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_OTHERS = 0o077


def make_directory(path: Path, *, ours: bool = True) -> None:
    """Makes it and what is missing above it, durably. With `ours`, one that is there and open to others is tightened. A
    directory that the user named may hold more than our files, and stays as it is."""
    for place in reversed([place for place in (path, *path.parents) if not place.exists()]):
        with suppress(FileExistsError):
            place.mkdir(0o700)
        with suppress(PermissionError):  # one may make something where one may not list
            sync_path(place.parent)
    path.mkdir(exist_ok=True)  # says what it is, if it is no directory
    if ours:
        tighten(path)


def open_file(path: Path, flags: int) -> int:
    """A descriptor; the file is made if `flags` say so, and tightened if it was there."""
    file = os.open(path, flags, 0o600)
    try:
        tighten(file)
    except BaseException:
        os.close(file)
        raise
    return file


def tighten(target: int | Path) -> None:
    """Takes away what others may do with it, where that is ours to do. A directory with a sticky bit, such as /tmp, is
    everybody's."""
    mode = os.stat(target).st_mode
    if mode & _OTHERS and not mode & stat.S_ISVTX:
        with suppress(PermissionError):  # somebody else's, or a file system that cannot be written
            os.chmod(target, stat.S_IMODE(mode) & ~_OTHERS)


def sync_path(path: Path) -> None:
    """Puts a file's content on disk, or a directory's names: what was made, renamed or removed in it stays so."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
