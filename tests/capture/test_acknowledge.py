"""What capture tells the source when a change could not be stored."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.capture.standins import StandInLog, StandInSchemas, StandInSource, run
from tidemill.capture.loop import Capture, Limits
from tidemill.errors import LogError, TidemillError


@pytest.mark.parametrize(("stopped_while_reading", "refusals"), [(True, 0), (False, 1)], ids=["stop", "full disk"])
def test_a_source_is_never_called_caught_up_before_its_change_is_stored(
    stopped_while_reading: bool, refusals: int
) -> None:
    stop = threading.Event()

    def writing(attempt: int) -> None:
        if attempt <= refusals:
            raise LogError("no space left", fix="Make room.")

    source = StandInSource(stop, 1, lambda number: stop.set() if stopped_while_reading else None)
    run(source, StandInLog(writing), stop)
    assert source.claims, "the source was never asked"
    assert (True, "0") not in source.claims, "caught up, with the change nowhere"


class BusyLog(StandInLog):
    """So many bytes of it are not delivered."""

    store = SimpleNamespace(label="log")

    def __init__(self, waiting: int) -> None:
        super().__init__(lambda attempt: None)
        self.waiting = waiting

    def undelivered_bytes(self) -> int:
        return self.waiting

    kept_bytes = undelivered_bytes


def test_in_a_pause_capture_fills_the_log_and_then_waits_and_says_so() -> None:
    stop, held, said = threading.Event(), threading.Event(), list[TidemillError]()
    held.set()
    source, log = StandInSource(stop, 2), BusyLog(5)

    def deliver(error: TidemillError) -> None:
        """The pause is over: the stream takes what waits."""
        said.append(error)
        assert log.stored == ["1"], "beyond ahead_bytes, and not beyond what the log may hold"
        held.clear()
        log.waiting = 0

    log._writing = lambda attempt: setattr(log, "waiting", 11)
    Capture(
        cast(Any, source), cast(Any, log), cast(Any, StandInSchemas()), Limits(ahead_bytes=1, kept_bytes=10), stop,
        on_error=deliver, held=held,
    ).run()  # fmt: skip
    assert log.stored == ["1", "2"]
    (error,) = said
    assert (error.code, "end of the pause" in error.what, "Resume" in error.fix) == ("log-full", True, True)


def test_a_log_that_is_full_because_delivery_is_slow_only_makes_capture_wait() -> None:
    """No row waits in quarantine: nobody need decide anything."""
    stop, said = threading.Event(), list[TidemillError]()
    log, looks = BusyLog(11), 0

    def requeue() -> int:
        nonlocal looks
        looks += 1
        log.waiting = 0 if looks == 3 else log.waiting
        return 0

    Capture(
        cast(Any, StandInSource(stop, 1)), cast(Any, log), cast(Any, StandInSchemas()),
        Limits(ahead_bytes=10, kept_bytes=10), stop, on_error=said.append, requeue=requeue,
    ).run()  # fmt: skip
    assert (log.stored, said) == (["1"], [])


def test_a_log_that_is_full_of_waiting_rows_holds_capture_back_says_so_and_lets_them_come() -> None:
    """Only rows that are appended again make room."""
    stop, said = threading.Event(), list[TidemillError]()

    class FullLog(StandInLog):
        kept = 2
        store = SimpleNamespace(label="log")

        def kept_bytes(self) -> int:
            return self.kept

    log = FullLog(lambda attempt: None)

    def requeue() -> int:
        log.kept -= 1
        return 1

    limits = Limits(ahead_bytes=1, kept_bytes=0)
    Capture(
        cast(Any, StandInSource(stop, 1)), cast(Any, log), cast(Any, StandInSchemas()), limits, stop,
        on_error=said.append, requeue=requeue,
    ).run()  # fmt: skip
    assert log.stored == ["1"]
    (error,) = said
    assert (error.code, "in quarantine" in error.what, "tidemill ddl approve" in error.fix) == ("log-full", True, True)
