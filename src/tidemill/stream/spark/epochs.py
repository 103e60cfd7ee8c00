"""Epochs of real time as Spark sees them: a stream that always has a next batch, and a job whose tasks stand in it.

Spark's own source `rate-micro-batch` counts epochs, inside the JVM. A source in Python would need a planning process
for each stream and three daemons with their workers beside it, all with PySpark in memory, for nothing that an epoch
needs: the lanes are handed to the tasks with the function that they run (ADR 57). The job is a plain one, of an RDD:
a frame with a function in Python would have Spark plan a query, and PySpark import pandas, for rows that nobody reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tidemill.stream.batch.plan import Plan
from tidemill.stream.lane.standing import StandingPlace, stand

_LOOK_SECONDS = 0.05


def read_epochs(spark: Any) -> Any:
    """A stream that has a batch of one row for every epoch."""
    counted = {"rowsPerBatch": 1, "numPartitions": 1, "startTimestamp": 0, "advanceMillisPerBatch": 1}
    return spark.readStream.format("rate-micro-batch").options(**counted).load()


def stand_through(spark: Any, plan: Plan, place: StandingPlace, epoch: int) -> None:
    """Returns when every lane of this epoch has returned. Called where a stream's batch is handed out, so that the job
    belongs to the stream."""
    _run_tasks(spark, place.lanes, partial(_stand, plan.to_json(), place, epoch))


def await_tasks(spark: Any, group: str, seconds: float) -> bool:
    """Waits for tasks that still run although the last job of the group has ended: one that failed or was cancelled
    does not wait for them. Spark tells them to end, and kills the worker of one that does not in two to four seconds;
    from a host that is cut off nothing is heard. False when some are left."""
    tracker, deadline = spark.sparkContext.statusTracker(), time.monotonic() + seconds
    job = max(tracker.getJobIdsForGroup(group), default=None)
    while job is not None and _count_active(tracker, job):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _count_active(tracker: Any, job: int) -> int:
    found = tracker.getJobInfo(job)
    stages = [tracker.getStageInfo(stage) for stage in found.stageIds] if found is not None else []
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def warm_workers(spark: Any, count: int) -> None:
    """A task per core, each long enough that no worker can take two."""
    _run_tasks(spark, count, _warm)


def _run_tasks(spark: Any, count: int, task: Callable[[int], list[None]]) -> None:
    """Tasks that return nothing; each is called with its number."""
    spark.sparkContext.parallelize(range(count), count).flatMap(task).collect()


def _stand(plan: str, place: StandingPlace, epoch: int, lane: int) -> list[None]:
    """In a worker."""
    from tidemill.stream.spark.source import deliver_lane

    stand(place, Plan.from_json(plan), epoch, lane, deliver_lane)
    return []


def _warm(number: int) -> list[None]:
    from tidemill.stream.spark.daemon import preload

    preload()
    time.sleep(0.1)
    return []
