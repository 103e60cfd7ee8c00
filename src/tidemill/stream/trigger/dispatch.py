"""How a batch gets to its lanes and their results back: the seam between the loop's body and the two triggers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tidemill.model.position import Offset
from tidemill.stream.batch.plan import Lane, Plan
from tidemill.stream.position import pins
from tidemill.stream.position.pin_file import PinnedBatch
from tidemill.stream.spark import source


class Dispatch(Protocol):
    """One batch. Results are a table of `source.RECEIPTS`."""

    def bounds(self, start: Offset) -> PinnedBatch:
        """The batch as it is pinned; it begins at the checkpoint, `start`."""

    def planned_at(self) -> int:
        """When it was planned, nanoseconds since 1970; 0 where nobody knows: by a run before this one."""

    def first(self, plan: Plan, sinks: Sequence[str] = ()) -> pa.Table:
        """All lanes to all sinks, which are named where the plan has changed since the batch was planned. May be called
        again when it raised."""

    def again(self, plan: Plan, work: Mapping[Lane, Mapping[str, Collection[Offset]]]) -> pa.Table:
        """Chosen lanes to chosen sinks once more, without the events at these offsets."""


class JobDispatch:
    """A micro-batch: a Spark job, and one more for each retry."""

    def __init__(self, spark: Any, frame: Any, directory: Path, number: int) -> None:
        self._spark, self._frame = spark, frame
        self._directory, self._number = directory, number
        self._bounds: PinnedBatch | None = None

    def bounds(self, start: Offset) -> PinnedBatch:
        end = pins.planned_end(self._directory, self._number)
        self._bounds = PinnedBatch(start, end["offset"], end.get("lanes", 1), end.get("by", "table"))
        return self._bounds

    def planned_at(self) -> int:
        return pins.planned_at(self._directory, self._number)

    def first(self, plan: Plan, sinks: Sequence[str] = ()) -> pa.Table:
        """The job that Spark planned has the plan of that time: a changed one takes another."""
        if not sinks or (batch := self._bounds) is None:
            return self._frame.toArrow()
        lanes = [Lane(batch.start, batch.end, lane, batch.lanes, batch.by) for lane in range(batch.lanes)]
        return source.again(self._spark, plan, dict.fromkeys(lanes))  # to all sinks, and looked at by sensing

    def again(self, plan: Plan, work: Mapping[Lane, Mapping[str, Collection[Offset]]]) -> pa.Table:
        return source.again(self._spark, plan, work)
