"""The table and the changes that the benches drain: eight columns of mixed types, inserts, updates and deletes."""

from __future__ import annotations

import threading
import time

import psycopg

from tidemill.lab.servers.postgres import Postgres

PUBLICATION = "bench"
_ROWS_PER_TRANSACTION = 1000

_TABLE = """
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
        _TABLE,
        _CHANGES,
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE bench WITH (publish_via_partition_root = true)",
    ):
        database.query(statement)
    for slot in slots:
        database.query(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")


def change(database: Postgres, rows: int) -> str:
    """Makes `rows` changes and answers the LSN after the last one."""
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        connection.execute("CALL change(1, %s)", [rows // _ROWS_PER_TRANSACTION])
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        assert row is not None
        return str(row[0])


def offer(database: Postgres, per_second: int, seconds: float, stop: threading.Event) -> int:
    """Commits ten events a hundred times a second, as steadily as the machine allows; answers how many."""
    step = 10 / per_second
    done = 0
    with psycopg.connect(database.dsn(), autocommit=True) as connection:
        begin = time.monotonic()
        while not stop.is_set() and done < per_second * seconds:
            connection.execute(
                "INSERT INTO bench SELECT g, 1, 1.5, 'new', 'latency', now(), true, 0.5 "
                "FROM generate_series(%s::bigint, %s::bigint) g",
                [10**12 + done, 10**12 + done + 9],
            )
            done += 10
            ahead = begin + done / 10 * step - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
    return done


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
