"""What every event says besides its own fields: of which pipeline it is, of which stage (capture, stream, deliver), of
which sink. Bound where the work begins, so that nobody passes it on by hand.

A process that does one thing binds for all of its threads (`bind_process`); anything else binds for the calls that it
makes (`bind`). A new thread starts without what its parent bound, and binds for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

_PROCESS: dict[str, str] = {}
_BOUND: ContextVar[Mapping[str, str]] = ContextVar("tidemill", default={})  # noqa: B039  never changed, only replaced


def current() -> dict[str, str]:
    return {**_PROCESS, **_BOUND.get()}


def bind_process(**fields: str) -> None:
    """For every thread, until the process ends."""
    _PROCESS.update(fields)


@contextmanager
def bind(**fields: str) -> Iterator[None]:
    """For what this thread does inside; nested ones add up, the inner one wins."""
    token = _BOUND.set({**_BOUND.get(), **fields})
    try:
        yield
    finally:
        _BOUND.reset(token)
