"""What Tidemill keeps for itself is nobody else's to read."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from tests.support.blocks import make_change
from tidemill.checkpoints.file import FileCheckpoints, FileConfig
from tidemill.checkpoints.sqlite import SqliteCheckpoints, SqliteConfig
from tidemill.disk.private import make_directory
from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import RegistryError
from tidemill.log import LogConfig, LogReader, LogWriter
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position


def open_to_others(place: Path) -> list[str]:
    """Everything below a directory, itself included, that somebody else may look at."""
    return [str(path) for path in (place, *place.rglob("*")) if stat.S_IMODE(path.stat().st_mode) & 0o077]


@pytest.fixture(autouse=True)
def usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def fill(state: Path) -> None:
    make_directory(state)
    log = LogWriter.open(str(state / "log"), LogConfig(), ours=True)
    log.append(make_change(3))
    log.close()
    for store in (FileCheckpoints(FileConfig(), state), SqliteCheckpoints(SqliteConfig(), state)):
        newest = store.load("p")
        store.save("p", Checkpoint(1, Position("x")), expect=newest.version if newest else 0, force=True)


def test_log_registry_and_checkpoints_are_made_private(tmp_path: Path) -> None:
    state = tmp_path / "new" / "state"
    fill(state)
    assert open_to_others(tmp_path / "new") == []


def test_what_an_older_version_left_open_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    state = tmp_path / "state"
    fill(state)
    for path in (state, *state.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    fill(state)
    assert open_to_others(state) == []


def test_the_files_beside_a_database_are_private_too(tmp_path: Path) -> None:
    path = tmp_path / "d" / "x.sqlite"
    file = SqliteFile(path, "CREATE TABLE IF NOT EXISTS t (x)", RegistryError)
    with file.writing() as db:
        db.execute("INSERT INTO t VALUES (1)")
    assert {beside.name for beside in path.parent.iterdir()} == {"x.sqlite", "x.sqlite-wal", "x.sqlite-shm"}
    assert open_to_others(path.parent) == []
    file.close()
    assert sqlite3.connect(path).execute("SELECT x FROM t").fetchall() == [(1,)]


def test_a_directory_that_the_user_named_keeps_its_mode(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    store = FileCheckpoints(FileConfig(path=theirs))
    store.save("p", Checkpoint(1, Position("x")), expect=0)
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755
    assert open_to_others(theirs) == [str(theirs)]


def test_a_log_in_a_directory_that_the_user_named_leaves_their_files_alone(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir(0o755)
    others = [theirs / name for name in ("report.csv", "movie.seg", "book.idx", "position.json.bak")]
    for path in others:
        path.write_text("theirs")
    for _ in range(2):
        log = LogWriter.open(str(theirs), LogConfig())
        log.append(make_change(3))
        log.close()
        for path in theirs.iterdir():
            path.chmod(0o644)
    LogWriter.open(str(theirs), LogConfig()).close()
    assert LogReader(str(theirs)).tail().offset == 6
    assert {path.name: path.read_text() for path in others} == {path.name: "theirs" for path in others}
    assert sorted(open_to_others(theirs)) == sorted(map(str, (theirs, *others)))
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The directories that were written to disk, in order."""
    found: list[Path] = []
    write = os.fsync

    def watched(file: int) -> None:
        place = Path(f"/proc/self/fd/{file}").readlink()
        if place.is_dir():
            found.append(place)
        write(file)

    monkeypatch.setattr(os, "fsync", watched)
    return found


def test_directories_that_are_made_outlive_a_power_cut_and_others_are_left_in_peace(
    tmp_path: Path, synced: list[Path]
) -> None:
    place = tmp_path / "a" / "b" / "log"
    LogWriter.open(str(place), LogConfig()).close()
    assert [path for path in synced if path != place] == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    synced.clear()
    LogWriter.open(str(place), LogConfig()).close()
    assert {*synced} <= {place}
