"""A snapshot's chunks as Spark tasks: each is read from the source and staged beside the log, where it is.

Rows never come to the driver. A task answers with the places of the blocks that it wrote, which the driver seals.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidemill.contracts import SnapshotReader
from tidemill.errors import ErrorData, TidemillError, to_data
from tidemill.log.staging import Part, Staging
from tidemill.model.block import Block
from tidemill.model.columns import column
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, SnapshotTable
from tidemill.telemetry.failpoints import failpoint

_PART_BYTES = 32 << 20  # held in a worker's memory at a time
_NICENESS = 5


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """`staging` is the id under which its blocks are staged. The read must prove the observation `first` or a later
    one; with -1 it need not prove any."""

    chunk: Chunk
    table: SnapshotTable
    staging: str
    first: int = 0


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """`observation` as of `ChunkReading`. Nothing is staged with an `error`, or if it is not `proven`."""

    staging: str
    parts: tuple[Part, ...] = ()
    high: Position = Position("")  # noqa: RUF009
    observation: int | None = None
    commit_time: int = 0
    proven: bool = False
    error: ErrorData = field(default_factory=ErrorData)

    @property
    def rows(self) -> int:
        return sum(part.events for part in self.parts)


def read_chunks(
    spark: Any,
    reader: SnapshotReader,
    log: str,
    tasks: Sequence[Sequence[ChunkTask]],
    observations: Sequence[str],
) -> list[ChunkResult]:
    """One job, a task for each of `tasks`, on a connection each."""
    work = partial(_read, reader, log, tuple(observations))
    context = spark.sparkContext
    results: list[ChunkResult] = context.parallelize(list(tasks), len(tasks)).flatMap(work).collect()
    return results


def _read(
    reader: SnapshotReader, log: str, observations: Sequence[str], tasks: Sequence[ChunkTask]
) -> list[ChunkResult]:
    """In a worker. An error of one chunk leaves the others. One part is written, and waited for until it is on disk,
    while the next is read: at most two are in memory."""

    def read() -> list[ChunkResult]:
        try:
            with _StagingThread() as thread:
                found = [_read_one(reader, log, observations, task, thread) for task in tasks]
                return [each() for each in found]
        finally:
            reader.close()

    with ThreadPoolExecutor(1, "chunks", _give_way) as own:
        return own.submit(read).result()


def _give_way() -> None:
    """Lanes that deliver changes come before this thread. A priority that was lowered stays so, and the worker's next
    task may be a lane's: so only threads that end with their task are lowered, which Linux can."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS))


def _read_one(
    reader: SnapshotReader, log: str, observations: Sequence[str], task: ChunkTask, thread: _StagingThread
) -> Callable[[], ChunkResult]:
    """What answers when the chunk's last part is on disk."""
    result = ChunkResult(task.staging)
    written: list[Future[Part]] = []
    try:
        with reader.read(task.chunk, task.table, observations) as reading:
            if (-1 if reading.observation is None else reading.observation) < task.first:
                return lambda: result
            staging = Staging(log, task.staging)
            for number, blocks in enumerate(_cut(reading.blocks())):
                written.append(thread.write(staging, str(number), blocks))
            result = replace(
                result, high=reading.high, observation=reading.observation, commit_time=reading.commit_time, proven=True
            )  # fmt: skip
    except TidemillError as error:
        result = ChunkResult(task.staging, error=to_data(error))

    def finish() -> ChunkResult:
        try:
            parts = tuple(each.result() for each in written)
        except TidemillError as error:
            return ChunkResult(task.staging, error=to_data(error))
        if not result.proven:
            return result
        failpoint("snapshot.staged")
        return replace(result, parts=parts)

    return finish


class _StagingThread:
    """Writes one part after the other; who brings the next waits for the last."""

    def __init__(self) -> None:
        self._beside = ThreadPoolExecutor(1, "staging", _give_way)
        self._last: Future[Part] | None = None

    def __enter__(self) -> _StagingThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.shutdown()

    def write(self, staging: Staging, name: str, blocks: list[Block]) -> Future[Part]:
        if self._last is not None:
            wait([self._last])
        self._last = self._beside.submit(staging.write, name, blocks)
        return self._last


def _cut(blocks: Iterable[Block]) -> Iterator[list[Block]]:
    """Parts of bounded size; offsets count from 0 in each."""
    part: list[Block] = []
    rows = size = 0
    for block in blocks:
        offsets = column(np.arange(rows, rows + block.rows, dtype=np.uint64), pa.uint64())
        place = block.batch.schema.get_field_index("offset")
        part.append(Block(block.table, block.batch.set_column(place, block.batch.schema.field(place), offsets)))
        rows, size = rows + block.rows, size + block.batch.nbytes
        if size >= _PART_BYTES:
            yield part
            part, rows, size = [], 0, 0
    if part:
        yield part
