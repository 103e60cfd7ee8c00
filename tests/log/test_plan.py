"""Where batches end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.log.conftest import OpenStore
from tests.support.blocks import make_change, make_spill, position
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.barrier import Barrier
from tidemill.model.change import SpillCommitted

PLENTY = 1 << 40


@pytest.fixture
def writer(place: OpenStore) -> Iterator[LogWriter]:
    writer = LogWriter.open(place(), LogConfig(segment_bytes=20_000))
    yield writer
    writer.close()


@pytest.fixture
def reader(writer: LogWriter, place: OpenStore) -> LogReader:
    return LogReader(place())


def batches(
    reader: LogReader, start: int, *, max_events: int = PLENTY, max_bytes: int = PLENTY, respect_tx: bool = True
) -> list[int]:
    ends = [start]
    while ends[-1] < reader.tail().offset:
        ends.append(reader.plan(ends[-1], max_events=max_events, max_bytes=max_bytes, respect_tx=respect_tx))
    return ends


def test_a_batch_ends_where_a_transaction_ends(writer: LogWriter, reader: LogReader) -> None:
    writer.append(make_change(3, 3, 3))
    writer.append(make_change(3, 3, number=4))
    assert batches(reader, 0, max_events=PLENTY) == [0, 15]
    assert batches(reader, 0, max_events=7) == [0, 6, 12, 15]
    assert batches(reader, 0, max_events=10) == [0, 9, 15]
    assert batches(reader, 0, max_events=9) == [0, 9, 15]


def test_a_transaction_larger_than_the_limits_is_one_batch(writer: LogWriter, reader: LogReader) -> None:
    writer.append(make_change(2, 50, 2))
    assert batches(reader, 0, max_events=5) == [0, 2, 52, 54]
    assert batches(reader, 0, max_bytes=1) == [0, 2, 52, 54]


def test_a_transaction_is_cut_only_when_allowed_and_only_when_it_does_not_fit(
    writer: LogWriter, reader: LogReader
) -> None:
    writer.append(make_change(2, 12, 2))
    assert batches(reader, 0, max_events=5, respect_tx=False) == [0, 2, 7, 12, 16]
    assert batches(reader, 0, max_bytes=1, respect_tx=False) == list(range(17))


def test_bytes_limit_a_batch_too(writer: LogWriter, reader: LogReader) -> None:
    sizes = [writer.append(make_change(100, number=n)).bytes for n in range(1, 7)]
    assert batches(reader, 0, max_bytes=2 * sizes[0] + 10) == [0, 200, 400, 600]


def test_a_barrier_is_a_batch_of_its_own(writer: LogWriter, reader: LogReader) -> None:
    writer.append(make_change(3))
    writer.append(make_change(2, 2, number=2, barrier=True))
    writer.append(make_change(1, number=4, barrier=True))
    writer.append(make_change(3, number=5))
    assert batches(reader, 0) == [0, 3, 7, 8, 11]
    assert batches(reader, 0, max_events=1) == [0, 3, 7, 8, 11]
    assert [ref.barrier for ref in reader.refs(0, 11)] == [False, True, True, False]


def test_appends_that_only_change_keys_are_a_batch_among_themselves(writer: LogWriter, reader: LogReader) -> None:
    keys = Barrier.KEY_CHANGE
    kinds = [
        Barrier.NONE,
        keys,
        keys,
        keys,
        keys | Barrier.SCHEMA_CHANGE,
        keys,
        Barrier.TRUNCATE,
        Barrier.TRUNCATE,
        keys,
    ]
    for number, kind in enumerate([*kinds, Barrier.NONE], 1):
        writer.append(make_change(2, number=number, barrier=kind))
    assert batches(reader, 0) == [0, 2, 8, 10, 12, 14, 16, 18, 20]
    assert batches(reader, 0, max_events=4)[1:4] == [2, 6, 8], "the limits count for them too"
    assert batches(reader, 0, max_events=1, respect_tx=False)[2:5] == [2, 4, 6], "one is never cut"
    assert batches(reader, 4)[:2] == [4, 8], "a batch that begins among them"


def test_a_spilled_transaction_with_a_barrier_stands_alone(writer: LogWriter, reader: LogReader) -> None:
    writer.append(make_change(3))
    writer.spill(make_spill(7, 3, barrier=True))
    writer.spill(make_spill(7, 3, start=3))
    writer.commit_spill(SpillCommitted(7, position(2), 7, 0, position(2)))
    writer.append(make_change(3, number=3))
    assert batches(reader, 0, max_events=1) == [0, 3, 9, 12]


def test_nothing_new_gives_back_the_start(writer: LogWriter, reader: LogReader) -> None:
    assert reader.plan(0, max_events=1, max_bytes=1) == 0
    writer.append(make_change(3))
    assert reader.plan(3, max_events=1, max_bytes=1) == 3
