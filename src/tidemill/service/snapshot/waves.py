"""Waves of chunks: Spark jobs, one after the other. While one is read, the next is prepared and the last one sealed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from tidemill.contracts import ChunkCopy, SnapshotReader, SnapshotRecord, TableCopy
from tidemill.model.position import Offset
from tidemill.service.snapshot.plan import first_observation
from tidemill.stream.snapshot import ChunkResult, ChunkTask, read_chunks
from tidemill.stream.spark.session import reach_spark

_USUAL_SECONDS, _LONG_SECONDS, _DEEPEST, _GROWTH = 2.5, 5.0, 16, 4


@dataclass(frozen=True, slots=True)
class Wave:
    """Chunks that one job reads, by staging id, and their tables by number, both as they were when it was prepared.
    `observations`: those that results count. `full`: every task has as many chunks as it may have."""

    record: SnapshotRecord
    tables: dict[int, TableCopy]
    chunks: dict[str, ChunkCopy]
    tasks: Sequence[Sequence[ChunkTask]]
    observations: Sequence[tuple[Offset, str]]
    full: bool

    @classmethod
    def of(
        cls, record: SnapshotRecord, tables: dict[int, TableCopy], tasks: Sequence[Sequence[ChunkCopy]],
        observations: Sequence[tuple[Offset, str]], *, whole: bool, size: int,
    ) -> Wave:  # fmt: skip
        """`whole`: the log has the stream from its first event on. `size`: how many chunks a full wave has."""

        def task_of(copy: ChunkCopy) -> ChunkTask:
            table = tables[copy.table]
            first = first_observation(copy, table, observations, whole)
            return ChunkTask(copy.chunk, table.structure, copy.staging_id(record.identity), first)

        chunks = {copy.staging_id(record.identity): copy for task in tasks for copy in task}
        work = [[task_of(copy) for copy in task] for task in tasks]
        return cls(record, tables, chunks, work, tuple(observations), len(chunks) >= size)


class WaveRunner:
    """At most one wave is read at a time: `max_connections` holds for all of it. For one thread."""

    def __init__(self, spark: object, log: str) -> None:
        self._spark, self._log = spark, log
        self._beside = ThreadPoolExecutor(1, "chunks")
        self._job: Future[tuple[list[ChunkResult], float]] | None = None
        self.wave: Wave | None = None
        """The one that is being read."""
        self.depth = 2
        """Chunks that a task reads one after the other."""

    def begin(self, wave: Wave, reader: SnapshotReader) -> None:
        assert self.wave is None

        def read() -> tuple[list[ChunkResult], float]:
            began = time.monotonic()
            found = read_chunks(self._spark, reader, self._log, wave.tasks, [token for _, token in wave.observations])
            return found, time.monotonic() - began

        self.wave, self._job = wave, self._beside.submit(read)

    def end(self) -> tuple[Wave, list[ChunkResult]]:
        """Waits for the wave that is being read. If its job failed there is none any more."""
        assert self.wave is not None
        assert self._job is not None
        (wave, job), self.wave, self._job = (self.wave, self._job), None, None
        with reach_spark():
            results, seconds = job.result()
        self._adapt(seconds, full=wave.full)
        return wave, results

    def close(self) -> None:
        """Waits too; what was read is read again after the next start."""
        if self._job is not None:
            wait([self._job])
        self._beside.shutdown()

    def _adapt(self, seconds: float, *, full: bool) -> None:
        """Waves of a few seconds: a job has its price, however little it reads (0.1 s, and ten times that on a machine
        that is busy), and what a crash or a pause leaves is a wave."""
        if seconds > _LONG_SECONDS:
            self.depth = max(1, self.depth // 2)
        elif full:
            self.depth = min(_DEEPEST, int(self.depth * max(1.0, min(_GROWTH, _USUAL_SECONDS / seconds))))
