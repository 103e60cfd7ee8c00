"""A snapshot's chunks in a worker."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.support.blocks import make_table
from tidemill.contracts import SnapshotReader
from tidemill.errors import ConnectionLost, from_data
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, SnapshotTable
from tidemill.stream.snapshot import ChunkTask, read_chunks


class HereSpark:
    """A stand-in: runs a job's tasks in this thread."""

    def __init__(self) -> None:
        self.sparkContext = self
        self._tasks: list[Any] = []
        self._work: Callable[[Any], list[Any]] = list

    def parallelize(self, tasks: list[Any], count: int) -> HereSpark:
        self._tasks = tasks
        return self

    def flatMap(self, work: Callable[[Any], list[Any]]) -> HereSpark:
        self._work = work
        return self

    def collect(self) -> list[Any]:
        return [result for task in self._tasks for result in self._work(task)]


class LostReader:
    """A stand-in that notes how important the thread is that reads."""

    def __init__(self) -> None:
        self.niceness: list[int] = []

    def read(self, *_: object) -> None:
        self.niceness.append(niceness())
        raise ConnectionLost("the server is gone")

    def close(self) -> None:
        self.niceness.append(niceness())


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priority of their own")
def test_chunks_are_read_by_a_thread_that_gives_way_and_the_worker_does_not() -> None:
    reader, before = LostReader(), niceness()
    table = SnapshotTable(make_table(), ("id",), 10, Position(""))
    task = ChunkTask(Chunk("public.t", 0), table, "staged")
    (result,) = read_chunks(HereSpark(), cast(SnapshotReader, reader), "nowhere", [[task]], [])
    assert isinstance(from_data(result.error), ConnectionLost)
    assert not result.proven
    assert reader.niceness == [min(19, before + 5)] * 2
    assert niceness() == before, "the worker's next task may be a lane's"
