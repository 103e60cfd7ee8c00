"""Who holds which slots of the session that the pipelines of a runtime share, and what is left for those that start."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidemill.service.run.status import State
from tidemill.service.run.supervisor import Supervisor
from tidemill.service.run.trigger_modes import choose_triggers, report_turns, standing_lanes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionSlots:
    """One per runtime; starts may come from several threads."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._beginning: set[Supervisor] = set()

    @contextmanager
    def choose(
        self, chosen: Collection[Supervisor], everybody: Collection[Supervisor], spark: SparkSession
    ) -> Iterator[None]:
        """Sets the triggers of those that start, or raises as `choose_triggers`. Until the caller has begun them their
        slots are taken for a start beside this one."""
        from tidemill.stream.spark.session import speculates

        master, twice = spark.sparkContext.master, speculates(spark)
        pipelines = [each.pipeline for each in chosen]
        with self._changing:
            held = sum(self._held_by(each) for each in everybody if each not in chosen)
            triggers = choose_triggers(pipelines, master, held, speculates=twice)
            for supervisor in chosen:
                supervisor.trigger = triggers[supervisor.pipeline.name]
            self._beginning.update(chosen)
        try:
            report_turns(pipelines, triggers, master, speculates=twice)
            yield
        finally:
            with self._changing:
                self._beginning.difference_update(chosen)

    def _held_by(self, supervisor: Supervisor) -> int:
        if supervisor not in self._beginning and supervisor.state not in (State.RUNNING, State.FAILING):
            return 0
        return standing_lanes(supervisor.pipeline, supervisor.trigger)
