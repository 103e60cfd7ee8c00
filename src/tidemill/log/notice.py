"""Wakes a reader when something is appended to a log, without looking again and again.

Only a hint. It says nothing of a log in an object store, of one that another machine writes over a network file system,
or on a system without inotify. So who waits also looks from time to time, as often as `look_seconds` says: seldom where
notices come, often where appends were found that no notice spoke of.
"""

from __future__ import annotations

import select
import time
from pathlib import Path

from tidemill.disk.inotify import FolderWatch, watch_folder
from tidemill.log.local import LocalStore
from tidemill.log.store import open_store

# Where notices come: soon at first, seldom after a rest.
_WATCHED_SECONDS, _WATCHED_MOST_SECONDS = 1.0, 5.0
# Where nobody wakes us: often after an append, less often when none comes.
_OFTEN_SECONDS, _SELDOM_SECONDS = 0.003, 0.05
_MISSES = 3


class AppendNotice:
    """`fileno` can be read, as `select` says it, when `clear` has something to look at. It is None where the kernel
    cannot know, or while the folder is not there."""

    def __init__(self, uri: str) -> None:
        store = open_store(uri)
        self._folder = Path(store.label) if isinstance(store, LocalStore) else None
        self._notices: FolderWatch | None = None
        self._noticed = True  # whether the append that is found next was told of
        self._missed = 0
        self._found_at = self._looked_at = time.monotonic()
        self._watch()

    @property
    def look_seconds(self) -> float:
        """Seconds that a reader who found nothing may wait before it looks again."""
        if self._notices is not None and self._missed < _MISSES:
            return min(_WATCHED_MOST_SECONDS, max(_WATCHED_SECONDS, (time.monotonic() - self._found_at) / 10))
        return min(_SELDOM_SECONDS, max(_OFTEN_SECONDS, (time.monotonic() - self._found_at) / 10))

    def fileno(self) -> int | None:
        return self._notices.fileno() if self._notices is not None else None

    def wait(self, seconds: float) -> bool:
        """Until an index may have grown, or the time is over; says which."""
        deadline = time.monotonic() + seconds
        while not self.clear():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._notices is not None:
                readable = select.poll()
                readable.register(self._notices, select.POLLIN)
                readable.poll(int(left * 1000) + 1)
            else:
                time.sleep(left)
        return True

    def clear(self) -> bool:
        """Takes what came; True if an index may have grown. Data of an append is written before, and means nothing."""
        grown = False
        if self._notices is not None:
            grown = any(name.endswith(b".idx") for name in self._notices.take())
        elif self._folder is not None and time.monotonic() - self._looked_at > _WATCHED_SECONDS:
            self._watch()
        self._noticed = grown
        return grown

    def note_append(self) -> None:
        """For a reader that found one when it looked."""
        noticed = self._noticed or self.clear()
        self._missed = 0 if noticed else self._missed + 1
        self._noticed = True  # what it finds before it waits again came with this one
        self._found_at = time.monotonic()

    def close(self) -> None:
        self._folder = None
        if self._notices is not None:
            self._notices.close()
            self._notices = None

    def _watch(self) -> None:
        self._looked_at = time.monotonic()
        if self._folder is not None:
            self._notices = watch_folder(self._folder)
