"""A source on a test's own database, and a reader of what it streams."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tidemill.sources.postgres import PostgresConfig, PostgresSource


def config(dsn: str, *tables: str, **options: Any) -> PostgresConfig:
    # Slots belong to the whole server, so their names must differ between tests: the database's does.
    database = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    return PostgresConfig(**{"id": f"src-{database}", "dsn": dsn, "tables": tables} | options)


@contextmanager
def opened(settings: PostgresConfig) -> Iterator[PostgresSource]:
    source = PostgresSource(settings)
    try:
        yield source
    finally:
        source.close()


def execute(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as db:
        for statement in statements:
            db.execute(statement.encode())


def query(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as db:
        return db.execute(statement.encode()).fetchall()


def pump(source: PostgresSource) -> list[bytes]:
    """One turn of the capture loop: pgoutput messages of what arrived; keepalives are passed on as a decoder would."""
    view = source.read(0.1)
    found, at = [], 0
    while at + 5 <= len(view):
        size = 1 + struct.unpack_from(">I", view, at + 1)[0]
        if at + size > len(view):
            break
        kind, body = chr(view[at]), bytes(view[at + 5 : at + size])
        if kind != "d":
            source.server_message(kind, body)
        elif body[:1] == b"k":
            wal_end, _clock, asked = struct.unpack(">QQB", body[1:])
            source.keepalive(wal_end, bool(asked))
        else:
            found.append(body[25:])
        at += size
    source.consumed(at)
    return found


def pump_until_lost(source: PostgresSource, seconds: float = 120) -> None:
    """Turns the loop until the connection's end raises, or until nothing came of it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pump(source)


def end_session(dsn: str, settings: PostgresConfig) -> None:
    """Ends the session that reads the source's slot."""
    execute(
        dsn,
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{settings.slot_name}'",
    )


def messages(source: PostgresSource, kinds: str, count: int, seconds: float = 120) -> list[bytes]:
    """The next `count` pgoutput messages of these kinds."""
    found: list[bytes] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"only {len(found)} of {count} messages came"
        found += [m for m in pump(source) if chr(m[0]) in kinds]
    return found


def commit_end(message: bytes) -> int:
    """The end of the transaction, from its Commit message."""
    return int(struct.unpack_from(">Q", message, 10)[0])
