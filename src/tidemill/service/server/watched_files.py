"""Pipeline files that change: a server that is told to reads them again by itself, as after SIGHUP."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemill.service.server.repeated import RepeatedTask

LOOK_SECONDS = 2.0

_Stamp = tuple[str, int, int, int]


class WatchedFiles:
    """Looked at every few seconds. A change counts when two looks in a row see the same: an editor, or somebody who
    copies several files, is not read half way."""

    def __init__(self, paths: Sequence[Path], on_change: Callable[[], object]) -> None:
        self._paths, self._on_change = paths, on_change
        self._read = self._last = self._stamps()

    def look(self) -> None:
        now = self._stamps()
        settled = now == self._last
        self._last = now
        if settled and now != self._read:
            self._read = now
            self._on_change()

    def _stamps(self) -> tuple[_Stamp, ...]:
        """What follows a symbolic link counts: Kubernetes changes a ConfigMap by another link."""
        found: list[_Stamp] = []
        for path in self._paths:
            for each in sorted(path.iterdir()) if path.is_dir() else [path]:
                try:
                    stat = os.stat(each)
                except OSError:  # it is just being replaced
                    continue
                found.append((str(each), stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return tuple(found)


@contextmanager
def watching_files(files: WatchedFiles, wanted: bool) -> Iterator[None]:
    """Looks at them meanwhile, if that is `wanted`."""
    task = RepeatedTask(files.look, seconds=LOOK_SECONDS, name="files")
    if wanted:
        task.begin()
    try:
        yield
    finally:
        task.close()
