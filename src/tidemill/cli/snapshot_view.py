"""A snapshot for people: per table its state, rows, share as a bar, rows a second and the time that is left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.cli import terminal

if TYPE_CHECKING:
    from tidemill.service.snapshot.requests import SnapshotStatus
    from tidemill.service.snapshot.status import TableStatus

_BAR = 20
_STATES = {"waiting": "waiting, begins when the pipeline runs"}


class SnapshotView:
    """Rates are over what it has shown before."""

    def __init__(self) -> None:
        self._first: dict[str, tuple[float, int]] = {}

    def show(self, status: SnapshotStatus, undelivered: Mapping[str, int]) -> None:
        """`undelivered`: events that each sink has not got yet."""
        terminal.say(f"snapshot {status.id} ({status.why}): {_STATES.get(status.state, status.state)}, since"
                     f" {status.began}" + (f", ended {status.ended}" if status.ended else ""))  # fmt: skip
        rows = [
            (t.name, t.state, t.rows, t.estimate if t.estimate >= 0 else "?", bar(t), *self._rate(t), t.error)
            for t in status.tables
        ]
        if rows:
            terminal.show_table(("table", "state", "rows", "of about", "share", "rows/s", "left", "error"), rows)
        if any(t.state == "ready" for t in status.tables):
            lacking = ", ".join(f"{sink} {count:,}" for sink, count in undelivered.items() if count)
            terminal.say("ready: its rows are in the change log. Events of the log that sinks have not got yet: "
                         + (lacking or "none") + ".")  # fmt: skip

    def _rate(self, table: TableStatus) -> tuple[str, str]:
        at, rows = self._first.setdefault(table.name, (time.monotonic(), table.rows))
        seconds = time.monotonic() - at
        if seconds < 1 or table.rows <= rows:
            return "", ""
        rate = (table.rows - rows) / seconds
        left = max(0, table.estimate - table.rows) / rate if table.state == "copying" and table.estimate > 0 else 0.0
        return f"{rate:,.0f}", f"{left:.0f} s" if left else ""


def share(table: TableStatus) -> float:
    """Of its rows, 0 to 1; an estimate may be too low, so that only a ready table has all."""
    if table.state == "ready":
        return 1.0
    return min(0.99, table.rows / table.estimate) if table.estimate > 0 else 0.0


def bar(table: TableStatus) -> str:
    filled = round(share(table) * _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {share(table):4.0%}"
