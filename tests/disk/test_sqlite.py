from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import CheckpointError


def test_many_who_open_a_new_file_at_once_all_get_it(tmp_path: Path) -> None:
    """Without a retry, one of eight was refused in about every thirtieth round."""
    refused: list[str] = []

    def opens(path: Path, start: threading.Barrier) -> None:
        file = SqliteFile(path, "CREATE TABLE IF NOT EXISTS t (n)", lambda what: CheckpointError(what, where=str(path)))
        start.wait()
        try:
            with file.connected() as db:
                assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        except CheckpointError as error:
            refused.append(error.what)
        file.close()

    for number in range(150):
        start = threading.Barrier(8)
        threads = [threading.Thread(target=opens, args=(tmp_path / f"{number}.sqlite", start)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert refused == []


def test_a_second_look_in_this_process_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Closing any descriptor of the file drops them; another process that ends then takes the write-ahead log away, and
    what is written after that is lost."""
    path = tmp_path / "shared.sqlite"

    def file() -> SqliteFile:
        return SqliteFile(path, "CREATE TABLE IF NOT EXISTS t (n)", lambda what: CheckpointError(what, where=str(path)))

    def count_elsewhere() -> str:
        program = (
            "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM t').fetchone()[0])"
        )
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
        return done.stdout.strip() or done.stderr

    first, second = file(), file()
    with first.writing() as db:
        db.execute("INSERT INTO t VALUES (1)")
    with second.connected() as db:
        assert db.execute("SELECT count(*) FROM t").fetchone() == (1,)
    second.close()
    assert count_elsewhere() == "1"
    with first.writing() as db:
        db.execute("INSERT INTO t VALUES (2)")
    assert count_elsewhere() == "2"
    first.close()


def test_a_table_of_an_older_version_gets_its_new_name_also_after_that_version_wrote_again(tmp_path: Path) -> None:
    path = tmp_path / "older.sqlite"
    new = "CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY AUTOINCREMENT, content TEXT)"

    def rows() -> list[tuple[int, str]]:
        file = SqliteFile(path, new, lambda what: CheckpointError(what, where=str(path)), renamed={"notes": "records"})
        with closing(file), file.writing() as db:
            db.execute("INSERT INTO records (content) VALUES ('new')")
            assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'notes'").fetchone() == (0,)
            return db.execute("SELECT number, content FROM records ORDER BY number").fetchall()

    def write_as_older(number: int) -> None:
        with closing(sqlite3.connect(path)) as db:
            db.execute(new.replace("records", "notes"))
            db.execute("INSERT INTO notes VALUES (?, 'older')", (number,))
            db.commit()

    write_as_older(7)
    assert rows() == [(7, "older"), (8, "new")], "numbers are not given twice"
    write_as_older(3)
    assert rows() == [(3, "older"), (7, "older"), (8, "new"), (9, "new")]
