"""Readers of a snapshot's chunks: Spark tasks that stand for seconds, read what the driver sends them, and stage it
beside the log.

Rows never come to the driver. A reader answers with the places of the blocks that it wrote, which the driver seals. It
stands because a job for a few chunks each would cost more than reading them (ADR 62); the connection is that of
standing lanes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from tidemill.contracts import LoggingInReader, SnapshotReader
from tidemill.errors import ErrorData, TableLocked, TidemillError, to_data
from tidemill.log.staging import Manifest, Part, Staging
from tidemill.model.block import Block
from tidemill.model.columns import column
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, SnapshotTable
from tidemill.stream.lane.standing import StandingPlace
from tidemill.stream.trigger.channel import END, READ, RESULTS, SILENT_DRIVER_SECONDS, Channel, call, heartbeat
from tidemill.telemetry.failpoints import failpoint

_PART_BYTES = 32 << 20  # held in a worker's memory at a time
_NICENESS = 5
_LOCKED_SECONDS = 5.0


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

    def to_json(self) -> bytes:
        manifest = Manifest(self.staging, self.parts).to_json().decode()
        rest = [self.high, self.observation, self.commit_time, self.proven, self.error]
        return orjson.dumps([manifest, *rest])

    @classmethod
    def from_json(cls, data: bytes) -> ChunkResult:
        manifest, high, *rest = orjson.loads(data)
        read = Manifest.from_json(manifest)
        return cls(read.id, read.parts, Position(high), *rest)


def pack_tasks(tasks: Sequence[ChunkTask], observations: Sequence[str]) -> bytes:
    """What a reader is sent: chunks, to be read one after the other."""
    docs = [[task.chunk.to_json(), task.table.to_json(), task.staging, task.first] for task in tasks]
    return orjson.dumps([docs, observations])


def _unpack_tasks(data: bytes) -> Iterator[tuple[ChunkTask, Sequence[str]]]:
    docs, observations = orjson.loads(data)
    for chunk, table, *rest in docs:
        yield ChunkTask(Chunk.from_json(chunk), SnapshotTable.from_json(table), *rest), observations


def stand_readers(spark: Any, reader: SnapshotReader, log: str, place: StandingPlace, shift: int, group: str) -> None:
    """One job, a task on a connection of its own for each of the place's lanes; returns when all have returned. Who
    cancels the job group has workers killed that do not."""
    work, count = partial(_stand, reader, log, place, shift), place.lanes
    spark.sparkContext.setJobGroup(group, "reads chunks of a snapshot", interruptOnCancel=True)
    spark.sparkContext.parallelize(range(count), count).flatMap(work).collect()


def _stand(reader: SnapshotReader, log: str, place: StandingPlace, shift: int, number: int) -> list[None]:
    """In a worker. Reads in a thread that gives way to lanes, until the driver says that it is enough, or is gone."""
    try:
        channel = call((place.host, place.port), bytes.fromhex(place.token), {"epoch": shift, "lane": number})
    except OSError:
        return []  # the shift is over
    try:
        with ThreadPoolExecutor(1, "chunks", _give_way) as own, heartbeat(channel):
            own.submit(_serve, channel, reader, log).result()
    except OSError:
        return []  # the driver hung up: what it does not know of is read again
    finally:
        channel.close()
    return []


def _serve(channel: Channel, reader: SnapshotReader, log: str) -> None:
    """Chunks that were sent and not begun when the driver says `END` are not read."""
    waiting: deque[tuple[ChunkTask, Sequence[str]]] = deque()
    locked: dict[str, tuple[float, ErrorData]] = {}  # tables, when they were found so, and what was said
    with closing(reader), _StagingThread() as thread:
        with suppress(TidemillError):  # the first chunk's read says what is wrong
            if isinstance(reader, LoggingInReader):
                reader.get_ready()
        while True:
            while (frame := channel.receive(0 if waiting else SILENT_DRIVER_SECONDS)) is not None:
                thread.check()  # at least with each heartbeat: nobody else waits for what it does last
                kind, payload = frame
                if kind == END:
                    return
                if kind == READ:
                    waiting.extend(_unpack_tasks(payload))
            if not waiting:
                return  # not even a heartbeat
            task, observations = waiting.popleft()
            with _not_of_the_channel():
                finish = _read_one(reader, log, observations, task, thread, locked)
            thread.then(partial(_send_result, channel, finish))


def _send_result(channel: Channel, finish: Callable[[], ChunkResult]) -> None:
    with _not_of_the_channel():
        result = finish().to_json()
    channel.send(RESULTS, result)


@contextmanager
def _not_of_the_channel() -> Iterator[None]:
    """An `OSError` here does not say that the driver is gone: the task fails, and Spark says why."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(f"a chunk was not read: {error.strerror or type(error).__name__}") from error


def _give_way() -> None:
    """Lanes that deliver changes come before this thread. A priority that was lowered stays so, and the worker's next
    task may be a lane's: so only threads that end with their task are lowered, which Linux can."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, min(19, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS))


def _read_one(
    reader: SnapshotReader, log: str, observations: Sequence[str], task: ChunkTask, thread: _StagingThread,
    locked: dict[str, tuple[float, ErrorData]],
) -> Callable[[], ChunkResult]:  # fmt: skip
    """What answers when the chunk's last part is on disk. An error of one chunk leaves the others; but who has waited
    for a lock does not wait again at once, for the next chunk of the table."""
    result = ChunkResult(task.staging)
    written: list[Future[Part]] = []
    found_at, said = locked.get(task.chunk.table, (-_LOCKED_SECONDS, ErrorData()))
    if time.monotonic() - found_at < _LOCKED_SECONDS:
        return lambda: replace(result, error=said)
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
        if isinstance(error, TableLocked):
            locked[task.chunk.table] = time.monotonic(), result.error

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
    """Writes one part after the other, and waits until it is on disk, while the next is read: who brings the next waits
    for the last, so that at most two are in memory."""

    def __init__(self) -> None:
        self._beside = ThreadPoolExecutor(1, "staging", _give_way)
        self._last: Future[Part] | None = None
        self._said: deque[Future[None]] = deque()

    def __enter__(self) -> _StagingThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.shutdown()

    def write(self, staging: Staging, name: str, blocks: list[Block]) -> Future[Part]:
        if self._last is not None:
            wait([self._last])
        self._last = self._beside.submit(staging.write, name, blocks)
        return self._last

    def then(self, say: Callable[[], None]) -> None:
        """Called when all that was brought so far is on disk. What it raises `check` raises."""
        self._said.append(self._beside.submit(say))
        self.check()

    def check(self) -> None:
        while self._said and self._said[0].done():
            self._said.popleft().result()


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
