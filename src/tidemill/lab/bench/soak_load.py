"""What the pipeline under load reads in `bench soak`: a file of SQLite, or a PostgreSQL of its own."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import psycopg

from tidemill.lab.bench import load
from tidemill.lab.servers.postgres import Postgres

AT_ONCE = 1000
"""Rows of a transaction."""
_SQLITE_TABLE = "CREATE TABLE soak (id INTEGER PRIMARY KEY, customer INT, amount DECIMAL(12,2), note TEXT)"
# The same rows are written over and over, with room for the next version beside each: the table does not grow.
_KEYS = 100_000
_UPDATES = """
CREATE PROCEDURE soak(first bigint, transactions bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR t IN 0 .. transactions - 1 LOOP
        UPDATE bench SET amount = amount + 1, created_at = now()
        WHERE id > (first + t * 1000) % 100000 AND id <= (first + t * 1000) % 100000 + 1000;
        COMMIT;
    END LOOP;
END $$
"""


class SoakLoad(Protocol):
    """`source` is the document's; `write` commits row changes and returns how many there are by now."""

    source: str

    def write(self, rows: int) -> int: ...


class SqliteLoad:
    def __init__(self, file: Path, name: str) -> None:
        self._file, self._written = file, 0
        with closing(sqlite3.connect(file)) as db:
            db.execute("PRAGMA journal_mode = wal")
            db.execute(_SQLITE_TABLE)
        self.source = f"{{type: sqlite, config: {{id: {name}, path: {file}}}}}"

    def write(self, rows: int) -> int:
        due = self._written + rows
        with closing(sqlite3.connect(self._file, timeout=60)) as db:
            for first in range(self._written, due, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, due))
                db.executemany(
                    "INSERT INTO soak VALUES (?, ?, ?, ?)",
                    [(n, n % 1000, n % 100_000 / 100, f"note number {n}") for n in numbers],
                )
                db.commit()
        self._written = due
        return due


class PostgresLoad:
    """The table of the other benches, each row updated again and again. Only whole transactions: a number of rows is
    rounded up to thousands."""

    def __init__(self, stack: ExitStack, name: str) -> None:
        server = stack.enter_context(Postgres(durable=False, shared_buffers="256MB", max_wal_size="2GB"))
        self._dsn, self._written = server.dsn(), 0
        for statement in (load.TABLE, "ALTER TABLE bench SET (fillfactor = 40)", _UPDATES):
            server.query(statement)
        load.fill(server, _KEYS)
        self.source = f'{{type: postgres, config: {{id: {name}, dsn: "{self._dsn}", tables: [public.bench]}}}}'

    def write(self, rows: int) -> int:
        transactions = -(-rows // AT_ONCE)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("CALL soak(%s, %s)", [self._written, transactions])
        self._written += transactions * AT_ONCE
        return self._written
