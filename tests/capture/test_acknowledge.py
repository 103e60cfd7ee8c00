"""What capture tells the source when a change could not be stored."""

from __future__ import annotations

import threading

import pytest

from tests.capture.standins import StandInLog, StandInSource, run
from tidemill.errors import LogError


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
