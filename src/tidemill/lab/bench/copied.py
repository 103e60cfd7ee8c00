"""The databases whose tables the snapshot bench copies, and what each of them does by itself with the same rows."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tidemill.errors import EnvironmentProblem
from tidemill.lab.bench import load
from tidemill.lab.bench.drain import LIMIT_SECONDS
from tidemill.lab.servers import mariadb, mysql

WIDE = 40
_SERVICES = Path(".services")


class CopiedServer(Protocol):
    """One server with the tables `bench` and `part` (eight columns) and `wide` (forty), keys from 1 on. `part` has the
    first rows of `bench`: for what would take too long with all of them."""

    title: str

    @property
    def kind(self) -> str: ...

    @property
    def tables(self) -> Mapping[str, str]:
        """Full names by short ones."""

    def fill(self, table: str, rows: int) -> None: ...

    def source(self, slot: str) -> str:
        """The settings of a source that has not read anything yet, as YAML, without tables."""

    def discard(self, table: str, rows: int, connections: int) -> None:
        """Reads the whole table by the server's own client, in as many connections, and throws it away."""

    def digest(self, table: str) -> Any:
        """Count and a checksum of all rows, in plain SQL."""

    def forget(self, slot: str) -> None:
        """What the source kept at the server."""


class PostgresCopied:
    kind = "postgres"
    tables: ClassVar[dict[str, str]] = {"bench": "public.bench", "part": "public.part", "wide": "public.wide"}

    def __init__(self, stack: ExitStack) -> None:
        self.database = stack.enter_context(load.server())
        self.title = f"PostgreSQL {self.database.version}"
        numbers = ", ".join(f"c{n} int, t{n} text" for n in range(WIDE // 2 - 1))
        self.database.query(load.TABLE)
        self.database.query("CREATE TABLE part (LIKE bench INCLUDING ALL)")
        self.database.query(f"CREATE TABLE wide (id bigint PRIMARY KEY, {numbers}, at timestamptz)")

    def fill(self, table: str, rows: int) -> None:
        if table == "bench":
            load.fill(self.database, rows)
        elif table == "part":
            self.database.query(f"INSERT INTO part SELECT * FROM bench WHERE id <= {rows}")
        else:
            cells = ", ".join(f"g % {n + 7}, 'text ' || g % {n + 11}" for n in range(WIDE // 2 - 1))
            self.database.query(
                f"INSERT INTO wide SELECT g, {cells}, timestamptz '2024-01-01 00:00:00Z' + g * interval '1 second'"
                f" FROM generate_series(1, {rows}) g"
            )
        self.database.query(f"VACUUM ANALYZE {table}")

    def source(self, slot: str) -> str:
        return f'dsn: "{self.database.dsn()}", slot: {slot}'

    def discard(self, table: str, rows: int, connections: int) -> None:
        psql = [str(self.database.bin_dir / "psql"), "-X", "-q", "-d", self.database.dsn(), "-c"]
        _discard(
            [
                [*psql, f"COPY (SELECT * FROM {table} WHERE id BETWEEN {low} AND {high}) TO STDOUT"]
                for low, high in _shares(rows, connections)
            ]
        )

    def digest(self, table: str) -> Any:
        return self.database.query(
            f"SELECT count(*), sum(('x' || substr(md5(t::text), 1, 16))::bit(64)::bigint::numeric) FROM {table} t"
        )

    def forget(self, slot: str) -> None:
        self.database.query(f"SELECT pg_drop_replication_slot('{slot}')")


class MysqlCopied:
    kind = "mysql"
    tables: ClassVar[dict[str, str]] = {"bench": "shop.bench", "part": "shop.part", "wide": "shop.wide"}

    def __init__(self, stack: ExitStack) -> None:
        settings: dict[str, Any] = {"innodb_buffer_pool_size": "512M", "cte_max_recursion_depth": 1_000_000_000}
        self.server = stack.enter_context(mysql.Mysql(mysql.fetch(_SERVICES / "mysql"), **settings))
        self.title = f"MySQL {self.server.version}"
        numbers = ", ".join(f"c{n} int, t{n} varchar(40)" for n in range(WIDE // 2 - 1))
        self.server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.bench (id bigint PRIMARY KEY, customer_id int, amount decimal(12,2), status varchar(20),"
            " note text, created_at datetime(6), flag tinyint(1), score double) CHARACTER SET utf8mb4",
            "CREATE TABLE shop.part LIKE shop.bench",
            f"CREATE TABLE shop.wide (id bigint PRIMARY KEY, {numbers}, at datetime(6)) CHARACTER SET utf8mb4",
        )

    def fill(self, table: str, rows: int) -> None:
        cells = (
            "g % 1000, (g % 100000) / 100, CONCAT('status ', g % 5), CONCAT('note number ', g, REPEAT('x', g % 30)),"
            " TIMESTAMPADD(SECOND, g, '2024-01-01'), g % 2, g * 1.1"
        )
        if table == "wide":
            pairs = ", ".join(f"g % {n + 7}, CONCAT('text ', g % {n + 11})" for n in range(WIDE // 2 - 1))
            cells = f"{pairs}, TIMESTAMPADD(SECOND, g, '2024-01-01')"
        for low in range(1, rows + 1, 500_000):
            high = min(rows, low + 499_999)
            if table == "part":
                keys = f"id BETWEEN {low} AND {high}"
                self.server.execute(f"INSERT INTO shop.part SELECT * FROM shop.bench WHERE {keys}")
                continue
            self.server.execute(
                f"INSERT INTO shop.{table} WITH RECURSIVE n (g) AS (SELECT {low} UNION ALL SELECT g + 1 FROM n"
                f" WHERE g < {high}) SELECT g, {cells} FROM n",
                database="shop",
            )
        self.server.execute(f"ANALYZE TABLE shop.{table}")

    def source(self, slot: str) -> str:
        return f'dsn: "{self.server.dsn("shop")}"'

    def discard(self, table: str, rows: int, connections: int) -> None:
        client = [
            str(mariadb.find("mariadb")), "--no-defaults", "--quick", "--batch", "--host=127.0.0.1",
            f"--port={self.server.port}", "--user=root", "--skip-ssl", "--execute",
        ]  # fmt: skip
        _discard(
            [
                [*client, f"SELECT * FROM shop.{table} WHERE id BETWEEN {low} AND {high}"]
                for low, high in _shares(rows, connections)
            ]
        )

    def digest(self, table: str) -> Any:
        """By SHA2: MySQL 9.6 has no MD5 of its own any more."""
        columns = "id, customer_id, amount, status, note, created_at, flag, score"
        return self.server.query(
            f"SELECT COUNT(*), SUM(CAST(CONV(LEFT(SHA2(CONCAT_WS('|', {columns}), 256), 16), 16, 10) AS DECIMAL(30)))"
            f" FROM shop.{table}",
            database="shop",
        )

    def forget(self, slot: str) -> None:
        return


def _shares(rows: int, connections: int) -> list[tuple[int, int]]:
    bounds = [rows * n // connections for n in range(connections + 1)]
    return [(low + 1, high) for low, high in pairwise(bounds)]


def _discard(commands: Sequence[Sequence[str]]) -> None:
    """All at once, to /dev/null; back when the last one ended."""
    clients = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    for client in clients:
        _, said = client.communicate(timeout=LIMIT_SECONDS)
        if client.returncode:
            raise EnvironmentProblem(f"{client.args!s} ended with code {client.returncode}", fix=said[-400:])
