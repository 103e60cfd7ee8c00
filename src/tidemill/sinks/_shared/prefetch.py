"""What is sent next is made while the server is busy with what was sent: for sinks that wait for each piece."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetch(items: Iterator[T]) -> Generator[T, None, None]:
    """The items in their order, each made by a thread while the one before it is used; one ahead, not more. What goes
    wrong in making one is raised where it would have come. Close it if it is left early: that waits for the thread."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
        coming = thread.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = thread.submit(next, items, end)
            yield item  # type: ignore[misc]
