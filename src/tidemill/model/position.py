"""Where an event stands: `Position` is the database's word for it, `Offset` is ours.

A position is text that only its source may interpret (`16/B374D848`, a GTID set). Comparing two positions as
text is a bug; ask the source (`Source.compare`), or compare offsets.
"""

from __future__ import annotations

import enum
from typing import NewType

Position = NewType("Position", str)
Offset = int
"""Dense count of events in one change log, from 0. The same offset names the same event for ever (invariant 5)."""


class Ordering(enum.Enum):
    """How one position stands to another of the same source."""

    BEFORE = "before"
    SAME = "same"
    AFTER = "after"
