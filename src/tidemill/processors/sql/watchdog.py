"""Ends a query that runs longer than it may: DuckDB is interrupted from a thread beside it.

DuckDB looks for the interruption between vectors of 2,048 rows, so a join that never ends is ended, and memory that one
expression asks for is bounded by `memory_limit`.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any


class QueryTimeout(Exception):
    """The query was interrupted: nobody knows which of its events made it slow."""


class Watchdog:
    """For one query: `with Watchdog(connection, timeout_ms): ...` raises `QueryTimeout` in the place of DuckDB's error.

    An interruption never hits a later query of the connection: once the block has ended, none is sent."""

    def __init__(self, connection: Any, timeout_ms: int) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._over = self._interrupted = False
        self._timer = threading.Timer(timeout_ms / 1000, self._interrupt)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
        self._timer.cancel()
        if self._interrupted and error is not None:
            raise QueryTimeout("it ran longer than timeout_ms") from error

    def _interrupt(self) -> None:
        with self._lock:
            if not self._over:
                self._interrupted = True
                self._connection.interrupt()
