from __future__ import annotations

import threading
from pathlib import Path

from tidemill.disk.sqlite import SqliteFile
from tidemill.errors import CheckpointError


def test_many_who_open_a_new_file_at_once_all_get_it(tmp_path: Path) -> None:
    """Without patience, one of eight was refused in about every thirtieth round."""
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
