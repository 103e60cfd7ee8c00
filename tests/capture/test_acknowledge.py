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
