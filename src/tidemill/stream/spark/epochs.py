"""Epochs of real time as Spark sees them: a stream that always has a next batch, and a stage whose tasks stand in it.

Spark's own source `rate-micro-batch` counts epochs, inside the JVM. A source in Python would need a planning process
for each stream and three daemons with their workers beside it, all with PySpark in memory, for nothing that an epoch
needs: the lanes are handed to the tasks with the function that they run (ADR 57).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

from tidemill.stream.batch.plan import Plan
from tidemill.stream.lane.standing import StandingPlace, stand

_NOTHING = "lane int"


def read_epochs(spark: Any) -> Any:
    """A stream that has a batch of one row for every epoch."""
    counted = {"rowsPerBatch": 1, "numPartitions": 1, "startTimestamp": 0, "advanceMillisPerBatch": 1}
    return spark.readStream.format("rate-micro-batch").options(**counted).load()


def stand_through(frame: Any, plan: Plan, place: StandingPlace, epoch: int) -> None:
    """Returns when every lane of this epoch has returned. `frame` is a batch of `read_epochs`: its job is one of that
    query, with as many tasks as this epoch has lanes."""
    task = partial(_stand, plan.to_json(), place, epoch)
    frame.sparkSession.range(0, place.lanes, 1, place.lanes).mapInArrow(task, _NOTHING).toArrow()


def warm_workers(spark: Any, count: int) -> None:
    """A task per core, each long enough that no worker can take two."""
    spark.range(0, count, 1, count).mapInArrow(_warm, _NOTHING).toArrow()


def _stand(plan: str, place: StandingPlace, epoch: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: a partition is a lane."""
    from pyspark import TaskContext

    from tidemill.stream.spark.source import deliver_lane

    for _ in batches:
        pass  # what Spark counts
    task = TaskContext.get()
    assert task is not None
    yield from stand(place, Plan.from_json(plan), epoch, task.partitionId(), deliver_lane)


def _warm(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import time

    from tidemill.stream.spark.daemon import preload

    for _ in batches:
        pass
    preload()
    time.sleep(0.1)
    yield from ()
