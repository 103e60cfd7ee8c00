"""Sources whose tables change, as fixtures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sinks.state.following import Origin, Rows, names
from tests.sinks.state.support import Destination, postgres_destination
from tests.sources import mysupport, support
from tests.support.origin import session
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.sources.mysql import MysqlSource
from tidemill.sources.postgres import PostgresSource


@pytest.fixture
def postgres_origin(postgres18: Postgres, tmp_path: Path) -> Iterator[Origin]:
    name = f"following_{next(names)}"
    with postgres18.database(name) as dsn:
        settings = support.config(dsn, "public.t")
        support.execute(dsn, "CREATE TABLE t (id int PRIMARY KEY, name text, note text)")
        yield Origin(
            lambda: PostgresSource(settings),
            lambda statement: support.execute(dsn, statement),
            lambda columns: sorted(support.query(dsn, f"SELECT {columns} FROM t")),
            tmp_path,
        )
        support.execute(dsn, f"SELECT pg_drop_replication_slot('{settings.slot_name}')")


@pytest.fixture
def mysql_origin(mysql_server: Server, tmp_path: Path) -> Iterator[Origin]:
    name = f"following{next(names)}"
    with mysql_server.database(name):
        mysql_server.query("CREATE TABLE t (id int PRIMARY KEY, name text, note text)", database=name)
        settings = mysupport.config(mysql_server.dsn(), f"{name}.t", heartbeat_seconds=0.5)

        def rows(columns: str) -> Rows:
            with mysql_server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT {columns} FROM {name}.t")
                return sorted(tuple(row.values()) if isinstance(row, dict) else row for row in cursor.fetchall())

        origin = Origin(
            lambda: MysqlSource(settings),
            lambda statement: mysql_server.query(statement, database=name),
            rows,
            tmp_path,
        )
        origin.begin()
        yield origin


@pytest.fixture
def target(postgres18: Postgres) -> Iterator[Destination]:
    with postgres18.database(f"following_{next(names)}") as dsn, session(dsn) as db:
        made = postgres_destination(dsn, db)
        yield made
        made.close()
