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
from tidemill.errors import RegistryError
from tidemill.log import LogConfig, LogWriter
from tidemill.model.delivery import Checkpoint
from tidemill.model.position import Position
from tidemill.privatefiles import make_directory, replace_file
from tidemill.sqlitefile import SqliteFile


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
    log = LogWriter.open(str(state / "log"), LogConfig())
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


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"a longer text than the next")
    path.chmod(0o644)
    replace_file(path, b"short")
    assert path.read_bytes() == b"short"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]
