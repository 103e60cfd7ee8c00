"""What capture tells the source when a change could not be stored."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.capture.standins import StandInLog, StandInSource, run
from tidemill.capture.status import read_confirmed, write_confirmed
from tidemill.errors import LogError
from tidemill.model.position import Position


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


def test_what_was_told_counts_only_while_the_log_reaches_as_far(tmp_path: Any) -> None:
    write_confirmed(tmp_path, Position("0/500"), 500)
    assert read_confirmed(tmp_path, 500) == "0/500"
    assert read_confirmed(tmp_path, 300) is None
