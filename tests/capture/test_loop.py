"""Loop one against real servers, without Spark: what it stores, what it tells the database, and what makes it wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.capturing import Running, eventually
from tests.support.capturing import capturing as capturing_any
from tidemill.capture.loop import Limits
from tidemill.errors import PositionLost
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Op
from tidemill.sources.postgres import PostgresConfig, PostgresSource
from tidemill.sources.postgres.lsn import parse_lsn
from tidemill.sources.postgres.witness import SLACK_BYTES


@contextmanager
def capturing(dsn: str, directory: Path, *, limits: Limits | None = None, **settings: Any) -> Iterator[Running]:
    config = PostgresConfig(id="test", dsn=dsn, feedback_seconds=0.1, heartbeat_seconds=0.2, **settings)
    with capturing_any(PostgresSource(config), directory, limits=limits) as running:
        yield running


def query(dsn: str, *statements: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            result = connection.execute(statement)
        return result.fetchone() if result.description else None


def confirmed(dsn: str) -> int:
    (lsn,) = query(dsn, "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()")
    return parse_lsn(lsn)


def test_every_operation_becomes_an_event_in_commit_order(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET v = 'c' WHERE id = 1",
              "DELETE FROM t WHERE id = 2", "TRUNCATE t",
              "SELECT pg_logical_emit_message(true, 'p', 'hello')")  # fmt: skip
        eventually(lambda: running.log.tail().offset >= 6)
        ops = [Op(row["op"]) for row in running.rows()]
    assert ops == [Op.INSERT, Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.MESSAGE]


def test_a_structure_that_comes_back_while_capture_is_away_is_met_in_order(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'v0')")
    with capturing(database, tmp_path, tables=("public.t",)):
        pass
    query(
        database, "UPDATE t SET v = 'v1'", "ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET v = 'v2'",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT", "UPDATE t SET v = 'v3'", "ALTER TABLE t REPLICA IDENTITY FULL",
        "UPDATE t SET v = 'v4'",
    )  # fmt: skip
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        eventually(lambda: running.events >= 4, running)
        log = running.log
        met = [row for ref in log.refs(0, 4) for row in log.read(ref).batch.to_pylist()]
    assert [row["after"]["v"] for row in met] == ["v1", "v2", "v3", "v4"]


def test_the_database_is_told_only_of_what_was_delivered(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        before = confirmed(database)
        query(database, "INSERT INTO t SELECT generate_series(1, 1000)")
        eventually(lambda: running.log.tail().offset == 1000)
        time.sleep(1)  # several feedback intervals
        assert confirmed(database) <= before, "acknowledged before delivery"
        running.deliver()
        through = parse_lsn(running.log.tail().position)
        eventually(lambda: confirmed(database) >= through)
    assert parse_lsn(running.confirmed[-1]) >= through, "what it said was not noted"


def test_with_ack_logged_the_database_is_told_once_the_log_has_it(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    limits = Limits(ahead_bytes=1 << 30, ack_when_logged=True)
    with capturing(database, tmp_path, tables=("public.t",), limits=limits) as running:
        query(database, "INSERT INTO t SELECT generate_series(1, 10)")
        eventually(lambda: running.log.tail().offset == 10)
        through = parse_lsn(running.log.tail().position)
        eventually(lambda: confirmed(database) >= through)


def test_an_idle_slot_advances_while_others_write(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1)")
        eventually(lambda: running.log.tail().offset == 1)
        running.deliver()
        query(database, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        (end,) = query(database, "SELECT pg_current_wal_lsn()")
        # Less than that is kept for the transaction that must come again (sources/postgres/witness.py).
        eventually(lambda: confirmed(database) >= parse_lsn(end) - SLACK_BYTES)
        assert running.log.tail().offset == 1, "a table that is not captured made events"


def test_a_new_pipeline_on_a_quiet_table_lets_its_slot_advance(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    with capturing(database, tmp_path, tables=("public.t",)):
        query(database, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        (end,) = query(database, "SELECT pg_current_wal_lsn()")
        # Less than that is kept for the transaction that must come again (sources/postgres/witness.py).
        eventually(lambda: confirmed(database) >= parse_lsn(end) - SLACK_BYTES)


def test_an_account_that_may_not_write_messages_keeps_a_bounded_share_of_the_wal(database: str, tmp_path: Path) -> None:
    """Its slot may stay before the end of an idle server's WAL, however long one waits, and follows when others
    write: what is kept for the last transaction has a limit."""
    name = psycopg.conninfo.conninfo_to_dict(database)["dbname"]
    (emit,) = query(
        database, "SELECT oid::regprocedure::text FROM pg_proc"
        " WHERE proname = 'pg_logical_emit_message' AND proargtypes[2] = 'text'::regtype",
    )  # fmt: skip
    query(
        database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)",
        "CREATE ROLE wordless LOGIN REPLICATION", "ALTER TABLE t OWNER TO wordless",
        f"GRANT CREATE ON DATABASE {name} TO wordless",
        f"REVOKE EXECUTE ON FUNCTION {emit} FROM public",
    )  # fmt: skip
    try:
        with capturing(database.replace("postgres@", "wordless@"), tmp_path, tables=("public.t",)) as running:
            query(database, "INSERT INTO t VALUES (1)")
            eventually(lambda: running.log.tail().offset == 1)
            running.deliver()
            query(database, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
            (end,) = query(database, "SELECT pg_current_wal_lsn()")
            eventually(lambda: confirmed(database) >= parse_lsn(end) - 16 * SLACK_BYTES)
            before = parse_lsn(end)
            query(database, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
            eventually(lambda: confirmed(database) >= before, running)
    finally:
        query(database, "DROP OWNED BY wordless", "DROP ROLE wordless")


def test_latest_means_the_first_start_and_never_skips_again(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",), start_position="latest") as running:
        eventually(lambda: running.log.tail().position)
    query(database, "INSERT INTO t VALUES (1)")
    with capturing(database, tmp_path, tables=("public.t",), start_position="latest") as running:
        eventually(lambda: running.log.tail().offset == 1)


def test_a_slot_does_not_advance_past_events_that_wait_for_delivery(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1)")
        eventually(lambda: running.log.tail().offset == 1)
        query(database, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        time.sleep(1)
        assert confirmed(database) < parse_lsn(running.log.tail().position)


def test_a_restart_goes_on_where_the_log_ends(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t SELECT generate_series(1, 100)")
        eventually(lambda: running.log.tail().offset == 100)
    query(database, "INSERT INTO t SELECT generate_series(101, 150)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        eventually(lambda: running.log.tail().offset == 150)
        rows = running.rows()
    assert [row["after"]["id"] for row in rows] == list(range(1, 151))
    assert [row["offset"] for row in rows] == list(range(150))


def test_capture_waits_when_it_is_too_far_ahead_and_goes_on_after_delivery(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with capturing(database, tmp_path, tables=("public.t",), limits=Limits(ahead_bytes=50_000)) as running:
        query(database, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(0, 199) g")
        eventually(lambda: running.log.tail().offset == 200)  # one append may pass the limit, the next must wait
        query(database, "INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(200, 1999) g")
        time.sleep(1)
        assert running.log.tail().offset == 200, "nothing pushed back"
        running.deliver()
        eventually(lambda: running.log.tail().offset == 2000)
        assert [row["after"]["id"] for row in running.rows()] == list(range(2000))


def test_a_lost_connection_is_mended_and_nothing_is_missing(private_postgres: Postgres, tmp_path: Path) -> None:
    dsn = private_postgres.dsn()
    query(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(dsn, tmp_path, tables=("public.t",)) as running:
        query(dsn, "INSERT INTO t SELECT generate_series(1, 50)")
        eventually(lambda: running.log.tail().offset == 50)
        query(dsn, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        eventually(lambda: running.last_error)
        private_postgres.restart("immediate")
        query(dsn, "INSERT INTO t SELECT generate_series(51, 100)")
        eventually(lambda: running.log.tail().offset == 100)
        assert [row["after"]["id"] for row in running.rows()] == list(range(1, 101))


def test_a_transaction_larger_than_memory_limits_is_visible_only_at_its_commit(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY, v text)")
    with (
        capturing(database, tmp_path, tables=("public.t",)) as running,
        psycopg.connect(database) as connection,
    ):
        # 64 kB of decoding memory would make the server stream it; here the client's own limit does (16 MiB a piece).
        connection.execute("INSERT INTO t SELECT g, repeat('x', 1000) FROM generate_series(1, 60000) g")
        time.sleep(0.5)
        assert running.log.tail().offset == 0, "an open transaction is visible"
        connection.commit()
        eventually(lambda: running.log.tail().offset == 60_000)
        assert len(list(running.log.entries())) == 1
        assert [row["ordinal"] for row in running.rows()] == list(range(60_000))


def test_a_table_that_gains_a_column_keeps_both_versions(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1)", "ALTER TABLE t ADD v text", "INSERT INTO t VALUES (2, 'new')")
        eventually(lambda: running.log.tail().offset == 3)
        versions = [ref.version for ref in running.log.refs(0, 3)]
        first, told, second = running.rows()
    assert versions == [1, 2, 2]
    assert (first["after"], second["after"]) == ({"id": 1}, {"id": 2, "v": "new"})
    assert told["op"] == int(Op.DDL)


def test_a_slot_that_somebody_else_moved_is_an_error_and_not_a_gap(database: str, tmp_path: Path) -> None:
    query(database, "CREATE TABLE t (id int PRIMARY KEY)")
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        query(database, "INSERT INTO t VALUES (1)")
        eventually(lambda: running.log.tail().offset == 1)
    query(database, "INSERT INTO t VALUES (2)")
    query(database, "SELECT pg_replication_slot_advance(slot_name, pg_current_wal_lsn()) FROM pg_replication_slots "
                    "WHERE database = current_database()")  # fmt: skip
    with capturing(database, tmp_path, tables=("public.t",)) as running:
        eventually(lambda: running.failure)
    assert isinstance(running.failure[0], PositionLost)


@pytest.mark.parametrize("stage", ["before the first row", "in the middle"])
def test_stopping_is_prompt_and_loses_nothing(stage: str, postgres18: Postgres, tmp_path: Path) -> None:
    with postgres18.database(f"stop_{stage.replace(' ', '_')}") as dsn:
        query(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        with capturing(dsn, tmp_path, tables=("public.t",)) as running:
            if stage == "in the middle":
                query(dsn, "INSERT INTO t SELECT generate_series(1, 5000)")
        query(dsn, "INSERT INTO t SELECT generate_series(5001, 5100)")
        expected = 5100 if stage == "in the middle" else 100
        with capturing(dsn, tmp_path, tables=("public.t",)) as running:
            eventually(lambda: running.log.tail().offset == expected)
