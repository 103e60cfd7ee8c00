"""Ranges of columns."""

from __future__ import annotations

import pyarrow as pa

from tidemill.schema.sensing.values import range_of


def test_a_duration_has_no_range() -> None:
    assert range_of(pa.array([1, 2], pa.duration("us"))) is None
    assert range_of(pa.array([1, 2])) == (("1", "1"), ("2", "2"))
