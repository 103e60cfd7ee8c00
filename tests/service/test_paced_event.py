"""Hundreds of threads rest without asking for the interpreter, and are woken one after the other."""

from __future__ import annotations

import threading
import time

from tests.support.waiting import until
from tidemill.service.paced_event import PacedEvent, rest_seconds


def test_a_wait_ends_with_its_time_and_says_that_nobody_set_it() -> None:
    event, began = PacedEvent(), time.monotonic()
    assert not event.wait_turn(0.05)
    assert time.monotonic() - began >= 0.05
    assert not event.wait_turn(0.0)


def test_a_wait_ends_at_once_when_the_event_is_set_before_or_meanwhile() -> None:
    event, began = PacedEvent(), time.monotonic()
    threading.Timer(0.05, event.set).start()
    assert event.wait_turn(60)
    assert event.wait_turn(60), "it is set still"
    assert time.monotonic() - began < 30
    event.clear()
    assert not event.wait_turn(0.01)


def test_who_is_woken_looks_although_nobody_set_the_event() -> None:
    event, began = PacedEvent(), time.monotonic()
    event.wake()  # nobody waits: it is no reason to skip the next wait
    threading.Timer(0.05, event.wake).start()
    assert not event.wait_turn(60)
    assert 0.04 < time.monotonic() - began < 30


def test_those_that_are_due_together_are_woken_one_after_the_other() -> None:
    """Four hundred whose waits had ends of their own would all ask for the interpreter at once."""
    woken: list[float] = []
    events = [PacedEvent() for _ in range(100)]

    def rest(event: PacedEvent) -> None:
        event.wait_turn(due - time.monotonic())
        woken.append(time.monotonic())

    due = time.monotonic() + 1.0
    threads = [threading.Thread(target=rest, args=(event,), daemon=True) for event in events]
    for thread in threads:
        thread.start()
    until(lambda: len(woken) == len(events), 30)
    assert min(woken) >= due, "none too soon"
    assert max(woken) - min(woken) >= 0.001 * (len(events) - 1)


def test_the_more_of_them_rest_the_longer_each_may() -> None:
    assert rest_seconds(0.5) == 0.5
    events = [PacedEvent() for _ in range(300)]
    threads = [threading.Thread(target=event.wait_turn, args=(60,), daemon=True) for event in events]
    for thread in threads:
        thread.start()
    until(lambda: rest_seconds(0.5) >= 1.5, 30)
    for event in events:
        event.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_many_threads_end_their_waits_for_good_while_others_set_and_wake_them() -> None:
    rounds = [0] * 20
    events = [PacedEvent() for _ in rounds]

    def look(at: int) -> None:
        while not events[at].wait_turn(0.001):
            rounds[at] += 1

    threads = [threading.Thread(target=look, args=(at,), daemon=True) for at in range(len(events))]
    for thread in threads:
        thread.start()
    for _ in range(50):
        for event in events:
            event.wake()
    until(lambda: all(count > 5 for count in rounds), 60)
    for event in events:
        event.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a wait whose event was set did not end"
