"""Rows that go on moving to other keys, with columns left out, for as long as their table is copied and longer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import psycopg
import pytest

from tests.sources.support import execute
from tests.support.copying import copying
from tests.support.seed import dice
from tidemill.lab.servers.postgres import Postgres
from tidemill.log.delivered import acknowledge
from tidemill.model.snapshot import SnapshotState

_names = itertools.count(1)


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    with postgres18.database(f"moving_{next(_names)}") as dsn:
        yield dsn


def make_table(database: str, rows: int) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT i, 0, repeat(md5(i::text), 100) FROM generate_series(1, {rows}) i",
    )  # fmt: skip


@contextmanager
def moving(database: str, luck: Random, keys: int, pause: float) -> Iterator[Callable[[], int]]:
    """Every `pause` some row moves to a key that nobody has; answers how many have. `big` is never written."""
    stop, moved = threading.Event(), 0

    def move() -> None:
        nonlocal moved
        with psycopg.connect(database, autocommit=True) as db:
            while not stop.wait(pause):
                old, new = luck.randint(1, keys), luck.randint(1, keys)
                done = db.execute(
                    "UPDATE t SET id = %s, n = n + 1 WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
                    [new, old, new],
                )
                moved += done.rowcount

    thread = threading.Thread(target=move)
    thread.start()
    try:
        yield lambda: moved
    finally:
        stop.set()
        thread.join()


def test_a_copy_ends_although_rows_never_stop_moving(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What moves after its range is in the log is not read again, and loses nothing by that."""
    monkeypatch.setattr("tests.support.copying.PATIENCE", 60.0)
    make_table(database, 300)
    with copying(database, tmp_path, "public.t", chunk_rows=50, max_connections=1) as copy:

        def deliver_all() -> bool:
            acknowledge(copy.pipeline.log_uri, copy.log.tail())
            return copy.state() is SnapshotState.DONE

        with moving(database, dice("rows that never stop"), 600, 0.002) as moved:
            copy.until(deliver_all, f"rows move, and the copy has no end: {copy.tables()}")
            assert moved(), "nothing moved meanwhile"
        copy.until(lambda: copy.equals("t"), "a row has a hole or is missing")


@pytest.mark.parametrize("number", range(3))
def test_rows_that_move_on_before_they_were_read_again_are_followed(
    database: str, tmp_path: Path, number: int
) -> None:  # fmt: skip
    """Few keys, so that a row often moves to a key, and from one, that is just being read again."""
    make_table(database, 12)
    with copying(database, tmp_path, "public.t", chunk_rows=2, max_connections=1, max_rows_per_second=30) as copy:
        with moving(database, dice("rows that move on", number), 20, 0.004):
            copy.until_done()
        copy.until(lambda: copy.equals("t"), "a row has a hole or is missing")


def test_rows_that_moved_under_another_key_than_the_table_has_by_now_are_read_again(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their old keys cannot be looked up any more: each read of one failed, and no other chunk was read."""
    monkeypatch.setattr("tests.support.copying.PATIENCE", 60.0)
    make_table(database, 200)
    wide = "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id, n); COMMIT"
    narrow = "BEGIN; ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (id); COMMIT"
    with copying(database, tmp_path, "public.t", chunk_rows=20, max_connections=1, max_rows_per_second=100) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted >= 2)
        execute(database, wide, "UPDATE t SET n = 9 WHERE id % 20 = 0")
        copy.until(lambda: copy.tables()["public.t"].points, "rows have moved")
        execute(database, narrow, "UPDATE t SET id = id + 1000 WHERE id % 50 = 0", "UPDATE t SET n = 10 WHERE id = 7")
        copy.until_done()
        copy.until(lambda: copy.equals("t"), "a row has a hole or is missing")
