"""Rows that moved to another key and left columns out: they may be in no chunk, and are read again at the end."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.reader import LogReader
from tidemill.model.barrier import Barrier
from tidemill.model.position import Offset
from tidemill.model.rowkeys import key_strings, moved_with_holes
from tidemill.model.snapshot import Bound


def find_moved(log: LogReader, start: Offset, tail: Offset) -> tuple[dict[str, Sequence[Bound]], Offset]:
    """Keys that such updates led to, by table, from `start` on; and how far the log was looked through: `tail` or
    further."""
    points: dict[str, list[Bound]] = {}
    for entry in log.entries(start) if start < tail else ():
        if entry.barrier & (Barrier.KEY_CHANGE | Barrier.UNNAMED):
            for ref in entry.blocks:
                block = log.read(ref)
                if rows := moved_with_holes(block):
                    points.setdefault(ref.table, []).extend(key_strings(block, rows))
        tail = max(tail, entry.end)
    return dict(points), tail
