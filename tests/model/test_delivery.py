from __future__ import annotations

import pytest

from tidemill.model.delivery import Epoch


@pytest.mark.parametrize(
    ("other", "other_start", "late", "why"),
    [
        (Epoch(5, "12:00"), 100, False, "the same run and batch"),
        (Epoch(5, "12:00"), 200, True, "the same run is at a later batch"),
        (Epoch(5, "12:00"), 0, False, "the same run was at an earlier batch"),
        (Epoch(5, "12:01"), 100, True, "a later run began at the same checkpoint"),
        (Epoch(6, "12:01"), 0, True, "a later run, after the checkpoint was moved back"),
        (Epoch(4, "11:00"), 900, False, "an earlier run went further: the checkpoint was moved back since"),
        (Epoch(9, "11:00"), 900, False, "the store was lost since, and counts anew"),
        (Epoch(4, "12:30"), 900, False, "an earlier run, on a machine whose clock is ahead"),
    ],
)
def test_a_delivery_is_late_only_where_version_and_time_agree(
    other: Epoch, other_start: int, late: bool, why: str
) -> None:
    assert Epoch(5, "12:00").superseded(100, other, other_start) is late, why
