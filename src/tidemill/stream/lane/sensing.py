"""Sensing in a Spark worker: the blocks of a lane, looked at as sinks read them.

It never fails a delivery. What goes wrong is an event, and the lane's share of the batch is not sensed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidemill.log.requeued import is_kept_back
from tidemill.model.block import Block
from tidemill.model.quarantine import Quarantine
from tidemill.schema.sensing import SensingOptions, Sensor
from tidemill.stream.batch import lanes
from tidemill.stream.batch.plan import Lane
from tidemill.stream.lane.pool import Tools
from tidemill.telemetry.context import bind
from tidemill.telemetry.events import warn


class LaneSensor:
    def __init__(
        self, tools: Tools, pipeline: str, lane: Lane, options: dict[str, Any], quarantines: Sequence[Quarantine] = ()
    ) -> None:
        self._tools, self._pipeline, self._lane, self._quarantines = tools, pipeline, lane, quarantines
        self._sensor: Sensor | None = Sensor(SensingOptions.of(options), tools.sensed)

    def observe(self, number: int, block: Block | None) -> None:
        """`number` is that of the block in the batch; None where the lane has no row of it. May be called again."""
        sensor = self._sensor
        if sensor is None:
            return
        try:
            sensor.observe(number, block)
        except Exception as error:  # noqa: BLE001  a type or a document that nobody thought of must not stop delivery
            self._give_up(error)

    def finish(self) -> bytes:
        """The result, with the blocks that no sink has read: it had them already."""
        try:
            return self._finish()
        except Exception as error:  # noqa: BLE001  the lane is delivered by now, whatever this is
            self._give_up(error)
            return b""

    def _give_up(self, error: Exception) -> None:
        self._sensor = None
        with bind(pipeline=self._pipeline, stage="sense"):
            warn("sensing.failed", start=self._lane.start, end=self._lane.end, error=type(error).__name__)

    def _finish(self) -> bytes:
        at, log = self._lane, self._tools.log
        for number, ref in enumerate(log.refs(at.start, at.end) if at.start < at.end else ()):
            if self._sensor is None:
                return b""
            if self._sensor.has_observed(number) or not lanes.may_have(ref, at.lane, at.lanes, at.by):
                continue
            if is_kept_back(ref, self._quarantines):
                continue  # sensed when they come
            self.observe(number, lanes.share(log.read(ref), ref, at.lane, at.lanes, at.by))
        return self._sensor.take() if self._sensor is not None else b""
