"""The driver's side and the tasks' side of reading chunks, over a real socket and a real log; threads stand in for
Spark's tasks, and a list of rows for the source."""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from tests.support.blocks import make_block, make_table
from tidemill.contracts import ChunkCopy, SnapshotReader, SnapshotRecord, TableCopy
from tidemill.errors import ConnectionLost, StreamError, from_data
from tidemill.log.staging import Staging
from tidemill.model.block import Block, Op
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, SnapshotState, SnapshotTable, TableState
from tidemill.service.snapshot import readers as module
from tidemill.service.snapshot.readers import Assignment, ChunkReaders, Finding
from tidemill.stream import snapshot as worker

PATIENCE = 60.0
RECORD = SnapshotRecord(1, "a test", SnapshotState.RUNNING, "")
TABLE = TableCopy("public.t", 1, TableState.COPYING, SnapshotTable(make_table(), ("id",), 100, Position("")))


class ThreadedSpark:
    """A stand-in: a thread for each task of a job."""

    def __init__(self) -> None:
        self.sparkContext = self
        self.jobs = 0
        self.group, self.cancelled = "", threading.Event()

    def getConf(self) -> dict[str, str]:
        return {}

    def setJobGroup(self, group: str, description: str, *, interruptOnCancel: bool) -> None:
        self.group = group

    def cancelJobGroup(self, group: str) -> None:
        assert group == self.group
        self.cancelled.set()

    def parallelize(self, tasks: Iterable[int], count: int) -> ThreadedSpark:
        self._tasks = list(tasks)
        return self

    def flatMap(self, work: Callable[[int], list[None]]) -> ThreadedSpark:
        self._work = work
        return self

    def collect(self) -> None:
        self.jobs += 1
        with ThreadPoolExecutor(len(self._tasks)) as tasks:
            list(tasks.map(self._work, self._tasks))


@dataclass
class ListReader:
    """A stand-in for a source: a chunk has three rows. `before` is called before each read."""

    before: Callable[[Chunk], None] = lambda chunk: None
    proves: int | None = 0
    read_chunks: list[int] = field(default_factory=list)
    high: Position = Position("0/1")  # noqa: RUF009
    commit_time: int = 7

    @property
    def observation(self) -> int | None:
        return self.proves

    @contextmanager
    def read(self, chunk: Chunk, table: SnapshotTable, observations: Sequence[str]) -> Iterator[ListReader]:
        self.read_chunks.append(chunk.number)
        self.before(chunk)
        yield self

    def blocks(self) -> Iterator[Block]:
        yield make_block(3, ops=Op.READ, positions=None)

    def close(self) -> None: ...


class Crew:
    def __init__(self, log: Path, reader: ListReader) -> None:
        self.spark, self.reader, self.log = ThreadedSpark(), cast(SnapshotReader, reader), str(log)
        self.readers = ChunkReaders(self.spark, self.log)

    def give(self, *numbers: int) -> None:
        chunks = [ChunkCopy(1, Chunk("public.t", number)) for number in numbers]
        self.readers.give([Assignment.of(RECORD, {1: TABLE}, [chunk], [(5, "seen")], whole=False) for chunk in chunks])

    def take(self, count: int) -> list[Finding]:
        found: list[Finding] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} chunks were read"
            self.readers.wait(0.05, hungry=False)
            found += self.readers.take()
        return found


@pytest.fixture
def crew_of(tmp_path: Path) -> Iterator[Callable[[ListReader], Crew]]:
    made: list[Crew] = []

    def make(reader: ListReader) -> Crew:
        made.append(Crew(tmp_path / "log", reader))
        return made[-1]

    yield make
    for crew in made:
        crew.readers.close()


def number_of(finding: Finding) -> int:
    assignment, result = finding
    return assignment.chunks[result.staging].chunk.number


def test_readers_share_what_they_are_given_and_what_they_staged_can_be_sealed(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    crew = crew_of(ListReader())
    crew.give(*range(20))
    crew.readers.begin(2, crew.reader)
    found = crew.take(20)
    assert sorted(map(number_of, found)) == list(range(20))
    assert not list(crew.readers.assignments())
    assignment, result = found[0]
    assert Staging(crew.log, result.staging).seal(result.parts).events == 3
    staged = assignment.stage(result)
    assert (staged.rows, staged.since, staged.high, staged.commit_time) == (3, 5, "0/1", 7)
    assert staged.fingerprint == TABLE.structure.table.fingerprint
    assert crew.spark.jobs == 1


def test_a_reader_that_stands_reads_on_with_the_same_job(crew_of: Callable[[ListReader], Crew]) -> None:
    crew = crew_of(ListReader())
    for number in range(5):
        crew.readers.begin(1, crew.reader)
        crew.give(number)
        assert [number_of(each) for each in crew.take(1)] == [number]
    assert crew.spark.jobs == 1


@dataclass
class LateReader(ListReader):
    """A stand-in for a source whose readers log in; the server refuses the first login."""

    logins: list[int] = field(default_factory=list)

    def get_ready(self) -> None:
        self.logins.append(len(self.read_chunks))
        raise ConnectionLost("the server is restarting")


def test_readers_log_in_before_there_is_a_chunk_and_a_refusal_is_left_to_the_first_read(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    reader = LateReader()
    crew = crew_of(reader)
    crew.readers.begin(1, crew.reader)
    deadline = time.monotonic() + PATIENCE
    while not reader.logins:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    crew.give(0, 1)
    assert sorted(map(number_of, crew.take(2))) == [0, 1]
    assert reader.logins == [0]


def test_a_reader_that_is_dismissed_finishes_its_chunk_and_leaves_the_others(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hold(chunk: Chunk) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    reader = ListReader(hold)
    crew = crew_of(reader)
    crew.readers.begin(1, crew.reader)
    crew.give(0, 1, 2)
    crew.readers.wait(PATIENCE, hungry=True)
    assert begun.wait(PATIENCE)
    threading.Timer(0.2, go_on.set).start()
    assert [number_of(each) for each in crew.readers.end()] == [0]
    assert reader.read_chunks == [0]
    assert not crew.readers.standing
    assert not list(crew.readers.assignments()), "what was not read is nobody's"


def test_after_its_time_a_shift_gets_nothing_more_and_ends_when_all_is_read(
    crew_of: Callable[[ListReader], Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    crew = crew_of(ListReader())
    crew.readers.begin(1, crew.reader)
    assert crew.readers.room(1) == module._FIRST_SHARE
    crew.give(0)
    crew.take(1)
    assert crew.readers.room(1) == module._SHARE
    assert not crew.readers.finished
    monkeypatch.setattr(module, "_SHIFT_SECONDS", 0.0)
    assert (crew.readers.room(1), crew.readers.finished) == (0, True)
    assert crew.readers.end() == []
    assert crew.readers.room(1) > 0


def test_a_reader_that_had_nothing_left_gets_more_at_a_time(crew_of: Callable[[ListReader], Crew]) -> None:
    crew = crew_of(ListReader())
    crew.readers.begin(1, crew.reader)
    for number in range(8):
        crew.give(number)
        crew.take(1)
    assert crew.readers.room(1) == module._LARGEST_SHARE


def test_errors_of_one_chunk_leave_the_others_and_what_proves_nothing_is_not_staged(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    def lose(chunk: Chunk) -> None:
        if chunk.number == 1:
            raise ConnectionLost("the server is gone")

    crew = crew_of(ListReader(lose))
    crew.readers.begin(1, crew.reader)
    crew.give(0, 1, 2)
    results = {number_of(each): each[1] for each in crew.take(3)}
    assert isinstance(from_data(results[1].error), ConnectionLost)
    assert [(number, result.proven, result.rows) for number, result in sorted(results.items())] == [
        (0, True, 3), (1, False, 0), (2, True, 3),
    ]  # fmt: skip
    blind = crew_of(ListReader(proves=None))
    blind.readers.begin(1, blind.reader)
    blind.give(3)
    ((_, result),) = blind.take(1)
    assert (result.proven, result.rows, result.error) == (False, 0, {})


def test_a_reader_that_dies_ends_the_shift_and_nothing_is_being_read_any_more(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    def die(chunk: Chunk) -> None:
        if chunk.number == 1:
            raise ZeroDivisionError

    crew = crew_of(ListReader(die))
    crew.readers.begin(1, crew.reader)
    crew.give(1, 2)
    with pytest.raises(ZeroDivisionError):
        crew.take(1)
    assert not crew.readers.standing
    assert not list(crew.readers.assignments())
    crew.readers.begin(1, crew.reader)
    crew.give(2)
    assert [number_of(each) for each in crew.take(1)] == [2]


def test_a_chunk_that_was_read_and_could_not_be_staged_ends_the_shift(
    crew_of: Callable[[ListReader], Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    crew = crew_of(ListReader())
    monkeypatch.setattr(Staging, "write", fail)
    crew.readers.begin(1, crew.reader)
    crew.give(0)
    with pytest.raises(RuntimeError, match="no room"):
        crew.take(1)
    assert not crew.readers.standing


def test_the_log_is_held_for_what_is_being_read_and_for_what_was_read_and_not_taken(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    crew = crew_of(ListReader())
    assert list(crew.readers.windows()) == []
    crew.give(0)
    assert list(crew.readers.windows()) == [5]
    crew.readers.begin(1, crew.reader)
    crew.readers.wait(PATIENCE, hungry=False)
    assert not list(crew.readers.assignments())
    assert list(crew.readers.windows()) == [5]
    crew.take(1)
    assert list(crew.readers.windows()) == []


def test_chunks_that_were_given_together_are_taken_together(crew_of: Callable[[ListReader], Crew]) -> None:
    go_on = threading.Event()

    def hold(chunk: Chunk) -> None:
        if chunk.number == 2:
            assert go_on.wait(PATIENCE)

    crew = crew_of(ListReader(hold))
    chunks = [ChunkCopy(1, Chunk("public.t", number)) for number in range(3)]
    crew.readers.begin(1, crew.reader)
    crew.readers.give([Assignment.of(RECORD, {1: TABLE}, chunks, [(5, "seen")], whole=False)])
    deadline = time.monotonic() + PATIENCE
    while len(next(crew.readers.assignments()).due) > 1:
        assert time.monotonic() < deadline, "two chunks were not read"
        crew.readers.wait(0.05, hungry=False)
        assert crew.readers.take() == []
    go_on.set()
    assert len(crew.take(1)) == 3


def test_a_connection_that_breaks_ends_the_shift(crew_of: Callable[[ListReader], Crew]) -> None:
    crew = crew_of(ListReader())
    crew.readers.begin(2, crew.reader)
    crew.give(0)
    crew.take(1)
    cast(Any, crew.readers)._channels[0]._sock.shutdown(socket.SHUT_RDWR)
    crew.give(1, 2, 3)
    with pytest.raises(StreamError, match="a reader of chunks is gone"):
        crew.take(3)
    assert not crew.readers.standing


def test_a_reader_that_is_stopped_is_killed_and_what_it_had_is_read_by_others(
    crew_of: Callable[[ListReader], Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in of a stopped process: it neither beats nor returns, until Spark kills it."""
    monkeypatch.setattr(module, "_RETURN_SECONDS", 0.1)
    monkeypatch.setattr(module, "DEAD_SECONDS", 0.5)
    monkeypatch.setattr(worker, "heartbeat", nullcontext)

    def stop(chunk: Chunk) -> None:
        assert crew.spark.cancelled.wait(PATIENCE)
        raise ZeroDivisionError

    crew = crew_of(ListReader(stop))
    crew.readers.begin(1, crew.reader)
    crew.give(1)
    with pytest.raises(StreamError, match="silent"):
        crew.take(1)
    assert crew.spark.cancelled.is_set()
    assert not list(crew.readers.assignments())


def test_a_reader_that_is_long_at_its_chunk_is_waited_for(
    crew_of: Callable[[ListReader], Crew], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETURN_SECONDS", 0.0)
    begun = threading.Event()

    def take_long(chunk: Chunk) -> None:
        begun.set()
        assert not crew.spark.cancelled.wait(0.5)

    crew = crew_of(ListReader(take_long))
    crew.readers.begin(1, crew.reader)
    crew.give(0)
    crew.readers.wait(PATIENCE, hungry=True)
    assert begun.wait(PATIENCE)
    assert [number_of(each) for each in crew.readers.end()] == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_chunks_are_read_by_a_thread_that_gives_way_and_the_worker_does_not(
    crew_of: Callable[[ListReader], Crew],
) -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen: list[int] = []
    crew = crew_of(ListReader(lambda chunk: seen.append(niceness())))
    crew.readers.begin(1, crew.reader)
    crew.give(0)
    crew.take(1)
    assert seen == [min(19, niceness() + 5)], "the worker's next task may be a lane's"
