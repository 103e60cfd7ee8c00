"""The format of the index: kinds of barriers by name, logs of the format before, and refusal of the one after."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import orjson
import pytest

from tests.log.conftest import OpenStore
from tests.support.blocks import make_change, make_spill
from tidemill.errors import LogTooNew, is_retryable
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.entry import FORMAT
from tidemill.log.index import unpack
from tidemill.model.barrier import Barrier
from tidemill.model.change import SpillCommitted
from tidemill.model.position import Position

CONFIG = LogConfig()
# Written by the version before: appends of two events, of one with a barrier, and a spilled transaction of two.
OLD = Path(__file__).parent / "format_1"


def raise_format(index: Path) -> None:
    """What a later version may write: the same lines, with more in the documents."""
    data, at, lines = index.read_bytes(), 0, b""
    while found := unpack(data, at):
        doc, at = found
        text = orjson.dumps(doc | {"format": FORMAT + 1, "something": "new"})
        lines += b"%08x %d %s\n" % (zlib.crc32(text), len(text), text)
    index.write_bytes(lines)


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "writer.lock"}


def test_the_index_names_the_kind_of_each_barrier(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.append(make_change(2))
    writer.append(make_change(1, number=2, first_id=2, barrier=Barrier.SCHEMA_CHANGE))
    writer.append(make_change(1, number=3, first_id=3, barrier=Barrier.TRUNCATE))
    writer.append(make_change(1, number=4, first_id=4, barrier=Barrier.TRUNCATE | Barrier.SCHEMA_CHANGE))
    writer.close()
    reader = LogReader(place())
    assert [entry.barrier.kinds for entry in reader.entries()] == [
        [], ["schema_change"], ["truncate"], ["schema_change", "truncate"],
    ]  # fmt: skip
    assert [reader.barrier_at(offset) for offset in (0, 2, 3, 5)] == [
        Barrier.NONE, Barrier.SCHEMA_CHANGE, Barrier.TRUNCATE, Barrier.NONE,
    ]  # fmt: skip


def test_a_spilled_transaction_has_the_kinds_of_all_its_pieces(place: OpenStore) -> None:
    writer = LogWriter.open(place(), CONFIG)
    writer.spill(make_spill(7, 2, barrier=Barrier.TRUNCATE))
    writer.spill(make_spill(7, 2, start=2, barrier=Barrier.SCHEMA_CHANGE))
    writer.commit_spill(SpillCommitted(7, Position("0/300"), 7, 0, Position("0/310")))
    writer.close()
    assert LogReader(place()).barrier_at(0) == Barrier.TRUNCATE | Barrier.SCHEMA_CHANGE


def test_a_kind_that_this_version_does_not_know_is_a_barrier_all_the_same() -> None:
    assert Barrier.of(["truncate", "teleport"]) == Barrier.TRUNCATE | Barrier.UNNAMED


def test_a_log_of_the_version_before_is_read_and_written_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    shutil.copytree(OLD, log)
    reader = LogReader(str(log))
    assert [(e.base, e.rows, e.barrier) for e in reader.entries()] == [
        (0, 2, Barrier.NONE), (2, 1, Barrier.UNNAMED), (3, 2, Barrier.NONE),
    ]  # fmt: skip
    assert reader.plan(0, max_events=100, max_bytes=1 << 30) == 2
    assert reader.plan(2, max_events=100, max_bytes=1 << 30) == 3
    before = content(log)
    writer = LogWriter.open(str(log), CONFIG)
    assert content(log) == before
    writer.append(make_change(1, number=9, first_id=5, barrier=Barrier.TRUNCATE))
    writer.close()
    assert [ref.rows for ref in LogReader(str(log)).refs(0, 6)] == [2, 1, 2, 1]
    assert [offset for ref in reader.refs(0, 6) for offset in reader.read(ref).offsets().tolist()] == list(range(6))
    assert reader.barrier_at(5) == Barrier.TRUNCATE


def test_a_reader_of_the_version_before_still_finds_whether_there_is_a_barrier(tmp_path: Path) -> None:
    """It takes `barrier` for a truth value, and ignores what it does not know: going back a version loses nothing."""
    writer = LogWriter.open(str(tmp_path), CONFIG)
    writer.append(make_change(1, barrier=Barrier.TRUNCATE))
    writer.close()
    found = unpack(next(tmp_path.glob("*.idx")).read_bytes())
    assert found is not None
    assert (found[0]["barrier"], found[0]["barriers"], found[0]["format"]) == (True, ["truncate"], 2)


def test_a_log_of_a_later_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    writer = LogWriter.open(str(tmp_path), CONFIG)
    for number in range(3):
        writer.append(make_change(1, number=number, first_id=number))
    writer.close()
    raise_format(next(tmp_path.glob("*.idx")))
    before = content(tmp_path)
    with pytest.raises(LogTooNew, match=f"format {FORMAT + 1}") as refused:
        LogWriter.open(str(tmp_path), CONFIG)
    assert "newer version" in refused.value.fix
    assert not is_retryable(refused.value)
    with pytest.raises(LogTooNew):
        LogReader(str(tmp_path)).tail()
    assert content(tmp_path) == before
