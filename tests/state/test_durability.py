"""What is left of a store after a kill, a lost connection, a damaged file; and who may read it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.state.conftest import Opener
from tidemill.contracts import ConfirmedPosition
from tidemill.errors import ConfigError, StateError, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.position import Position
from tidemill.state import open_store

_WRITES = """
import sys
from tidemill.model.position import Position
from tidemill.state import open_store
store = open_store(sys.argv[1])
for number in range(1, 100_000):
    store.confirm("orders", Position(f"0/{number}"), number)
    print(number, flush=True)
"""


@pytest.mark.parametrize("after", [1, 7, 40])
def test_a_killed_writer_leaves_everything_that_it_was_answered(uri: str, opener: Opener, after: int) -> None:
    """Invariant 2: what capture then tells the source is there after any crash."""
    answered = write_until(uri, after)
    found = opener().confirmed("orders")
    assert found is not None
    assert found.offset in (answered, answered + 1), "the one under way may be there too"
    assert found.position == f"0/{found.offset}"
    opener().confirm("orders", Position("0/next"), 0)


def test_a_writer_that_is_killed_before_its_commit_leaves_the_state_before_it(uri: str, opener: Opener) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WRITES, uri],
        env=os.environ | {"TIDEMILL_CRASH_AT": "state.before_commit:4"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert opener().confirmed("orders") == ConfirmedPosition(Position("0/3"), 3)
    opener().confirm("orders", Position("0/9"), 9)
    assert opener().confirmed("orders") == ConfirmedPosition(Position("0/9"), 9)


def test_only_its_owner_may_read_the_file_and_what_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "state" / "state.sqlite"
    store = open_store(str(path))
    store.confirm("orders", Position("0/7"), 7)
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("state.sqlite", "state.sqlite-wal", "state.sqlite-shm"), "0o600")
    store.close()
    path.chmod(0o644)
    store = open_store(str(path))
    assert store.confirmed("orders") is not None
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    store.close()


def test_commits_of_the_file_wait_for_the_disk(tmp_path: Path) -> None:
    from tidemill.state.sqlite import SqliteState

    state = SqliteState(tmp_path / "state.sqlite")
    with state.reading() as run:
        assert run("PRAGMA synchronous") == [(2,)]  # FULL
        assert run("PRAGMA journal_mode") == [("wal",)]
    state.close()


def test_commits_on_the_server_wait_for_the_disk_also_where_the_database_does_not(postgres18: Postgres) -> None:
    from tidemill.state.postgres import PostgresState

    with postgres18.database("state_async") as dsn:
        for given, kept in (("off", "on"), ("remote_apply", "remote_apply")):
            with psycopg.connect(dsn, autocommit=True) as admin:
                admin.execute(f"ALTER DATABASE state_async SET synchronous_commit = {given}")
            state = PostgresState(dsn)
            with state.writing("orders") as run:
                assert run("SHOW synchronous_commit") == [(kept,)]
            state.close()


def test_a_file_that_is_no_store_is_said_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.sqlite"
    path.write_bytes(b"not a database, but somebody's notes " * 100)
    before = path.read_bytes()
    with pytest.raises(StateError, match="not a database") as raised:
        open_store(str(path)).confirmed("orders")
    assert raised.value.where == str(path)
    assert path.read_bytes() == before


def test_a_connection_that_broke_while_it_was_idle_is_made_again(postgres18: Postgres) -> None:
    with postgres18.database("state_broken") as dsn:
        store = open_store(dsn)
        store.confirm("orders", Position("0/7"), 7)
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        store.confirm("orders", Position("0/8"), 8)
        assert store.confirmed("orders") == ConfirmedPosition(Position("0/8"), 8)
        store.close()


def test_a_server_that_is_away_is_worth_a_retry_and_no_password_is_shown(private_postgres: Postgres) -> None:
    with private_postgres.database("state_away") as dsn:
        store = open_store(dsn)
        store.confirm("orders", Position("0/7"), 7)
        private_postgres.stop()
        with pytest.raises(StateError) as raised:
            store.confirm("orders", Position("0/8"), 8)
        assert is_retryable(raised.value)
        private_postgres.start()
        store.confirm("orders", Position("0/9"), 9)
        assert store.confirmed("orders") == ConfirmedPosition(Position("0/9"), 9)
        store.close()
    with pytest.raises(StateError) as raised:
        open_store("postgresql://ada:hunter2@127.0.0.1:1/mill").confirmed("orders")
    assert "hunter2" not in str(raised.value)
    assert "127.0.0.1" in raised.value.where


def test_an_unknown_kind_of_store_is_a_mistake_in_the_document() -> None:
    with pytest.raises(ConfigError, match='"mongodb" does not exist'):
        open_store("mongodb://mill/state")


def write_until(uri: str, count: int) -> int:
    """Kills a writer once it was answered `count` times; the last answer it told of."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITES, uri], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    told = [writer.stdout.readline() for _ in range(count)]
    writer.kill()
    told += writer.stdout.readlines()
    writer.wait()
    writer.stdout.close()
    return int([line for line in told if line.endswith("\n")][-1])
