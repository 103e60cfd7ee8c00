"""Destinations that keep tables: ClickHouse's engine, PostgreSQL, and the stand-in of StarRocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa

from tests.support.changes import column, delivery, structure
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.model.block import Block, Op
from tidemill.model.table import Column, Table
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig
from tidemill.sinks.starrocks import StarRocksConfig, StarRocksSink

INSERT, UPDATE, DELETE = Op.INSERT, Op.UPDATE, Op.DELETE

ID = column("id", "bigint", pa.int64(), nullable=False)

NAME, NOTE, LABEL = (column(name, "text", pa.string()) for name in ("name", "note", "label"))

T = structure("t", ID, NAME, NOTE)

RENAMED = structure("t", ID, LABEL, NOTE, version=2, renamed=[("name", "label")])

databases = itertools.count(1)

Sink = ClickHouseSink | PostgresSink | StarRocksSink


class Destination:
    """`sink` is a new worker; `rows` is what a reader of the table sees; `run` is for who mends it by hand; `columns`
    are all of the table `t`, with types and comments."""

    def __init__(
        self,
        sink: Callable[..., Sink],
        rows: Callable[[str, str], list[dict[str, Any]]],
        run: Callable[[str], object],
        columns: Callable[[], list[tuple[Any, ...]]],
    ) -> None:
        self._make = sink
        self._rows = rows
        self.run = run
        self.columns = columns
        self._opened: list[Sink] = []

    def sink(self, **options: Any) -> Sink:
        self._opened.append(self._make(**options))
        return self._opened[-1]

    def write(self, *blocks: Block, start: int = 0, sink: Sink | None = None, **options: Any) -> None:
        (sink or self.sink(**options)).write(delivery(*blocks, start=start))

    def rows(self, columns: str = "id, name, note", table: str = "t") -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self._rows(columns, table))

    def close(self) -> None:
        for sink in self._opened:
            sink.close()


def clickhouse(server: ClickHouse, database: str) -> Destination:
    def sink(**options: Any) -> Sink:
        url = f"http://127.0.0.1:{server.port}"
        return ClickHouseSink(ClickHouseConfig(**{"id": "s", "url": url, "database": database} | options))

    def rows(columns: str, table: str) -> list[dict[str, Any]]:
        return server.query(f"SELECT {columns} FROM {database}.{table} FINAL")

    def columns() -> list[tuple[Any, ...]]:
        of_columns = "SELECT name, type, default_expression, comment FROM system.columns WHERE table = 't'"
        of_table = "SELECT name, engine_full, '', comment FROM system.tables WHERE name = 't'"
        found = [server.query(f"{query} AND database = '{database}' ORDER BY name") for query in (of_columns, of_table)]
        return [tuple(row.values()) for rows in found for row in rows]

    return Destination(sink, rows, server.query, columns)


def starrocks(server: StarRocks, database: str) -> Destination:
    def sink(**options: Any) -> Sink:
        url, port = f"http://127.0.0.1:{server.http_port}", server.mysql_port
        settings: dict[str, Any] = {"id": "s", "url": url, "mysql_port": port, "database": database} | options
        return StarRocksSink(StarRocksConfig(**settings))

    def rows(columns: str, table: str) -> list[dict[str, Any]]:
        found = server.query(f"SELECT {columns} FROM `{database}`.`{table}`")
        return [{k: int(v) if k == "id" else v for k, v in row.items()} for row in found]

    def columns() -> list[tuple[Any, ...]]:
        place = f"FROM information_schema.columns WHERE table_schema = '{database}' AND table_name = 't'"
        queries = f"SELECT column_name, column_type, column_key {place}", f"SELECT column_name, column_comment {place}"
        return [tuple(row.values()) for query in queries for row in server.query(query)]

    return Destination(sink, rows, server.query, columns)


def postgres_destination(dsn: str, db: psycopg.Connection[Any]) -> Destination:
    def sink(**options: Any) -> Sink:
        return PostgresSink(PostgresSinkConfig(**{"id": "s", "dsn": dsn, "table": "${source.table}"} | options))

    def rows(columns: str, table: str) -> list[dict[str, Any]]:
        with db.cursor(row_factory=psycopg.rows.dict_row) as cursor:
            return cursor.execute(f"SELECT {columns} FROM {table}".encode()).fetchall()

    def columns() -> list[tuple[Any, ...]]:
        return db.execute(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, col_description(attrelid, attnum) "
            "FROM pg_attribute WHERE attrelid = to_regclass('t') AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        ).fetchall()

    return Destination(sink, rows, lambda statement: db.execute(statement.encode()), columns)


def row(id: int, name: str | None = "a", note: str | None = "n") -> dict[str, Any]:
    return {"id": id, "name": name, "note": note}


def keyed(kind: Column) -> Table:
    return structure("t", kind, NAME, NOTE, key=(kind.name,))
