"""A change is written while the next is decoded: in order, whatever the log or the source does meanwhile."""

from __future__ import annotations

import threading
import time

from tests.capture.standins import StandInLog, StandInSource, run
from tidemill.errors import ConnectionLost, LogError

PATIENCE = 30.0


def test_the_next_change_is_read_while_one_is_written() -> None:
    stop, second_read = threading.Event(), threading.Event()
    met: list[bool] = []

    def writing(attempt: int) -> None:
        if attempt == 1:
            met.append(second_read.wait(PATIENCE))

    log = StandInLog(writing)
    source = StandInSource(stop, 3, lambda number: second_read.set() if number == 2 else None)
    assert run(source, log, stop) == [1, 1, 1]
    assert met == [True], "the source was not read before the first change was written"
    assert log.stored == ["1", "2", "3"]


def test_small_objects_that_wait_for_delivery_make_the_next_one_wait_for_more() -> None:
    """Each is requests for whoever reads it: a hundred commits a second were 40 objects, and seconds behind."""
    read: list[float] = []
    stop = threading.Event()
    source = StandInSource(stop, 4, lambda number: read.append(time.monotonic()))
    run(source, StandInLog(lambda attempt: None, waiting=10), stop)
    assert read[-1] - read[0] >= 3 * 0.049


def test_a_change_that_the_log_refuses_is_stored_before_the_next() -> None:
    stop = threading.Event()

    def writing(attempt: int) -> None:
        if attempt in (2, 3):
            raise LogError("no space left", fix="Make room.")

    log = StandInLog(writing)
    assert run(StandInSource(stop, 3), log, stop) == [1, 1, 1]
    assert log.stored == ["1", "2", "3"]


def test_a_connection_that_breaks_while_a_change_is_written_goes_on_behind_that_change() -> None:
    stop, broken = threading.Event(), threading.Event()

    def reading(number: int) -> None:
        if number == 2 and not broken.is_set():
            broken.set()
            raise ConnectionLost("the server went away")

    log = StandInLog(lambda attempt: broken.wait(PATIENCE))
    source = StandInSource(stop, 3, reading)
    run(source, log, stop)
    assert source.opened == ["0", "1"], "the new connection did not begin where the log ends"
    assert log.stored == ["1", "2", "3"]


def test_a_stop_waits_for_the_change_that_is_being_written() -> None:
    stop = threading.Event()
    log = StandInLog(lambda attempt: stop.wait(PATIENCE))
    assert run(StandInSource(stop, 1), log, stop) == [1]
    assert log.stored == ["1"]
