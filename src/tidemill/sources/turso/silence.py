"""Notices a file that is written while its change table does not grow: by connections without the pragma, by libSQL or
SQLite, which ignore it. What they change is captured by nobody."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tidemill.contracts import Notice

_SECONDS = 2.0  # a transaction that is under way may write before its changes are to be seen


class FileSilence:
    def __init__(self, path: Path) -> None:
        self._paths = (path, path.with_name(f"{path.name}-wal"))
        self._seen = self._stamp()
        self._since = 0.0
        self._silent = False

    def look(self, *, found: bool) -> None:
        """`found`: there were changes, or we wrote ourselves."""
        stamp = self._stamp()
        if found:
            self._seen, self._since, self._silent = stamp, 0.0, False
        elif stamp != self._seen and not self._since:
            self._since = time.monotonic()
        elif self._since and time.monotonic() - self._since > _SECONDS:
            self._seen, self._since, self._silent = stamp, 0.0, True

    def notices(self, table: str) -> tuple[Notice, ...]:
        if not self._silent:
            return ()
        return (
            Notice(
                "changes-unrecorded", table, f'the file was written, and "{table}" did not grow',
                "Run PRAGMA capture_data_changes_conn('full') on every connection that writes. libSQL and SQLite ignore"
                " it; for them use `type: sqlite`. A checkpoint of the WAL alone does no harm.",
            ),
        )  # fmt: skip

    def _stamp(self) -> tuple[tuple[int, int], ...]:
        found = []
        for path in self._paths:
            try:
                status = os.stat(path)
                found.append((status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0))
        return tuple(found)
