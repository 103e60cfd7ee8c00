"""One way to replace a file: a reader sees the old content or the new, never a part, also after a crash.

The new content is written beside the file, put on disk, given the file's name, and then the directory is put on disk,
which holds the name. Who leaves out one of these steps finds an empty file after a power cut.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from tidemill.disk.private import open_file, sync_path

DRAFT = ".tmp"
"""What a file under way is called after its own name. One that a killed process left is written over by the next."""

# Linux refuses more in one call (IOV_MAX).
_VECTORS = 1024


def replace_file(path: Path, content: bytes, *, durable: bool = True) -> None:
    """On disk when it returns, name included; without `durable`, a power cut may leave an old or an empty file. Only
    its owner may read it. One writer per file: two at the same time would share the draft. After an error the old
    content is there, and no draft."""
    draft = path.with_name(path.name + DRAFT)
    try:
        file = open_file(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(file, 0, [memoryview(content)])
            if durable:
                os.fsync(file)
        finally:
            os.close(file)
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)
        raise
    if durable:
        sync_path(path.parent)


def publish_file(draft: Path, path: Path) -> None:
    """Gives a file that is written and closed the name of another, which it replaces. On disk when it returns."""
    sync_path(draft)
    os.replace(draft, path)
    sync_path(path.parent)


def write_all(file: int, at: int, views: list[memoryview]) -> None:
    """All bytes, although the kernel may take fewer per call (and takes at most 2 GiB)."""
    views, first = [view for view in views if view.nbytes], 0
    while first < len(views):
        written = os.pwritev(file, views[first : first + _VECTORS], at)
        at += written
        while first < len(views) and written >= views[first].nbytes:
            written -= views[first].nbytes
            first += 1
        if written:
            views[first] = views[first][written:]
