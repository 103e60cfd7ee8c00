"""Tables of MySQL and MariaDB copied by a running pipeline while they change: the destination equals the source."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from tests.cli.test_run import lines_of, running
from tests.servers.mysql import KINDS, private_server
from tests.support.seed import choose, run_seed
from tidemill.capture.status import read_status
from tidemill.config import load
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.snapshot import SnapshotState

DOCUMENT = """
metadata: {{name: orders}}
spec:
  source:
    type: {kind}
    config:
      {{id: shop, dsn: "{dsn}", tables: [shop.t, shop.words], snapshot: {{max_connections: 2, {snapshot}}}}}
  sinks:
    - {{type: postgres, config: {{id: copy, dsn: "{target}"}}}}
    - {{type: files, config: {{id: files, path: {folder}/files}}}}
  state_dir: {folder}/state
"""
_PATIENCE = 300.0  # seconds: two streams and a copy start their workers
_CHANGES = 1000  # at most: a machine that is slow for its load is not outrun
_TABLES = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.t (id int PRIMARY KEY, v varchar(50), big text, n decimal(12,3))",
    "CREATE TABLE shop.words (word varchar(60) COLLATE utf8mb4_unicode_ci, n int, PRIMARY KEY (word, n))"
    " CHARACTER SET utf8mb4",
)


def _fill(server: Server, rows: int) -> None:
    server.execute(*_TABLES)
    values = ", ".join(f"({n}, 'v{n}', REPEAT('x', {n % 300}), {n}.125)" for n in range(rows))
    server.execute(f"INSERT INTO shop.t VALUES {values}")
    words = ", ".join(f"('{'Ää'[n % 2]}b{n // 3}', {n})" for n in range(900))
    server.execute("SET NAMES utf8mb4", f"INSERT INTO shop.words VALUES {words}")


@contextmanager
def _writing(server: Server, rows: int) -> Iterator[list[int]]:
    """Random changes, one transaction each; answers how many there were."""
    stop, done = threading.Event(), [0]
    pick = random.Random(run_seed())

    def change(cursor: Any) -> None:
        some, what = pick.randrange(rows), pick.randrange(50)
        if what < 10:
            cursor.execute("INSERT IGNORE INTO shop.t VALUES (%s, 'new', 'text', 1.5)", [rows + done[0]])
        elif what < 40:
            cursor.execute("UPDATE shop.t SET v = %s WHERE id = %s", [f"changed {done[0]}", some])
        elif what < 48:
            cursor.execute("DELETE FROM shop.t WHERE id = %s", [some])
        elif what == 48:  # another key: the row moves into another chunk, in a batch of its own where it has holes
            cursor.execute("UPDATE IGNORE shop.t SET id = %s WHERE id = %s", [100_000 + done[0], some])
        else:
            cursor.execute("UPDATE IGNORE shop.words SET word = %s WHERE n = %s", [f"Ω{done[0]}", some])

    def write() -> None:
        with server.connect("shop") as db, db.cursor() as cursor:
            while not stop.is_set() and done[0] < _CHANGES:
                change(cursor)
                done[0] += 1
                time.sleep(0.005)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield done
    finally:
        stop.set()
        writer.join(_PATIENCE)


def _until(process: subprocess.Popen[bytes], condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.3)


def _is_copied(path: Path) -> bool:
    (pipeline,) = load(path)
    state = pipeline.build_state()
    try:
        records = state.snapshots.records(pipeline.name, 1)
        return bool(records) and records[0].state is SnapshotState.DONE
    finally:
        state.close()


def _rows(server: Server) -> tuple[list[Any], list[Any]]:
    return (
        sorted((i, v, big, format(n, "f")) for i, v, big, n in server.query("SELECT id, v, big, n FROM shop.t")),
        sorted(server.query("SELECT word, n FROM shop.words")),
    )


def _copied(db: psycopg.Connection[Any]) -> tuple[list[Any], list[Any]]:
    try:
        return (
            sorted((i, v, big, format(n, "f")) for i, v, big, n in db.execute("SELECT id, v, big, n FROM shop.t")),
            sorted(db.execute("SELECT word, n FROM shop.words").fetchall()),
        )
    except psycopg.errors.UndefinedTable:
        return [], []


def _replayed(events: list[dict[str, Any]], table: str, *key: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What the events of a log sink make, taken in the order of their offsets."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in sorted(events, key=lambda event: int(event["offset"])):
        if event["table"] != table:
            continue
        old, after = event.get("before") or event.get("key") or {}, event.get("after")
        was = tuple(old.get(name) for name in key)
        if after is None:
            rows.pop(was, None)  # its chunk may not have come yet
            continue
        now = tuple(after[name] for name in key)
        # A row that changes its key and leaves columns out comes in one piece (docs/adr/0003).
        known = rows.pop(was, {}) if event["op"] == "update" and old and was != now else rows.get(now, {})
        rows[now] = after | {name: known.get(name, "a hole") for name in event.get("unchanged") or ()}
    return rows


_CASES = [(kind, image) for kind in KINDS for image in choose(f"copy {kind}", ("FULL", "MINIMAL", "NOBLOB"))]


@pytest.mark.parametrize(("kind", "image"), _CASES)
def test_a_copy_under_fire_equals_the_source(kind: str, image: str, postgres18: Postgres, tmp_path: Path) -> None:
    path, rows = tmp_path / "orders.yaml", 2000
    name = f"copy_{kind}_{image}".lower()
    with private_server(kind, binlog_row_image=image) as server, postgres18.database(name) as target:
        _fill(server, rows)
        path.write_text(
            DOCUMENT.format(kind=kind, dsn=server.dsn(), target=target, folder=tmp_path, snapshot="chunk_rows: 300")
        )
        with running(path) as process, psycopg.connect(target, autocommit=True) as db:
            _until(process, lambda: getattr(read_status(tmp_path / "state" / "orders"), "streaming_since", 0))
            with _writing(server, rows) as changes:
                _until(process, lambda: _is_copied(path))
            _until(process, lambda: _copied(db) == _rows(server))
            _end(process)
        assert changes[0] > 100, "nothing was changed meanwhile"
        wanted = _rows(server)
    _check_files(tmp_path / "files", *wanted)


@pytest.mark.parametrize("kind", choose("killed sessions", KINDS))
def test_sessions_that_are_killed_during_a_copy_cost_no_row(kind: str, postgres18: Postgres, tmp_path: Path) -> None:
    """Those of capture, of who plans chunks and of who reads them, in the middle of a statement or between two."""
    path, rows = tmp_path / "orders.yaml", 3000
    with private_server(kind) as server, postgres18.database(f"killed_{kind}") as target:
        _fill(server, rows)
        server.execute("CREATE USER mill", "GRANT ALL ON *.* TO mill")
        dsn = server.dsn(user="mill")
        path.write_text(
            DOCUMENT.format(
                kind=kind, dsn=dsn, target=target, folder=tmp_path,
                snapshot="chunk_rows: 100, max_rows_per_second: 1000",
            )
        )  # fmt: skip
        with running(path) as process, psycopg.connect(target, autocommit=True) as db:
            _until(process, lambda: getattr(read_status(tmp_path / "state" / "orders"), "streaming_since", 0))
            with _writing(server, rows), _killing(server) as killed:
                _until(process, lambda: _is_copied(path))
            _until(process, lambda: _copied(db) == _rows(server))
            _end(process)
        assert killed["Binlog Dump"], "capture was left alone"
        assert sum(killed.values()) > killed["Binlog Dump"], "who reads and plans was left alone"
        wanted = _rows(server)
    _check_files(tmp_path / "files", *wanted)


@contextmanager
def _killing(server: Server) -> Iterator[Counter[str]]:
    """Now and then a session of the pipeline's account; answers what they were at."""
    stop, killed, pick = threading.Event(), Counter[str](), random.Random(run_seed())

    def kill() -> None:
        with server.connect() as db, db.cursor() as cursor:
            while not stop.wait(0.05 + 0.2 * pick.random()):
                cursor.execute("SELECT id, command FROM information_schema.processlist WHERE user = 'mill'")
                if not (found := cursor.fetchall()):
                    continue
                number, command = pick.choice(found)
                with suppress(pymysql.err.OperationalError, pymysql.err.InternalError):  # it has ended meanwhile
                    cursor.execute(f"KILL {pick.choice(('CONNECTION', 'QUERY'))} {number}")
                    killed["Binlog Dump" if command.startswith("Binlog Dump") else command] += 1

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join(_PATIENCE)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=_PATIENCE)
    assert process.returncode == 0, error.decode()[-3000:]


def _check_files(folder: Path, there: list[Any], words: list[Any]) -> None:
    """No event is there twice, and all of them together make these rows."""
    events = lines_of(folder)
    assert {event["op"] for event in events} >= {"read", "update", "delete"}
    assert len({event["event_id"] for event in events}) == len(events)
    found = _replayed(events, "t", "id")
    assert sorted((i, row["v"], row["big"]) for (i,), row in found.items()) == [(i, v, big) for i, v, big, _ in there]
    assert sorted(_replayed(events, "words", "word", "n")) == words
