"""What Spark calls with each batch of a query, made so that nothing of a query stays when it has ended.

Java keeps the function of a query for as long as the session lives, and PySpark keeps with it the error that ended the
query, whose frames hold the whole run: its log readers with the segments that they mapped, and a session of Spark's for
each query. The thread that Java called from is gone then, but the one here waits for its next call for ever.
"""

from __future__ import annotations

import socket
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tidemill.errors import TidemillError


class Stopping(Exception):
    """Ends the query without the batch: it is planned, and waits for the next start."""


class QueryEnded(Exception):
    """What Spark hears of an error that the loop knows: its text, and nothing of the run."""


class BatchFunction:
    """For `foreachBatch`; calls a method of somebody who lives as long as the query runs."""

    def __init__(self, spark: Any, batch: Callable[[Any, int], None]) -> None:
        self._client = spark.sparkContext._gateway._gateway_client
        self._batch = weakref.WeakMethod(batch)
        self._connection: Any = None

    def __call__(self, frame: Any, number: int) -> None:
        self._connection = self._client.get_thread_connection()
        ended: str | None = None
        try:
            if (batch := self._batch()) is None:
                raise Stopping
            batch(frame, number)
        except (Stopping, TidemillError) as error:
            ended = f"{type(error).__name__}: {error}"
        if ended is not None:  # out here no other error is its context
            del batch
            raise QueryEnded(ended)

    def hang_up(self) -> None:
        """The query has ended, or is not to go on: ends the thread that its batches came in."""
        connection, self._connection = self._connection, None
        ours = connection.socket if connection is not None else None
        if ours is not None:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
