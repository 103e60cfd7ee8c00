"""A capture wakes up for its own file, and looks seldom where nothing can wake it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tidemill.disk.inotify import Inotify
from tidemill.sources.sqlite.file_watch import FileWatch


def test_files_beside_it_wake_nobody(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(_database(path)) as mine, closing(_database(tmp_path / "shop.db2")) as other:
        watch = FileWatch(path, 60)
        _write(other)
        assert not watch.wait(0.2)
        _write(mine)
        assert watch.wait(60)
        watch.close()


def test_a_journal_that_is_made_later_and_made_anew_is_heard_of(tmp_path: Path) -> None:
    """The last connection removes the WAL, and the next one makes another."""
    path = tmp_path / "shop.db"
    _database(path).close()
    watch = FileWatch(path, 60)
    for _ in range(2):
        with closing(sqlite3.connect(path)) as db:
            _write(db)
            _settle(watch)
            _write(db)  # into the WAL alone
            assert watch.wait(60)
        _settle(watch)
    watch.close()


def test_a_file_without_notices_is_looked_at_seldom_when_it_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user has 128 descriptors for notices by default. Those who got none looked every five milliseconds, and two
    hundred of them took both cores."""
    monkeypatch.setattr(Inotify, "open", classmethod(lambda cls, blocking=False: None))
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    watch = FileWatch(tmp_path / "shop.db", 0.2)
    assert not watch.notified
    for quiet in (0.0, 1.0, 60.0):
        clock[0] = 1000.0 + quiet
        assert not watch.wait(5)
    watch.note_found()
    assert not watch.wait(5)
    assert slept == pytest.approx([0.005, 0.1, 0.2, 0.005])


def _database(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = wal")
    db.execute("CREATE TABLE t (n)")
    return db


def _write(db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO t VALUES (1)")
    db.commit()


def _settle(watch: FileWatch) -> None:
    """Until nothing more is said of what was done before."""
    while watch.wait(0.1):
        pass
