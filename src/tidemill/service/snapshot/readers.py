"""The driver's side of the tasks that read chunks: they stand for a *shift*, one Spark job, and are sent chunks as they
get through with others (`stream/snapshot.py`).

A shift is short enough that other jobs of the session get their turn, and long enough that its price, a job and a
login for each reader, does not matter. Whatever is lost ends it; chunks without a result are read again.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from tidemill.contracts import ChunkCopy, SnapshotReader, SnapshotRecord, TableCopy
from tidemill.errors import StreamError
from tidemill.model.position import Offset
from tidemill.service.snapshot.observations import Observation
from tidemill.service.snapshot.plan import first_observation
from tidemill.stream.snapshot import ChunkResult, ChunkTask, pack_tasks, stand_readers
from tidemill.stream.spark.session import lane_addresses, reach_spark
from tidemill.stream.trigger.channel import DEAD_SECONDS, END, READ, RESULTS, Channel, heartbeat
from tidemill.stream.trigger.standing import LaneServer

_SHIFT_SECONDS, _IDLE_SECONDS = 10.0, 1.0
_FIRST_SHARE, _SHARE, _LARGEST_SHARE = 2, 6, 24  # assignments that a reader has at a time, at first only few
_ARRIVAL_SECONDS, _END_MILLISECONDS, _RETURN_SECONDS = 0.01, 50, 5.0


@dataclass(slots=True, eq=False)
class Assignment:
    """Chunks that one reader reads one after the other, by staging id, and their tables by number, both as they were
    when it was made. `observations`: those that results count."""

    record: SnapshotRecord
    tables: dict[int, TableCopy]
    chunks: dict[str, ChunkCopy]
    tasks: Sequence[ChunkTask]
    observations: Sequence[Observation]
    sent_at: float = 0.0
    due: set[str] = field(default_factory=set)
    """Chunks without a result."""

    @classmethod
    def of(
        cls, record: SnapshotRecord, tables: dict[int, TableCopy], copies: Sequence[ChunkCopy],
        observations: Sequence[Observation], *, whole: bool,
    ) -> Assignment:  # fmt: skip
        """`whole`: the log has the stream from its first event on."""

        def task_of(copy: ChunkCopy) -> ChunkTask:
            table = tables[copy.table]
            first = first_observation(copy, table, observations, whole)
            return ChunkTask(copy.chunk, table.structure, copy.staging_id(record.identity), first)

        chunks = {copy.staging_id(record.identity): copy for copy in copies}
        tasks = [task_of(copy) for copy in copies]
        return cls(record, tables, chunks, tasks, tuple(observations), due=set(chunks))

    def stage(self, result: ChunkResult) -> ChunkCopy:
        """The chunk as it is when it is read."""
        chunk = self.chunks[result.staging]
        return replace(
            chunk, high=result.high, commit_time=result.commit_time, rows=result.rows,
            since=0 if result.observation is None else self.observations[result.observation][0],
            fingerprint=self.tables[chunk.table].structure.table.fingerprint,
        )  # fmt: skip


Finding = tuple[Assignment, ChunkResult]


class ChunkReaders:
    """At most one shift at a time: `max_connections` holds for all of it. For one thread."""

    def __init__(self, spark: Any, log: str) -> None:
        self._spark, self._log = spark, log
        self._beside = ThreadPoolExecutor(1, "chunks")
        self._server: LaneServer | None = None
        self._job: Future[None] | None = None
        self._shift = self._count = 0
        self._began = self._worked_at = 0.0
        self._lost = ""
        self._channels: list[Channel] = []
        self._silent: set[Channel] = set()  # nothing more is to be heard from these
        self._reading: list[list[Assignment]] = []  # of each channel, in the order in which they were sent
        self._unsent: deque[Assignment] = deque()
        self._found: list[Finding] = []
        self._share = _SHARE
        self._ready = select.poll()
        self._beats = ExitStack()

    @property
    def standing(self) -> bool:
        return self._job is not None

    def room(self, count: int) -> int:
        """How many assignments may be given now to so many readers; none when the shift is to end."""
        if self._job is not None and self._is_late:
            return 0
        share = self._share if self._worked_at > self._began else _FIRST_SHARE
        return max(0, count * share - sum(1 for _ in self.assignments()))

    @property
    def finished(self) -> bool:
        """Whether nothing is being read, and the shift's time is up or there was no work for a while."""
        idle = self._job is not None and not any(True for _ in self.assignments())
        return idle and (self._is_late or time.monotonic() - self._worked_at > _IDLE_SECONDS)

    def assignments(self) -> Iterator[Assignment]:
        """Those that have chunks without a result."""
        yield from self._unsent
        for reading in self._reading:
            yield from reading

    def windows(self) -> Iterator[Offset]:
        """Where the log was when what is being read, or was read and not taken yet, may have begun."""
        for assignment in chain(self.assignments(), (each for each, _ in self._found)):
            yield assignment.observations[0][0]

    def begin(self, count: int, reader: SnapshotReader) -> None:
        """A job that makes readers stand, unless they do. They are sent what was given when they come."""
        if self._job is not None:
            return
        if self._server is None:
            self._server = LaneServer(*lane_addresses(self._spark))
        self._shift, self._count, self._lost = self._shift + 1, count, ""
        self._began = self._worked_at = time.monotonic()
        self._server.expect(self._shift)
        place, shift = self._server.place(count), self._shift
        self._job = self._beside.submit(stand_readers, self._spark, reader, self._log, place, shift, self._group)

    def give(self, assignments: Sequence[Assignment]) -> None:
        """A reader that had nothing left meanwhile gets more at a time from now on."""
        if assignments and self._worked_at > self._began and not all(self._reading):
            self._share = min(2 * self._share, _LARGEST_SHARE)
        self._unsent.extend(assignments)
        self._send()

    def wait(self, seconds: float, *, hungry: bool) -> None:
        """Hears readers for so long, or until they are through with all they have. `hungry`: or until one of them has
        little left, because there may be more to give."""
        deadline = time.monotonic() + seconds
        working = any(True for _ in self.assignments())
        while self._job is not None and not self._job.done() and not self._lost:
            self._send()
            low = self._channels and not self._unsent and min(map(len, self._reading)) <= self._share // 2
            if (hungry and low) or (working and not any(True for _ in self.assignments())):
                return
            if (left := deadline - time.monotonic()) <= 0:
                return
            left = min(left, _ARRIVAL_SECONDS) if len(self._channels) < self._count else left
            self._ready.poll(int(left * 1000 + 1))
            self._hear()

    def take(self) -> list[Finding]:
        """What was read since, of assignments that are read whole: small tables are noted, and come into the log,
        together. Raises when a reader, or the job, is gone: then nothing is being read."""
        if self._job is not None:
            self._hear()
            if self._job.done() or self._lost:
                self.end()
                raise StreamError(
                    self._lost or "Spark ended the job that reads chunks",
                    fix="Nothing is lost: what was not read is read again. If it repeats, look at Spark's log.",
                )
        found = [each for each in self._found if not each[0].due]
        self._found = [each for each in self._found if each[0].due]
        return found

    def end(self) -> list[Finding]:
        """Lets readers return when they are through with their chunk, waits for them, and answers what was read since.
        What else they were sent is not read. A reader that does not even say that it lives is killed. Raises what the
        job raises."""
        if self._job is None:
            return []
        assert self._server is not None
        deadline, cancelled = time.monotonic() + _RETURN_SECONDS, False
        try:
            self._server.expect(-1)
            for channel in self._channels:
                with suppress(OSError):  # it is gone already
                    channel.send(END)
            while not self._job.done():
                self._ready.poll(_END_MILLISECONDS)
                self._hear()
                if not cancelled and time.monotonic() > deadline and self._silent.issuperset(self._channels):
                    cancelled = True
                    with reach_spark():
                        self._spark.sparkContext.cancelJobGroup(self._group)
            self._hear()
            with reach_spark():
                if not (cancelled and self._job.exception()):
                    self._job.result()
            return self._found
        finally:
            self._job = None
            self._silent.clear()
            self._beats.close()
            for channel in self._channels:
                channel.close()
            self._channels, self._reading, self._found = [], [], []
            self._unsent.clear()
            self._ready = select.poll()

    def close(self) -> None:
        """What was read and not taken is read again after the next start."""
        try:
            self.end()
        finally:
            self._beside.shutdown()
            if self._server is not None:
                self._server.close()

    @property
    def _group(self) -> str:
        """Spark's name for this shift's job."""
        return f"chunks {self._log} {self._shift}"

    @property
    def _is_late(self) -> bool:
        return time.monotonic() - self._began > _SHIFT_SECONDS

    def _send(self) -> None:
        """The next assignments, to readers that have the least to do; those that came just now are among them."""
        if self._server is not None and len(self._channels) < self._count:
            for channel in self._server.gather(self._count, 0.0).values():
                self._channels.append(channel)
                self._reading.append([])
                self._ready.register(channel, select.POLLIN)
                self._beats.enter_context(heartbeat(channel))
        while self._unsent and self._channels:
            reading, channel = min(zip(self._reading, self._channels, strict=True), key=lambda each: len(each[0]))
            if len(reading) >= self._share:
                return
            assignment = self._unsent.popleft()
            reading.append(assignment)
            assignment.sent_at = self._worked_at = time.monotonic()
            try:
                channel.send(READ, pack_tasks(assignment.tasks, [token for _, token in assignment.observations]))
            except OSError as error:
                self._lost = f"a reader of chunks is gone: {error}"
                return

    def _hear(self) -> None:
        for channel, reading in zip(self._channels, self._reading, strict=True):
            try:
                while frame := channel.receive(0):
                    kind, payload = frame
                    if kind == RESULTS:
                        self._note(ChunkResult.from_json(payload), reading)
            except OSError as error:
                self._lost = self._lost or f"a reader of chunks is gone: {error}"
                self._silent.add(channel)
                with suppress(KeyError):  # it would be found ready for ever
                    self._ready.unregister(channel)
                continue
            if time.monotonic() - channel.last_heard > DEAD_SECONDS:
                self._lost = self._lost or f"a reader of chunks has been silent for {DEAD_SECONDS:.0f} seconds"
                self._silent.add(channel)

    def _note(self, result: ChunkResult, reading: list[Assignment]) -> None:
        self._worked_at = time.monotonic()
        assignment = next(each for each in reading if result.staging in each.due)
        assignment.due.discard(result.staging)
        self._found.append((assignment, result))
        if not assignment.due:
            reading.remove(assignment)
