"""One retry policy: its waits, its end, and that nobody keeps a second one."""

from __future__ import annotations

import itertools
import re
import threading
from pathlib import Path

import pytest

import tidemill
from tidemill.retry import RetryPolicy

SOURCES = Path(tidemill.__file__).parent


def fails_until(number: int, calls: list[int]) -> int:
    calls.append(len(calls))
    if len(calls) < number:
        raise ConnectionError("not yet")
    return len(calls)


def test_waits_double_up_to_the_limit_and_never_beyond() -> None:
    waits = list(itertools.islice(RetryPolicy(first=0.5, most=3.0, jitter=0.0).waits(), 2000))
    assert waits[:5] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert set(waits[4:]) == {3.0}


def test_jitter_takes_away_at_most_its_share() -> None:
    waits = list(itertools.islice(RetryPolicy(first=1.0, most=1.0, jitter=0.4).waits(), 500))
    assert all(0.6 <= wait <= 1.0 for wait in waits)
    assert len(set(waits)) > 400


def test_a_step_is_run_until_it_works() -> None:
    calls: list[int] = []
    policy = RetryPolicy(first=0.001, most=0.001)
    assert policy.run(lambda: fails_until(4, calls), worth=lambda error: isinstance(error, ConnectionError)) == 4


def test_an_error_that_no_retry_mends_is_raised_at_once() -> None:
    calls: list[int] = []
    with pytest.raises(ConnectionError):
        RetryPolicy().run(lambda: fails_until(4, calls), worth=lambda error: False)
    assert len(calls) == 1


def test_no_wait_begins_that_would_end_after_the_time_is_over() -> None:
    calls: list[int] = []
    with pytest.raises(ConnectionError):
        RetryPolicy(first=60.0, most=60.0, seconds=10.0).run(lambda: fails_until(4, calls), worth=lambda error: True)
    assert len(calls) == 1


def test_a_policy_of_no_seconds_tries_once() -> None:
    assert not RetryPolicy(first=0.001, seconds=0.0).begin().pause()


def test_a_stop_ends_the_wait_and_the_tries() -> None:
    stop, calls = threading.Event(), list[int]()

    def step() -> int:
        stop.set()
        return fails_until(4, calls)

    with pytest.raises(ConnectionError):
        RetryPolicy(first=600.0, most=600.0).run(step, worth=lambda error: True, stop=stop)
    assert len(calls) == 1


def test_the_wait_that_the_other_side_asks_for_takes_the_place_of_ours() -> None:
    tries = RetryPolicy(first=0.001, most=0.001, seconds=10.0).begin()
    assert tries.over(asked=60.0)
    assert not tries.over()
    assert tries.take(asked=7.0) == 7.0


def test_success_begins_a_new_series() -> None:
    tries = RetryPolicy(first=1.0, most=8.0, jitter=0.0).begin()
    assert [tries.take() for _ in range(3)] == [1.0, 2.0, 4.0]
    tries.reset()
    assert (tries.taken, tries.wait) == (0, 1.0)


def test_nobody_doubles_waits_for_himself() -> None:
    """Jitter and doubling stand in retry.py; chance is asked nowhere else in the product."""
    own = re.compile(r"random\.uniform|(pause|wait|delay)\w* \* 2\b")
    found = [
        str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py")
        if "lab" not in path.parts and path.name != "retry.py" and own.search(path.read_text())
    ]  # fmt: skip
    assert not found
