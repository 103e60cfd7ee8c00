"""Chunks that are read from another server than the one that was observed: one of several that a dsn stands for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.sources.postgres.histories import standby_of
from tests.sources.postgres.test_snapshot import described
from tests.sources.support import config, execute, opened, query
from tidemill.errors import ConnectionLost
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk
from tidemill.sources.postgres.snapshot.observation import Observation, prove


def wait_until(dsn: str, condition: str) -> None:
    deadline = time.monotonic() + 60
    while query(dsn, f"SELECT {condition}") != [(True,)]:
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


def test_a_read_of_a_standby_proves_nothing_that_it_has_not_replayed(
    private_postgres: Postgres, tmp_path: Path
) -> None:  # fmt: skip
    """Whoever observed: the primary, or another standby. What it does not see is in no window."""
    dsn = private_postgres.create_database("standbys")
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with standby_of(private_postgres, tmp_path / "standby") as standby:
        there = dsn.replace(f":{private_postgres.port}/", f":{standby.port}/")
        with (
            opened(config(dsn, "public.t")) as source,
            opened(config(dsn, "public.t", snapshot={"dsn": there})) as reading,
        ):
            source.setup()
            primary, replica = source.snapshot_reader(), reading.snapshot_reader()
            table = described(primary, "public.t")
            [(end,)] = query(dsn, "SELECT pg_current_wal_insert_lsn()::text")
            wait_until(there, f"pg_last_wal_replay_lsn() >= '{end}'")
            standby.query("SELECT pg_wal_replay_pause()")
            wait_until(there, "pg_get_wal_replay_pause_state() = 'paused'")
            execute(dsn, "INSERT INTO t VALUES (2)")
            [(end,)] = query(dsn, "SELECT pg_current_wal_insert_lsn()::text")
            observations = [primary.observe(Position(end)), Observation(end, None).to_json()]
            for observed in observations:
                with (
                    pytest.raises(ConnectionLost, match="not yet to"),
                    replica.read(Chunk(table.name, 0), table, [observed]),
                ):
                    pass
            standby.query("SELECT pg_wal_replay_resume()")
            wait_until(there, f"pg_last_wal_replay_lsn() >= '{end}'")
            with replica.read(Chunk(table.name, 0), table, observations) as read:
                assert read.observation == 1
                assert [block.rows for block in read.blocks()] == [2]
            with primary.read(Chunk(table.name, 0), table, observations) as read:
                assert read.observation == 0, "a standby's tells nothing of what the primary shows"
            primary.close()
            replica.close()


def test_a_standby_that_was_promoted_is_read_no_more(private_postgres: Postgres, tmp_path: Path) -> None:
    """It has a history of its own: what is written to the server that is captured never comes there."""
    dsn = private_postgres.create_database("promoted")
    execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    with standby_of(private_postgres, tmp_path / "standby") as standby:
        there = dsn.replace(f":{private_postgres.port}/", f":{standby.port}/")
        with opened(config(dsn, "public.t", snapshot={"dsn": there})) as source:
            source.setup()
            reader = source.snapshot_reader()
            [(end,)] = query(dsn, "SELECT pg_current_wal_insert_lsn()::text")
            observed = reader.observe(Position(end))  # it has the publication by then, too
            table = described(reader, "public.t")
            with reader.read(Chunk(table.name, 0), table, [observed]) as read:
                assert [block.rows for block in read.blocks()] == [1]
            standby.query("SELECT pg_promote()")
            wait_until(there, "NOT pg_is_in_recovery()")
            execute(dsn, "INSERT INTO t VALUES (2)")
            with pytest.raises(ConnectionLost, match=r"snapshot\.dsn"):
                reader.observe(Position(end))
            with (
                pytest.raises(ConnectionLost, match=r"snapshot\.dsn"),
                reader.read(Chunk(table.name, 0), table, [observed]),
            ):
                pass
            reader.close()


def test_the_server_that_is_captured_may_be_named_as_the_standby(postgres18: Postgres) -> None:
    with postgres18.database("no_standby") as dsn:
        execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        with opened(config(dsn, "public.t", snapshot={"dsn": dsn})) as source:
            source.setup()
            reader = source.snapshot_reader()
            table, observed = described(reader, "public.t"), reader.observe(Position("0/0"))
            with reader.read(Chunk(table.name, 0), table, [observed]) as read:
                assert read.observation == 0
            reader.close()


def test_observations_of_earlier_versions_are_proven_where_they_say_enough() -> None:
    of_primary, of_standby = Observation.from_json("[5, 9]"), Observation.from_json("null")
    assert prove("10:20:", None, [of_primary]) == 0
    assert prove("10:20:", "9/0", [of_primary, of_standby]) is None
    assert prove("10:20:", None, [of_standby]) is None
