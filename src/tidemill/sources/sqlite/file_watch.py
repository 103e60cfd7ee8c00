"""Says that a SQLite file may have changed, by inotify where there is one: its writes and those of its journal or WAL.

A notice is only a reason to look: a write comes before its commit, and notices of another machine's writes (NFS) or of
other systems never come. So a wait ends after `poll_seconds` in any case.
"""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

from tidemill.disk.inotify import READ_BYTES, changed_names, watch_folder

_LOOKS = (0.0, 0.0005, 0.001, 0.002, 0.004)  # after a notice: the commit follows its last write by less


class FileWatch:
    def __init__(self, path: Path, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        real = path.resolve()  # of a symbolic link: SQLite keeps journal and WAL beside the file itself
        self._prefix = os.fsencode(real.name)
        self._descriptor = watch_folder(real.parent)
        self._looks: list[float] = []

    @property
    def notified(self) -> bool:
        return self._descriptor >= 0

    def wait(self, seconds: float) -> None:
        """Until the file may have changed, at most so long. After a notice the next waits are short: who looked too
        early looks again."""
        if self._looks:
            time.sleep(min(self._looks.pop(0), seconds))
            return
        seconds = min(seconds, self._poll_seconds)
        if self._descriptor < 0:
            time.sleep(min(seconds, 0.005))
            return
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._descriptor], [], [], left)
            if not ready:
                return
            if any(name.startswith(self._prefix) for name in changed_names(os.read(self._descriptor, READ_BYTES))):
                self._looks = list(_LOOKS)
                return

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
