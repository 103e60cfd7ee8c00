"""The index's memory and its cost when nothing happens."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.log.conftest import OpenStore
from tests.log.look import offsets
from tests.support.blocks import make_change, make_spill, position
from tidemill.errors import LogError
from tidemill.log import LogConfig, LogReader, LogWriter, Tail
from tidemill.log import index as index_module
from tidemill.log.backlog import Backlog
from tidemill.log.codec import dump
from tidemill.log.entry import Entry, index_name
from tidemill.log.index import pack, scan
from tidemill.log.objects import ObjectStore
from tidemill.model.barrier import Barrier
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


def test_a_process_that_writes_and_reads_a_log_never_imports_pandas(tmp_path: Path) -> None:
    script = f"""
import sys
from tidemill.log import LogConfig, LogReader, LogWriter, Tail
from tidemill.log import codec
from tidemill.model.change import Committed, SpillCommitted, Spilled
import pyarrow as pa
reader = LogReader({str(tmp_path / "log")!r})
spilled = codec.load_spilled(pa.memory_map({str(tmp_path / "spilled")!r}).read_buffer())
writer = LogWriter.open({str(tmp_path / "log")!r}, LogConfig())
for aborted in ((), (8,)):
    writer.spill(Spilled(7, (spilled,), 4))
    writer.commit_spill(SpillCommitted(7, "0/1", 7, 0, "0/1", frozenset(aborted)))
blocks = [reader.read(ref) for ref in reader.refs(0, 6)]
writer.append(Committed((codec.load(pa.py_buffer(b"".join(codec.dump(blocks[0])))),), 4, ((4, "0/2"),)))
assert sum(block.rows for block in blocks) == 6
assert "pandas" not in sys.modules
"""
    (tmp_path / "spilled").write_bytes(b"".join(dump(make_spill(7, 4, subtx=[7, 8, 7, 8]).blocks[0])))
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_record_survives_the_way_through_its_line() -> None:
    entry = Entry(7, 3, 0, 12, Barrier.TRUNCATE, ((1, Position("ü\n")), (3, Position('"'))), (), Position("0/1"))
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


def test_a_reader_that_lists_segments_anew_reads_those_that_grew_to_their_end(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=20_000)
    writer = LogWriter.open(str(tmp_path), config)
    writer.append(make_change(5))
    reader = LogReader(str(tmp_path))
    assert reader.tail().offset == 5
    while len(list(tmp_path.glob("*.idx"))) < 3:
        writer.append(make_change(5))
    assert reader.head() == 0
    assert offsets(reader) == list(range(writer.tail.offset))
    writer.close()


def test_blocks_that_are_gone_are_an_error_and_not_fewer_blocks() -> None:
    memory, _ = pafs.FileSystem.from_uri("mock://")
    writer = LogWriter.open(ObjectStore(memory, "log"), LogConfig())
    writer.append(make_change(3))
    writer.append(make_change(3, number=2))
    store = ObjectStore(memory, "log")
    reader = LogReader(store)
    assert reader.tail().offset == 6
    store._remembered.clear()  # that was a while ago
    reader._index._looked_at = float("inf")  # it has looked just now
    ObjectStore(memory, "log").remove(index_name(3))
    refs = reader._entries(0, 6)
    next(refs)
    reader._index._cached.pop(3)  # others were read in between
    with pytest.raises(LogError, match="offsets 3 to 5 are not in the log any more"):
        next(refs)
