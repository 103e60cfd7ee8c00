"""A snapshot for people: per table its state, rows, share as a bar, rows a second and the time that is left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemill.cli import terminal

if TYPE_CHECKING:
    from tidemill.service.snapshot.requests import SnapshotStatus
    from tidemill.service.snapshot.status import TableStatus

_BAR = 20
_RATE_SECONDS = 10.0
_STATES = {"waiting": "waiting, begins when the pipeline runs"}
AGAIN = "Then ask for it again: `tidemill snapshot start FILE --table`."


class RowRates:
    """Rows a second, and the time that is left, by the last seconds in which a table was shown."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def of(self, pipeline: str, table: TableStatus) -> tuple[str, str]:
        """Empty while nothing is known, or nothing comes."""
        now, seen = time.monotonic(), self._seen.setdefault((pipeline, table.name), deque())
        seen.append((now, table.rows))
        while len(seen) > 2 and now - seen[1][0] >= _RATE_SECONDS:
            seen.popleft()
        seconds, rows = now - seen[0][0], seen[0][1]
        if seconds < 1 or table.rows <= rows:
            return "", ""
        rate = (table.rows - rows) / seconds
        left = max(0, table.estimate - table.rows) / rate if table.state == "copying" and table.estimate > 0 else 0.0
        return f"{rate:,.0f}", f"{left:.0f} s" if left else ""


class SnapshotView:
    def __init__(self) -> None:
        self._rates = RowRates()

    def show(self, status: SnapshotStatus, undelivered: Mapping[str, int]) -> None:
        """`undelivered`: events that each sink has not got yet."""
        from tidemill.service.snapshot.plan import REPAIR

        why = f"{status.why}, where {status.where}" if status.where and status.why != REPAIR else status.why
        terminal.say(f"snapshot {status.id} ({why}): {_STATES.get(status.state, status.state)}, since"
                     f" {status.began}" + (f", ended {status.ended}" if status.ended else ""))  # fmt: skip
        rows = [
            (t.name, t.state, t.rows, t.estimate if t.estimate >= 0 else "?", bar(t), *self._rates.of("", t), t.error)
            for t in status.tables
        ]
        if rows:
            terminal.show_table(("table", "state", "rows", "of about", "share", "rows/s", "left", "error"), rows)
        for table in status.tables:
            if table.state == "failed":
                terminal.say(f"{table.name}: {table.fix} {AGAIN}".replace("  ", " "))
        if rows:
            lacking = ", ".join(f"{sink} {count:,}" for sink, count in undelivered.items() if count)
            terminal.say("Events of the change log that sinks have not got yet: " + (lacking or "none") + "."
                         + (" A table is ready when its rows are in the log." if lacking else ""))  # fmt: skip


def share(table: TableStatus) -> float:
    """Of its rows, 0 to 1; an estimate may be too low, so that only a ready table has all."""
    if table.state == "ready":
        return 1.0
    return min(0.99, table.rows / table.estimate) if table.estimate > 0 else 0.0


def bar(table: TableStatus) -> str:
    filled = round(share(table) * _BAR)
    return f"{'█' * filled}{'░' * (_BAR - filled)} {share(table):4.0%}"
