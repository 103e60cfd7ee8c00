"""Micro-batches: Spark plans each batch (source.py) and calls back with it, one at a time, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tidemill.stream.batch.plan import Plan
from tidemill.stream.spark import source
from tidemill.stream.trigger.callback import BatchFunction, Stopping
from tidemill.stream.trigger.dispatch import Dispatch, JobDispatch


class MicroBatches:
    """`deliver` is the loop's body; it gets every batch, in Spark's thread."""

    def __init__(self, spark: Any, stopping: threading.Event, deliver: Callable[[Dispatch, int], None]) -> None:
        self._spark, self._stopping, self._deliver = spark, stopping, deliver
        self._busy = threading.Lock()
        self._directory = Path()
        self._query: Any = None
        self._function: BatchFunction | None = None
        self._looked = False

    def start(self, name: str, plan: Plan, rule: Mapping[str, Any], directory: Path) -> Any:
        """The query."""
        self._directory = directory
        stream = self._spark.readStream.format(source.NAME).options(**source.options(plan, rule)).load().writeStream
        self._function = BatchFunction(self._spark, self._take)
        stream = stream.queryName(name).foreachBatch(self._function)
        # No `as_uri`: Hadoop takes a path's percent signs literally, and pins.py would look elsewhere.
        self._query = stream.option("checkpointLocation", f"file://{directory.absolute()}").start()
        return self._query

    def lanes_stand(self) -> bool:
        """Whether the query has looked for events once: its first look starts the Python process of the source."""
        self._looked = self._looked or self._query.lastProgress is not None
        return self._looked

    def finish(self, timeout: float) -> None:
        """Waits for the batch under way; another one does not begin."""
        if self._busy.acquire(timeout=timeout):
            self._busy.release()

    def close(self) -> None:
        """Once the query has ended."""
        if self._function is not None:
            self._function.hang_up()

    def _take(self, frame: Any, number: int) -> None:
        with self._busy:
            self._looked = True
            if self._stopping.is_set():
                raise Stopping
            self._deliver(JobDispatch(self._spark, frame, self._directory, number), number)
