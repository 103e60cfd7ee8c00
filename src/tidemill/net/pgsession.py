"""A psycopg connection that does not wait for ever: for ordinary queries of the source, and for the sinks.

Timeouts of statements are the server's to keep, and keepalives are answered by its kernel. A server that was stopped,
or that waits for its own disk, keeps the first and answers the second no more than a proxy that swallows bytes.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

import psycopg

Result = TypeVar("Result")


class NoAnswer(psycopg.OperationalError):
    pass


class PgSession(psycopg.Connection[Any]):
    """`silence_seconds` is how long it waits for the server without a byte. Longer than any timeout that the server
    keeps, so that a server which is well reports first."""

    silence_seconds = 300.0

    def wait(self, gen: Generator[Any, Any, Result], *arguments: Any, **options: Any) -> Result:
        return super().wait(self._unless_silent(gen), *arguments, **options)

    def _unless_silent(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
        """psycopg drives such generators by what the socket is ready for, and by 0 when that is nothing for a while."""
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard = time.monotonic()
                elif time.monotonic() - heard > self.silence_seconds:
                    self.pgconn.finish()  # else the rollback that follows would wait as long again
                    raise NoAnswer(f"the server has not answered for {self.silence_seconds:.0f} seconds")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: Result = end.value
            return result
