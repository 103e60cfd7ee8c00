"""A disk that is full: a clean error, the log as it was, and the same append succeeds when there is room again."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.log.look import offsets
from tests.support.blocks import make_change, make_spill, make_table, position
from tidemill.errors import LogError, is_retryable
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.log.index import pack
from tidemill.model.change import SpillCommitted

CONFIG = LogConfig(segment_bytes=50_000)
TABLES = (make_table(), make_table("items"))


class FullDisk:
    """Lets `room` bytes through `os.pwritev` and then answers as a full disk does: first with a short write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        self._real = os.pwritev
        monkeypatch.setattr(os, "pwritev", self)

    def __call__(self, file: int, buffers: list[memoryview], offset: int) -> int:
        if self.room is None:
            return self._real(file, buffers, offset)
        data = b"".join(buffers)[: self.room]
        if not data:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= len(data)
        return self._real(file, [memoryview(data)], offset)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


def test_an_append_that_finds_the_disk_full_at_any_byte_can_be_tried_again(tmp_path: Path, disk: FullDisk) -> None:
    log = str(tmp_path)
    writer = LogWriter.open(log, CONFIG)
    reader = LogReader(log)
    change = make_change(20, tables=TABLES)
    entry = writer.append(change)
    size, record = entry.bytes, len(pack(entry))
    for room in [*range(0, size, 3001), size - 1, size, size + 1, size + 100, size + record - 1]:
        before = writer.tail
        disk.room = room
        with pytest.raises(LogError) as caught:
            writer.append(change)
        assert is_retryable(caught.value)
        assert "Free some space" in caught.value.fix
        assert writer.tail == before == reader.tail()
        disk.room = None
        writer.append(change)
        assert reader.tail().offset == before.offset + 20
    assert offsets(reader) == list(range(reader.tail().offset))
    writer.close()
    assert LogWriter.open(log, CONFIG).tail == reader.tail()


def test_a_spill_that_finds_the_disk_full_can_be_tried_again(tmp_path: Path, disk: FullDisk) -> None:
    writer = LogWriter.open(str(tmp_path), CONFIG)
    for start in range(0, 50, 10):
        piece = make_spill(7, 10, start=start, subtx=[7, 8] * 5)
        disk.room = 1000
        with pytest.raises(LogError):
            writer.spill(piece)
        disk.room = None
        writer.spill(piece)
    commit = SpillCommitted(7, position(1), 7, 0, position(1), frozenset({8}))
    for room in (0, 100, 6_000):
        disk.room = room
        with pytest.raises(LogError):
            writer.commit_spill(commit)
        assert [path.name for path in tmp_path.glob("*.seg")] == ["spill-7.seg"]
    disk.room = None
    assert writer.commit_spill(commit).rows == 25
    assert offsets(LogReader(str(tmp_path))) == list(range(25))
    writer.close()


def test_a_commit_that_finds_the_disk_full_keeps_the_spill_for_the_next_try(tmp_path: Path, disk: FullDisk) -> None:
    writer = LogWriter.open(str(tmp_path), CONFIG)
    writer.spill(make_spill(7, 10))
    commit = SpillCommitted(7, position(1), 7, 0, position(1))
    disk.room = 50
    with pytest.raises(LogError):
        writer.commit_spill(commit)
    assert (tmp_path / "spill-7.seg").exists()
    disk.room = None
    writer.append(make_change(5))
    assert writer.commit_spill(commit).base == 5
    assert offsets(LogReader(str(tmp_path))) == list(range(15))
    writer.close()


@pytest.mark.parametrize("call", ["fdatasync", "ftruncate"])
def test_a_disk_that_fails_after_the_bytes_were_written_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: FullDisk, call: str
) -> None:
    """With `ftruncate` failing too, the half-written record cannot even be cut off at once."""
    writer = LogWriter.open(str(tmp_path), CONFIG)
    writer.append(make_change(3))

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        if call == "ftruncate":
            disk.room = writer.append(make_change(3, number=2)).bytes + 300
        with pytest.raises(LogError, match=r"Input/output|No space"):
            writer.append(make_change(3, number=3))
    disk.room = None
    before = writer.tail.offset
    writer.append(make_change(1, number=3))
    assert offsets(LogReader(str(tmp_path))) == list(range(before + 1))
    writer.close()
    LogWriter.open(str(tmp_path), CONFIG).close()


FILLER = """
import resource, sys
from tests.support.blocks import make_change
from tidemill.errors import LogError
from tidemill.log import LogConfig, LogWriter
writer = LogWriter.open(sys.argv[1], LogConfig())
change = make_change(100)
{before}
appended = 0
try:
    for _ in range(1000):
        writer.append(change)
        appended += 1
    raise SystemExit("never full")
except LogError as error:
    print(error.what)
{after}
writer.append(change)
print(appended + 1, writer.tail.offset)
"""


def fill(log: Path, before: str = "", after: str = "") -> tuple[str, int]:
    """Appends in a process of its own until it fails, makes room as `after` does, and appends once more."""
    done = subprocess.run(
        [sys.executable, "-c", FILLER.format(before=before, after=after), str(log)],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2], check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    what, counts = done.stdout.splitlines()
    appends, tail = (int(count) for count in counts.split())
    assert tail == appends * 100
    assert offsets(LogReader(str(log))) == list(range(tail))
    return what, appends


def test_a_file_size_limit_of_the_process_is_met_like_a_full_disk(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    what, appends = fill(
        tmp_path / "log",
        before=f"resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, {hard}))",
        after=f"resource.setrlimit(resource.RLIMIT_FSIZE, ({hard}, {hard}))",
    )
    assert "File too large" in what
    assert appends > 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    mounted: list[Path] = []

    def mount() -> Path:
        path = tmp_path / "disk"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(path)]
        if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small tmpfs needs root and the right to mount")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_really_full_file_system_loses_nothing(small_disk: Callable[[], Path]) -> None:
    path = small_disk()
    (path / "ballast").write_bytes(b"\0" * 100_000)
    ballast = str(path / "ballast")
    what, appends = fill(path / "log", after=f"import os; os.unlink({ballast!r})")
    assert "No space left on device" in what
    assert appends > 2
