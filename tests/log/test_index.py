"""The index's memory and its cost when nothing happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.log.conftest import OpenStore
from tests.support.blocks import make_change, position
from tidemill.log import LogConfig, LogReader, LogWriter, Tail
from tidemill.log import index as index_module
from tidemill.log.backlog import Backlog
from tidemill.log.entry import Entry
from tidemill.log.index import pack, scan
from tidemill.model.position import Position


def test_a_reader_keeps_a_couple_of_segments_in_memory_however_long_the_log_is(
    place: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_APPENDS", 6)
    writer = LogWriter.open(place(), LogConfig(segment_bytes=15_000))
    reader = LogReader(place())
    for number in range(1, 61):
        writer.append(make_change(5, number=number))
        reader.tail()
    assert len(reader._index.bases()) > 10
    start = 0
    while start < 300:
        start = reader.plan(start, max_events=20, max_bytes=1 << 30)
        cached = reader._index._cached
        # Two, and the last one, which says where the log ends.
        assert len(cached) <= 3 or sum(map(len, cached.values())) <= 7
    assert reader.position_at(7) == position(1)
    writer.close()


def test_looking_at_an_idle_log_reads_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LogWriter.open(str(tmp_path), LogConfig())
    writer.append(make_change(5))
    reader = LogReader(str(tmp_path))
    assert reader.tail() == Tail(5, position(1))

    def refuse(*_: object) -> None:
        raise AssertionError("a file was read")

    monkeypatch.setattr("tidemill.log.local.LocalStore.read", refuse)
    monkeypatch.setattr(os, "listdir", refuse)
    for _ in range(10):
        assert reader.tail() == Tail(5, position(1))
    writer.close()


def test_a_record_survives_the_way_through_its_line() -> None:
    entry = Entry(7, 3, 0, 12, True, ((1, Position("ü\n")), (3, Position('"'))), (), Position("0/1"))
    [(start, end, doc)] = scan(pack(entry))
    assert (start, end) == (0, len(pack(entry)))
    assert Entry.from_doc(doc, "") == entry


def test_a_backlog_of_a_million_appends_is_a_handful_of_heaps() -> None:
    backlog = Backlog(grain=1000)
    for number in range(1, 100_001):
        backlog.add(number, 10)
    assert backlog.bytes == 1_000_000
    assert len(backlog._heaps) == 1000
    backlog.deliver(50_000)
    assert 500_000 <= backlog.bytes <= 501_000
    backlog.deliver(100_000)
    assert backlog.bytes == 0
