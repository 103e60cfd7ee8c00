"""A program that is killed while it writes leaves a journal, which only a connection that may write can roll back."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.sources.sqlite_support import captured, caught_up, config_of, shop
from tests.support.capturing import eventually
from tidemill.errors import ConnectionLost
from tidemill.sources.sqlite import SqliteSource
from tidemill.sources.sqlite.native import CellReader

# Pages of an open transaction go to the file before its commit: the cache is too small for them.
_WRITER = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size = 5")
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE t SET x = 'never committed' || x")
print("written", flush=True)
time.sleep(600)
"""


def kill_a_writer(path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"written\n"
    writer.kill()
    writer.wait()
    writer.stdout.close()
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0


def fill(path: Path) -> None:
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)", journal="delete") as db:
        db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 500) for n in range(500)])


@pytest.mark.parametrize("compiled", [True, False])
def test_a_reader_that_meets_the_journal_of_a_killed_writer_is_opened_again_and_not_given_up(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("tidemill.sources.sqlite.native.load_library", lambda: None)
    path = tmp_path / "shop.db"
    fill(path)
    with closing(CellReader(str(path), 1000, "test", rows=10)) as reader:
        assert reader.compiled == compiled
        kill_a_writer(path)
        with pytest.raises(ConnectionLost, match="must be opened again"):
            reader.read("SELECT count(*) FROM t WHERE id > ?1 AND id < ?2", (0, 1000), 1)
        SqliteSource(config_of(path)).setup()  # as the capture loop does when it opens the file again
        assert reader.read("SELECT count(*) FROM t WHERE x LIKE 'x%' AND id >= ?1 AND id < ?2", (0, 1000), 1).rows == 1


def test_what_a_killed_writer_did_not_commit_is_no_event_and_what_others_commit_after_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    fill(path)
    with captured(path, tmp_path) as running:
        kill_a_writer(path)
        with shop(path, journal="delete") as db:
            db.execute("UPDATE t SET x = 'committed' WHERE id < 3")
            eventually(lambda: running.events == 3, running)
            assert [event["after"]["x"] for event in caught_up(db, running)] == ["committed"] * 3
