"""Epochs begin a few at a time, and nobody waits for ever."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support.waiting import until
from tidemill.stream.trigger.epoch_turns import EpochTurns


def test_no_more_begin_at_once_than_may_and_all_get_their_turn() -> None:
    turns, beginning, most, stood = EpochTurns(3), set[int](), list[int](), list[int]()

    def begin(number: int) -> None:
        with turns.turn(lambda: False) as turn:
            beginning.add(number)
            most.append(len(beginning))
            time.sleep(0.01)
            beginning.discard(number)
            turn.end()  # its lanes stand, for minutes
            stood.append(number)
            ended.wait(60)

    ended = threading.Event()
    threads = [threading.Thread(target=begin, args=(number,), daemon=True) for number in range(30)]
    for thread in threads:
        thread.start()
    until(lambda: len(stood) == 30, 60)
    ended.set()
    assert max(most) <= 3
    for thread in threads:
        thread.join(30)


def test_a_turn_ends_once_however_often_it_is_said_and_also_with_an_error() -> None:
    turns = EpochTurns(1)
    with turns.turn(lambda: False) as turn:
        turn.end()
        turn.end()
    with pytest.raises(RuntimeError, match="no lane"), turns.turn(lambda: False):
        raise RuntimeError("no lane")
    began = time.monotonic()
    with turns.turn(lambda: False), turns.turn(lambda: False, longest=0.1):
        assert time.monotonic() - began >= 0.1, "one place, and it was taken: two would be one too many"


def test_who_stops_does_not_wait_and_who_waited_too_long_begins_beside_the_others() -> None:
    turns = EpochTurns(1)
    with turns.turn(lambda: False):
        began = time.monotonic()
        with turns.turn(lambda: True):
            pass
        with turns.turn(lambda: False, longest=0.05):
            pass
        assert time.monotonic() - began < 20
    with turns.turn(lambda: False):
        pass
