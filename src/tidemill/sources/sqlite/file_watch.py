"""Says that a SQLite file may have changed, by inotify where there is one: its writes and those of its journal or WAL.

A notice is only a reason to look: a write comes before its commit, and notices of another machine's writes (NFS) or of
other systems never come. So a wait ends after `poll_seconds` in any case. Files beside this one wake nobody: there may
be a hundred of them, each with a pipeline of its own.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from tidemill.disk.inotify import NAMED, WRITTEN, Inotify

# After a notice: the commit follows its last write at once, or when the disk has synced it.
_LOOKS = (0.0, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
_WRITTEN_BESIDE = ("-wal", "-journal")
# Where nobody wakes us: soon after a look that found something, and less and less often when none does.
_SOON_SECONDS, _SLOWER = 0.005, 10


class FileWatch:
    def __init__(self, path: Path, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._path = path.resolve()  # of a symbolic link: SQLite keeps journal and WAL beside the file itself
        self._names = {os.fsencode(self._path.name + end) for end in ("", *_WRITTEN_BESIDE)}
        self._looks: list[float] = []
        self._found_at = time.monotonic()
        self._inotify = Inotify.open()
        if self._inotify is not None and self._inotify.watch(self._path.parent, NAMED) < 0:
            self.close()
        self._watch_files()

    @property
    def notified(self) -> bool:
        return self._inotify is not None

    def note_found(self) -> None:
        """For who looked, and found something new."""
        self._found_at = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Until the file may have changed, at most so long; False if nothing says that it has. After a notice the next
        waits are short: who looked too early looks again."""
        if self._looks:
            time.sleep(min(self._looks.pop(0), seconds))
            return True
        seconds = min(seconds, self._poll_seconds)
        if self._inotify is None:
            time.sleep(min(seconds, max(_SOON_SECONDS, (time.monotonic() - self._found_at) / _SLOWER)))
            return False
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._inotify], [], [], left)[0]:
                return False
            if self._is_ours(self._inotify):
                self._looks = list(_LOOKS)
                return True
        return False

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    def _is_ours(self, inotify: Inotify) -> bool:
        """Whether it was this file, or what is written beside it; that one may just have been made."""
        names = {name for _, name in inotify.take()}  # a file that is watched by itself has no name
        if names & self._names:
            self._watch_files()
        return bool(names & {b"", *self._names})

    def _watch_files(self) -> None:
        """Before the next look, which sees what was written before."""
        if self._inotify is not None:
            for end in ("", *_WRITTEN_BESIDE):  # those that are not there are told of by the folder
                self._inotify.watch(self._path.with_name(self._path.name + end), WRITTEN)
