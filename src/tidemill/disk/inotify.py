"""Notices of the kernel that files in a folder were written, where it has them (Linux).

A notice is only a reason to look: those of another machine's writes (NFS) never come.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_NONBLOCK_CLOEXEC = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
_MODIFY, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x80, 0x100, 0x200
READ_BYTES = 1 << 16


def watch_folder(folder: Path) -> int:
    """A descriptor that can be read when something in the folder changed; -1 where the system has none to give, or the
    folder is not there."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        descriptor = int(library.inotify_init1(_NONBLOCK_CLOEXEC))
    except (AttributeError, OSError):
        return -1
    if descriptor < 0:
        return -1
    mask = _MODIFY | _MOVED_TO | _CREATE | _DELETE
    if library.inotify_add_watch(descriptor, os.fsencode(folder), mask) < 0:
        os.close(descriptor)
        return -1
    return descriptor


def changed_names(data: bytes) -> Iterator[bytes]:
    """struct inotify_event: watch, mask, cookie, length of the name; all of 32 bits. The name is padded."""
    at = 0
    while at + 16 <= len(data):
        length = int.from_bytes(data[at + 12 : at + 16], "little")
        yield data[at + 16 : at + 16 + length].rstrip(b"\0")
        at += 16 + length
