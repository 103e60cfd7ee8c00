"""Torn tails, flipped bytes, and a writer that is killed in the middle of its work."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.log.look import events, offsets
from tests.support.blocks import make_change, make_spill, make_table, position
from tidemill.errors import LogCorrupt, LogError
from tidemill.log import LogConfig, LogReader, LogWriter, Tail, acknowledge
from tidemill.log.entry import index_name, segment_name
from tidemill.model.change import SpillCommitted
from tidemill.model.position import Position

CONFIG = LogConfig(fsync=False)
TABLES = (make_table(), make_table("items"))
APPENDS = 4
ROWS = 6


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One segment with four appends of two blocks."""
    directory = tmp_path_factory.mktemp("pristine")
    writer = LogWriter.open(str(directory), CONFIG)
    for number in range(1, APPENDS + 1):
        writer.append(make_change(ROWS, number=number, tables=TABLES, first_id=number * 100))
    writer.close()
    return directory


@pytest.fixture
def log(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "log"))


def restore(pristine: Path, log: Path) -> None:
    shutil.rmtree(log)
    shutil.copytree(pristine, log)


def reopen_and_go_on(log: Path) -> int:
    """The log opens, holds whole appends only, and takes the next one. Returns how many were left."""
    writer = LogWriter.open(str(log), CONFIG)
    left, rest = divmod(writer.tail.offset, ROWS)
    assert rest == 0
    assert writer.tail == Tail(left * ROWS, position(left) if left else Position(""))
    writer.append(make_change(ROWS, number=left + 1, tables=TABLES, first_id=(left + 1) * 100))
    writer.close()
    found = events(LogReader(str(log)))
    assert [e["offset"] for e in found] == list(range((left + 1) * ROWS))
    assert [e["position"] for e in found] == [position(1 + i // ROWS) for i in range(len(found))]
    return left


def test_an_index_cut_at_any_byte_loses_only_the_appends_behind_it(pristine: Path, log: Path) -> None:
    data = (pristine / index_name(0)).read_bytes()
    records = [line + b"\n" for line in data.split(b"\n")[:-1]]
    assert len(records) == APPENDS
    ends = [sum(map(len, records[: n + 1])) for n in range(APPENDS)]
    for cut in {*range(0, len(data), 37), *ends, *(end - 1 for end in ends), *(end + 1 for end in ends[:-1])}:
        restore(pristine, log)
        (log / index_name(0)).write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert LogReader(str(log)).tail().offset == whole * ROWS, cut
        assert reopen_and_go_on(log) == whole, cut


def test_a_segment_cut_at_any_byte_loses_only_the_appends_behind_it(pristine: Path, log: Path) -> None:
    data = (pristine / segment_name(0)).read_bytes()
    ends = [max(ref.at + ref.size for ref in entry.blocks) for entry in LogReader(str(pristine)).entries()]
    for cut in {*range(0, len(data), 1999), *ends, *(end - 1 for end in ends)}:
        restore(pristine, log)
        (log / segment_name(0)).write_bytes(data[:cut])
        assert reopen_and_go_on(log) == sum(end <= cut for end in ends), cut


def test_garbage_behind_the_tail_is_cut(pristine: Path, log: Path) -> None:
    for garbage in (b"\0" * 4096, b"00000000 5 {...}\n", b"\n\n", random.Random(1).randbytes(3000)):
        restore(pristine, log)
        for name in (index_name(0), segment_name(0)):
            with open(log / name, "ab") as file:
                file.write(garbage)
        assert LogReader(str(log)).tail().offset == APPENDS * ROWS
        assert reopen_and_go_on(log) == APPENDS


def test_a_flipped_byte_in_the_index_is_never_read_as_something_else(pristine: Path, log: Path) -> None:
    data = bytearray((pristine / index_name(0)).read_bytes())
    last = data.rstrip(b"\n").rindex(b"\n") + 1
    rng = random.Random(2)
    for at in sorted({*range(0, len(data), 41), last - 1, last, len(data) - 1}):
        restore(pristine, log)
        flipped = bytearray(data)
        flipped[at] ^= 1 << rng.randrange(8)
        (log / index_name(0)).write_bytes(flipped)
        if at < last:
            with pytest.raises(LogCorrupt, match="checksum"):
                LogReader(str(log)).tail()
            with pytest.raises(LogCorrupt, match="checksum"):
                LogWriter.open(str(log), CONFIG)
        else:
            assert LogReader(str(log)).tail().offset == (APPENDS - 1) * ROWS, at
            assert reopen_and_go_on(log) == APPENDS - 1, at


def test_a_flipped_byte_in_a_block_is_found_when_it_is_read(pristine: Path, log: Path) -> None:
    data = (pristine / segment_name(0)).read_bytes()
    refs = LogReader(str(pristine)).refs(0, APPENDS * ROWS)
    for at in range(0, len(data), 1511):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        (log / segment_name(0)).write_bytes(flipped)
        reader = LogReader(str(log))
        for ref in refs:
            if ref.at <= at < ref.at + ref.size:
                with pytest.raises(LogCorrupt, match="checksum"):
                    reader.read(ref)
            else:
                reader.read(ref)


def test_a_tail_that_was_delivered_is_never_cut_in_silence(log: Path) -> None:
    acknowledge(str(log), Tail(APPENDS * ROWS, position(APPENDS)))
    with open(log / index_name(0), "r+b") as file:
        file.truncate((log / index_name(0)).stat().st_size - 3)
    with pytest.raises(LogCorrupt, match="were delivered"):
        LogWriter.open(str(log), CONFIG)
    (log / segment_name(0)).write_bytes(b"")
    before = {path.name: path.read_bytes() for path in log.iterdir() if path.name != "writer.lock"}
    with pytest.raises(LogCorrupt, match="were delivered"):
        LogWriter.open(str(log), CONFIG)
    # A log that is refused is left for whoever looks into it.
    assert before == {path.name: path.read_bytes() for path in log.iterdir() if path.name != "writer.lock"}


def test_a_log_that_ends_before_the_checkpoint_is_refused(log: Path) -> None:
    with pytest.raises(LogCorrupt, match="ends at offset 24"):
        LogWriter.open(str(log), CONFIG, base=Tail(25, position(9)))
    LogWriter.open(str(log), CONFIG, base=Tail(24, position(4))).close()


def test_a_new_segment_that_never_got_its_first_record_is_removed(log: Path) -> None:
    (log / segment_name(24)).write_bytes(b"data of an append that was never made visible")
    (log / index_name(24)).write_bytes(b"1234")
    assert LogReader(str(log)).tail() == Tail(24, position(4))
    assert reopen_and_go_on(log) == APPENDS
    assert not (log / segment_name(24)).exists()


def test_a_whole_log_that_is_torn_begins_where_its_first_append_did(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    writer = LogWriter.open(str(other), CONFIG, base=Tail(70, position(5)))
    writer.append(make_change(3, number=6))
    writer.close()
    (other / segment_name(70)).write_bytes(b"")
    (other / "position.json").unlink()
    writer = LogWriter.open(str(other), CONFIG)
    assert writer.tail == Tail(70, position(5))
    writer.close()


# Appends, spills and rolls segments until it is killed; says after each visible append how far the log is.
WRITER = """
import sys
from tests.support.blocks import make_change, make_spill, make_table, position
from tidemill.log import LogConfig, LogWriter
from tidemill.model.change import SpillAborted, SpillCommitted
tables = (make_table(), make_table("items"))
writer = LogWriter.open(sys.argv[1], LogConfig(segment_bytes=200_000, fsync=sys.argv[2] == "fsync"))
changes = [make_change(3, 40, 7, tables=tables), make_change(1), make_change(300, tables=tables)]
pieces = [make_spill(9, 50, start=start, subtx=[9 + start // 50] * 50) for start in (0, 50, 100)]
number = 0
while True:
    number += 1
    for change in changes:
        writer.append(change)
    for piece in pieces:
        writer.spill(piece)
    if number % 3 == 2:
        writer.drop_spill(SpillAborted(9))
    else:
        aborted = frozenset({10}) if number % 3 else frozenset()
        writer.commit_spill(SpillCommitted(9, position(1), 9, 0, position(1), aborted))
    print(writer.tail.offset, flush=True)
"""


@pytest.mark.slow  # many processes
@pytest.mark.parametrize("seed", range(4))
def test_a_writer_killed_at_any_moment_leaves_whole_appends_only(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    log = tmp_path / "log"
    known: list[tuple[int, int, int]] = []
    for _ in range(3):
        mode = rng.choice(["fsync", "no fsync"])
        root = Path(__file__).parents[2]
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(log), mode], stdout=subprocess.PIPE, text=True, cwd=root
        ) as process:
            assert process.stdout is not None
            said = [process.stdout.readline()]
            time.sleep(rng.random() * 0.15)
            process.send_signal(signal.SIGKILL)
            said += process.stdout.read().splitlines(keepends=True)
            process.wait(10)
        promised = max(int(line) for line in said if line.endswith("\n"))

        reader = LogReader(str(log))
        tail = reader.tail()
        assert tail.offset >= promised, f"seed {seed}"
        seen = [(entry.base, entry.rows, entry.bytes) for entry in reader.entries()]
        assert seen[: len(known)] == known, f"seed {seed}"
        assert {rows for _, rows, _ in seen} <= {50, 1, 300, 100, 150}, f"seed {seed}"
        assert offsets(reader) == list(range(tail.offset)), f"seed {seed}"

        writer = LogWriter.open(str(log), CONFIG)
        assert writer.tail == tail, f"seed {seed}"
        assert [path.name for path in log.glob("spill-*")] == []
        writer.close()
        known = seen


def test_a_reader_beside_a_running_writer_never_sees_half_an_append(tmp_path: Path) -> None:
    log = tmp_path / "log"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(log), "no fsync"], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            reader, start = LogReader(str(log)), 0
            deadline = time.monotonic() + 60
            while start <= 5000:
                assert time.monotonic() < deadline, "the writer does not go on"
                end = reader.plan(start, max_events=1000, max_bytes=1 << 30)
                assert offsets(reader, start, end) == list(range(start, end))
                start = end
        finally:
            process.kill()
            process.stdout.read()


def test_a_record_taken_back_by_the_writer_is_taken_back_by_the_reader(log: Path) -> None:
    reader = LogReader(str(log))
    assert reader.tail().offset == 24
    size = (log / index_name(0)).stat().st_size
    with open(log / index_name(0), "r+b") as file:
        file.truncate(size - 10)
    assert reader.tail().offset == 18


def test_a_missing_segment_is_an_error_with_a_way_out(log: Path) -> None:
    reader = LogReader(str(log))
    [ref, *_] = reader.refs(0, 24)
    (log / segment_name(0)).unlink()
    with pytest.raises(LogError, match="not in the log any more"):
        reader.read(ref)


def test_a_torn_spill_commit_is_as_if_it_never_happened(log: Path) -> None:
    writer = LogWriter.open(str(log), CONFIG)
    writer.spill(make_spill(5, 10))
    writer.commit_spill(SpillCommitted(5, position(9), 5, 0, position(9)))
    writer.close()
    (log / index_name(24)).write_bytes((log / index_name(24)).read_bytes()[:-5])
    assert reopen_and_go_on(log) == APPENDS
