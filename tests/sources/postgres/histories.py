"""Servers with a table that is captured, put back, copied or crashed, for tests of what a position belongs to."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.sources.support import execute, query
from tests.support.capturing import Running, capturing, eventually
from tidemill.errors import PositionLost
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogReader
from tidemill.sources.postgres import PostgresConfig, PostgresSource
from tidemill.sources.postgres.lsn import format_lsn, parse_lsn

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text)"


def insert(dsn: str, first: int, last: int) -> None:
    """Each in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as db:
        for number in range(first, last):
            db.execute("INSERT INTO t VALUES (%s, repeat('x', 500))", [number])


def ids(run: Running) -> list[int]:
    return [row["after"]["id"] for row in run.rows()]


def has(run: Running, events: int) -> bool:
    return run.events >= events


def capture(settings: PostgresConfig, directory: Path, events: int, *, deliver: bool = False) -> list[int]:
    """Ids of all that is in the log once it has so many events."""
    with capturing(PostgresSource(settings), directory) as run:
        eventually(lambda: run.events >= events, run)
        if deliver:
            run.deliver()
            confirm(run, settings)
        return ids(run)


def confirm(run: Running, settings: PostgresConfig) -> None:
    """Waits until the server was told of all events that the log has."""
    statement = f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '{settings.slot_name}'"
    tail = parse_lsn(run.log.tail().position)
    eventually(lambda: parse_lsn(query(settings.dsn, statement)[0][0]) >= tail, run)


def write_past_our_position(settings: PostgresConfig, directory: Path) -> None:
    """Rows that were never captured, until the server's WAL is longer than what our log has of the old one."""
    ours = parse_lsn(LogReader(str(directory / "log")).tail().position)
    for first in range(1000, 10000, 50):
        insert(settings.dsn, first, first + 50)
        if parse_lsn(query(settings.dsn, "SELECT pg_current_wal_lsn()::text")[0][0]) > ours:
            return
    raise AssertionError(f"9000 rows did not bring the server past {format_lsn(ours)}")


def refused(settings: PostgresConfig, directory: Path) -> PositionLost:
    try:
        with capturing(PostgresSource(settings), directory) as run:
            eventually(lambda: run.failure)
            error = run.failure[0]
    except PositionLost as early:
        error = early
    assert isinstance(error, PositionLost), error
    assert "recover" in error.fix
    return error


@contextmanager
def server_with_table() -> Iterator[tuple[Postgres, PostgresConfig]]:
    with Postgres(durable=False) as server:
        dsn = server.create_database("src")
        execute(dsn, TABLE)
        yield server, PostgresConfig(id="s", dsn=dsn, tables=("public.t",), feedback_seconds=0.1)


@contextmanager
def standby_of(primary: Postgres, directory: Path) -> Iterator[Postgres]:
    """A standby of the primary; `sync_slot` brings it the primary's failover slots."""
    primary.query("SELECT pg_create_physical_replication_slot('standby', true)")
    standby = Postgres(durable=False, directory=directory, hot_standby_feedback=True, sync_replication_slots=True)
    directory.mkdir()
    standby._account.own(directory)
    command = [str(primary.bin_dir / "pg_basebackup"), "-D", str(standby.data), "-R", "-S", "standby", "-c", "fast",
               "-d", f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"]  # fmt: skip
    subprocess.run([*standby._account.prefix, *command], check=True, capture_output=True)
    standby._write_settings()
    try:
        yield standby.start()
    finally:
        standby.stop("immediate")
        standby.close()
