"""When a batch is worth taking, where it ends, and over how many lanes it goes. Runs in the source's planning process,
or in the driver (realtime.py).

Nothing heavy is imported here: the planning process starts anew with every start of a pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tidemill.config.spec import Sharding
from tidemill.log import LogReader
from tidemill.log.notice import AppendNotice
from tidemill.model.position import Offset

LOOK_SECONDS = 0.003

# A lane that was asked for (`sharding.count`) is used from this much work on; below it, its task costs more.
ROWS_PER_LANE = 2048
BYTES_PER_LANE = 1 << 20
# One lane encodes and sends faster than a database streams, and sharing blocks costs CPU. So where nobody asked, a
# second lane needs a hundred times as much (measured: docs/benchmarks.md).
UNASKED = 100


def admit(
    log: LogReader, rule: Mapping[str, Any], start: dict[str, Any], *, wait: float, notice: AppendNotice | None = None
) -> dict[str, Any]:
    """The pinned end of the next batch: at once when a limit is reached or `max_ms` is over, else when it is. The
    `notice` wakes who waits for an append."""
    give_up = time.monotonic() + wait
    gathering = False
    while (found := look(log, rule, start["offset"])) is None:
        left = give_up - time.monotonic()
        if left <= 0:
            return start
        gathering = log.tail().offset > start["offset"]  # `max_ms` is not over
        if gathering or notice is None:
            time.sleep(LOOK_SECONDS)
        else:
            notice.wait(min(left, notice.look_seconds))
    if notice is not None and not gathering:
        notice.note_append()
    return found


def look(log: LogReader, rule: Mapping[str, Any], begin: Offset) -> dict[str, Any] | None:
    """The same without waiting; None while there is no batch worth taking. A batch that was `pinned` in another mode of
    the trigger and not delivered comes as it was (invariant 5)."""
    pinned, tail = rule.get("pinned"), log.tail().offset
    if pinned and pinned["start"] == begin <= pinned["end"] <= tail:
        return {"offset": pinned["end"], "lanes": pinned["lanes"], "by": pinned["by"]}
    if tail <= begin or (pinned and pinned["start"] == begin):
        return None
    end = log.plan(begin, max_events=rule["max_events"], max_bytes=rule["max_bytes"], respect_tx=rule["respect_tx"])
    full = end < tail or end - begin >= rule["max_events"]
    if end == begin or not (full or not rule["max_ms"] or _waiting_ms(log, begin) >= rule["max_ms"]):
        return None
    count = _lanes(log, begin, end, rule["count"], 1 if rule["asked"] else UNASKED)
    return {"offset": end, "lanes": count, "by": rule["by"]}


def _waiting_ms(log: LogReader, offset: Offset) -> float:
    """For how many milliseconds the oldest waiting event has been in the log. One from the future has waited enough: a
    clock that was set back must not hold up the stream until it has caught up."""
    age = time.time() * 1000 - next(log.entries(offset)).written_at
    return age if age >= 0 else float("inf")


def _lanes(log: LogReader, begin: Offset, end: Offset, at_most: int, reluctance: int) -> int:
    rows = (end - begin) // reluctance
    if at_most == 1 or rows >= at_most * ROWS_PER_LANE:
        return at_most
    return how_many(rows, sum(ref.size for ref in log.refs(begin, end)) // reluctance, at_most)


def spread_by(sharding: Sharding) -> str:
    if sharding.mode == "table":
        return "table"
    return f"hash:{sharding.key}" if sharding.key else "hash"


def how_many(rows: int, size: int, at_most: int) -> int:
    """Lanes for a batch: one for a tiny batch, up to `at_most` for a large one."""
    return max(1, min(at_most, max(rows // ROWS_PER_LANE, size // BYTES_PER_LANE)))
