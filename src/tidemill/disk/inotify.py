"""Notices of the kernel that files were written, where it has them (Linux).

A notice is only a reason to look: those of another machine's writes (NFS) never come. The kernel gives a user few
descriptors for them (fs.inotify.max_user_instances, 128 by default), of which a server with many pipelines needs one
for each capture. So the folders that one process watches share a descriptor, but for the first few.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_MODIFY, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x80, 0x100, 0x200
WRITTEN, NAMED = _MODIFY, _MOVED_TO | _CREATE | _DELETE
"""Of a file: it was written. Of a folder: a file got a name in it, or lost it."""
_READ_BYTES = 1 << 16
_OWN_FOLDERS = 8


class Inotify:
    """A descriptor, and what it watches by numbers. A path that is watched twice has one number."""

    def __init__(self, library: ctypes.CDLL, descriptor: int) -> None:
        self._library, self._descriptor = library, descriptor

    @classmethod
    def open(cls, *, blocking: bool = False) -> Inotify | None:
        """None where the system has none, or none left to give."""
        try:
            library = ctypes.CDLL(None, use_errno=True)
            descriptor = int(library.inotify_init1(_CLOEXEC | (0 if blocking else os.O_NONBLOCK)))
        except (AttributeError, OSError):
            return None
        return cls(library, descriptor) if descriptor >= 0 else None

    def fileno(self) -> int:
        return self._descriptor

    def watch(self, path: Path, mask: int) -> int:
        """-1 if it is not there."""
        return int(self._library.inotify_add_watch(self._descriptor, os.fsencode(path), mask))

    def unwatch(self, number: int) -> None:
        self._library.inotify_rm_watch(self._descriptor, number)  # fails if the folder is gone, and its watch with it

    def take(self) -> Iterator[tuple[int, bytes]]:
        """What has come: the number, and in a folder the name of the file. Ends at once if nothing has."""
        with suppress(BlockingIOError):
            yield from _split(os.read(self._descriptor, _READ_BYTES))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class FolderWatch(Protocol):
    """`fileno` can be read when `take` has names of files in the folder that were written, made or removed."""

    def fileno(self) -> int: ...

    def take(self) -> list[bytes]: ...

    def close(self) -> None: ...


def watch_folder(folder: Path) -> FolderWatch | None:
    """None where the system cannot, or the folder is not there."""
    return _folders.watch(folder)


class _OwnWatch:
    """With a descriptor to itself: nothing stands between the kernel and who waits."""

    def __init__(self, inotify: Inotify, folders: _Folders) -> None:
        self._inotify, self._folders = inotify, folders

    def fileno(self) -> int:
        return self._inotify.fileno()

    def take(self) -> list[bytes]:
        names: list[bytes] = []
        while came := [name for _, name in self._inotify.take()]:
            names += came
        return names

    def close(self) -> None:
        self._inotify.close()
        self._folders.note_closed(self)


class _SharedWatch:
    """Hears from the thread that reads the descriptor of all."""

    def __init__(self, folders: _Folders) -> None:
        self._folders = folders
        self._names: set[bytes] = set()  # no more than the folder has, however long nobody takes them
        self._telling = threading.Lock()
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._event

    def take(self) -> list[bytes]:
        with suppress(BlockingIOError):
            os.eventfd_read(self._event)
        with self._telling:
            names, self._names = self._names, set()
        return list(names)

    def hear(self, name: bytes) -> None:
        with self._telling:
            self._names.add(name)
        os.eventfd_write(self._event, 1)

    def close(self) -> None:
        if self._event >= 0:
            self._folders.note_closed(self)
            os.close(self._event)
            self._event = -1


class _Folders:
    """Those that this process watches, from any thread."""

    def __init__(self) -> None:
        self._changing = threading.Lock()  # guards what is below
        self._own: set[_OwnWatch] = set()
        self._shared: Inotify | None = None
        self._hearing: dict[int, list[_SharedWatch]] = {}

    def watch(self, folder: Path) -> FolderWatch | None:
        with self._changing:
            if len(self._own) < _OWN_FOLDERS and (own := Inotify.open()) is not None:
                if own.watch(folder, WRITTEN | NAMED) < 0:
                    own.close()
                    return None
                watch = _OwnWatch(own, self)
                self._own.add(watch)
                return watch
            return self._share(folder)

    def _share(self, folder: Path) -> FolderWatch | None:
        if self._shared is None:
            self._shared = Inotify.open(blocking=True)
            if self._shared is None:
                return None
            threading.Thread(target=self._hear, args=(self._shared,), name="inotify", daemon=True).start()
        number = self._shared.watch(folder, WRITTEN | NAMED)
        if number < 0:
            return None
        shared = _SharedWatch(self)
        self._hearing.setdefault(number, []).append(shared)
        return shared

    def _hear(self, inotify: Inotify) -> None:
        while True:
            for number, name in inotify.take():
                with self._changing:
                    for watch in self._hearing.get(number, ()):
                        watch.hear(name)

    def note_closed(self, closed: _OwnWatch | _SharedWatch) -> None:
        with self._changing:
            if isinstance(closed, _OwnWatch):
                self._own.discard(closed)
                return
            for number, watches in list(self._hearing.items()):
                if closed in watches:
                    watches.remove(closed)
                    if not watches:
                        del self._hearing[number]
                        assert self._shared is not None
                        self._shared.unwatch(number)


_folders = _Folders()  # of the process, because the kernel's limit is not that of one pipeline


def _split(data: bytes) -> Iterator[tuple[int, bytes]]:
    """struct inotify_event: watch, mask, cookie, length of the name; all of 32 bits. The name is padded."""
    at = 0
    while at + 16 <= len(data):
        length = int.from_bytes(data[at + 12 : at + 16], "little")
        yield int.from_bytes(data[at : at + 4], "little", signed=True), data[at + 16 : at + 16 + length].rstrip(b"\0")
        at += 16 + length
