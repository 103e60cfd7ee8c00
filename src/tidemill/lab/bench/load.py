"""The table and the changes that the benches drain: eight columns of mixed types, inserts, updates and deletes."""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess

import psycopg

from tidemill.lab.servers.postgres import Postgres

PUBLICATION = "bench"
_ROWS_PER_TRANSACTION = 1000

TABLE = """
CREATE TABLE bench (
    id bigint PRIMARY KEY, customer_id int, amount numeric(12,2), status varchar(20),
    note text, created_at timestamptz, flag boolean, score double precision
)
"""
# Of every 1,000 changes 800 are inserts, 150 updates and 50 deletes, one transaction each thousand.
_CHANGES = """
CREATE PROCEDURE change(first bigint, transactions bigint) LANGUAGE plpgsql AS $$
DECLARE base bigint;
BEGIN
    FOR t IN 0 .. transactions - 1 LOOP
        base := first + t * 800;
        INSERT INTO bench
        SELECT g, g % 1000, (g % 100000) / 100.0, 'status ' || g % 5, 'note number ' || g || repeat('x', (g % 30)::int),
               timestamptz '2024-01-01 00:00:00Z' + g * interval '1 second', g % 2 = 0, g * 1.1
        FROM generate_series(base, base + 799) g;
        UPDATE bench SET amount = amount + 1, status = 'changed' WHERE id BETWEEN base AND base + 149;
        DELETE FROM bench WHERE id BETWEEN base + 750 AND base + 799;
        COMMIT;
    END LOOP;
END $$
"""


def server() -> Postgres:
    return Postgres(
        durable=False, shared_buffers="512MB", max_wal_size="16GB", checkpoint_timeout="1h", autovacuum=False,
    )  # fmt: skip


def prepare(database: Postgres, slots: list[str]) -> None:
    """Slots are made before the changes, so that each of them has the whole backlog to itself."""
    for statement in (
        TABLE,
        _CHANGES,
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE bench WITH (publish_via_partition_root = true)",
    ):
        database.query(statement)
    for slot in slots:
        make_slot(database, slot)


def make_slot(database: Postgres, slot: str) -> None:
    """It has what is changed from now on."""
    database.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")


def change(database: Postgres, rows: int) -> str:
    """Makes `rows` changes and answers the LSN after the last one."""
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("CALL change(1, %s)", [rows // _ROWS_PER_TRANSACTION])
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return str(row[0])


def fill(database: Postgres, rows: int) -> None:
    """Rows with the keys from 1 on, in no backlog: for benches that read the table."""
    database.query(
        "INSERT INTO bench SELECT g, g % 1000, (g % 100000) / 100.0, 'status ' || g % 5,"
        " 'note number ' || g || repeat('x', (g % 30)::int), timestamptz '2024-01-01 00:00:00Z' + g * interval '1 s',"
        f" g % 2 = 0, g * 1.1 FROM generate_series(1, {rows}) g"
    )


def count(per_second: int, seconds: float, at_once: int) -> int:
    """How many events `offer` commits."""
    return math.ceil(per_second * seconds / at_once) * at_once


@contextmanager
def client(dsn: str, per_second: int, seconds: float, at_once: int = 10) -> Iterator[SpawnProcess]:
    """`offer` in a process of its own: a thread would share the interpreter with the driver that is measured. It is
    ended on the way out."""
    process = multiprocessing.get_context("spawn").Process(
        target=offer, args=(dsn, per_second, seconds, at_once, time.time_ns()), daemon=True
    )
    process.start()
    try:
        yield process
    finally:
        process.terminate()
        process.join()


def offer(dsn: str, per_second: int, seconds: float, at_once: int, first: int) -> None:
    """Commits `at_once` events at a time, as steadily as the machine allows. `first` is their first key."""
    step = at_once / per_second
    done = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        begin = time.monotonic()
        while done < per_second * seconds:
            connection.execute(
                "INSERT INTO bench SELECT g, 1, 1.5, 'new', 'latency', now(), true, 0.5 "
                "FROM generate_series(%s::bigint, %s::bigint) g",
                [first + done, first + done + at_once - 1],
            )
            done += at_once
            early = begin + done / at_once * step - time.monotonic()
            if early > 0:
                time.sleep(early)


def large_transaction(database: Postgres, rows: int) -> str:
    """One transaction of `rows` inserts; answers the LSN after it."""
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO bench SELECT g, g %% 1000, (g %% 100000) / 100.0, 'status ' || g %% 5, 'note number ' || g, "
            "now(), g %% 2 = 0, g * 1.1 FROM generate_series(%s::bigint, %s::bigint) g",
            [10**13, 10**13 + rows - 1],
        )
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return str(row[0])
