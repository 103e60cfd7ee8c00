"""What versions before the state store left in sentences, read once: since then they are fields."""

from __future__ import annotations

import re

from tidemill.contracts import LostRange

_JOINED = "moves with the pipeline's checkpoint"
_LOST = re.compile(r"lost (\d+) events between (\d+) and (\d+)")


def has_joined(note: str) -> bool:
    """Whether the note says that the position is no longer the sink's own."""
    return note == _JOINED


def lost_range_of(note: str) -> LostRange | None:
    """The losses that the note on a sink's position tells of, added up; None where it tells of none."""
    found = _LOST.fullmatch(note)
    return LostRange(int(found[2]), int(found[3]) + 1, int(found[1])) if found else None
