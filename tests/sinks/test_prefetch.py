"""What is made ahead comes as it would have come."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tidemill.sinks._shared.prefetch import prefetch


def test_items_come_in_order_and_one_is_made_while_another_is_used() -> None:
    made = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for number in range(5):
            made.release()
            yield number

    found = prefetch(items())
    assert next(found) == 0
    for _ in range(2):  # the one that is here, and the next, which nobody asked for
        assert made.acquire(timeout=60)
    assert list(found) == [1, 2, 3, 4]


def test_what_goes_wrong_is_raised_behind_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("torn")

    found = prefetch(items())
    assert next(found) == 1
    with pytest.raises(ValueError, match="torn"):
        next(found)


def test_who_leaves_early_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with contextlib.closing(prefetch(iter(range(100)))) as found:
        assert next(found) == 0
    assert threading.active_count() == before
    assert list(prefetch(iter(()))) == []
