"""A capture of a private server, and whether the log has what the server has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.sources.mysupport import config
from tests.support.capturing import Running, capturing, eventually
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Op
from tidemill.sources.mysql import MysqlConfig, MysqlSource

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v varchar(100), n decimal(10,2), at datetime(3))"

names = itertools.count(1)

Kind = str


def settings(server: Server, shop: str, **options: Any) -> MysqlConfig:
    return config(server.dsn(), f"{shop}.*", heartbeat_seconds=0.5, feedback_seconds=0.1, **options)


def state(running: Running, table: str) -> dict[int, dict[str, Any]]:
    """The rows that the events of a table make; every event must find what it changes."""
    rows: dict[int, dict[str, Any]] = {}
    for event in running.rows():
        if event["table"] != table:
            continue
        match Op(event["op"]):
            case Op.INSERT:
                assert event["after"]["id"] not in rows
                rows[event["after"]["id"]] = event["after"]
            case Op.UPDATE:
                assert event["before"] is None or event["before"] == rows[event["before"]["id"]]
                rows[event["after"]["id"]] = event["after"]
            case Op.DELETE:
                old = event["before"] or event["key"]
                del rows[old["id"]]
            case Op.TRUNCATE:
                rows.clear()
            case _:
                pass
    return rows


def held(server: Server, table: str) -> dict[int, dict[str, Any]]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in cursor.description]
        found = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    return {row["id"]: row for row in found}


def same(running: Running, server: Server, table: str) -> None:
    """Waits for the last change, then compares all rows."""
    marker = 1_000_000 + next(names)
    server.query(f"INSERT INTO {table} (id) VALUES ({marker})")
    eventually(lambda: seen(running, table, marker), running)
    assert state(running, table) == held(server, table)


@contextmanager
def captured(options: MysqlConfig, directory: Path) -> Iterator[Running]:
    """A capture loop that has noted where it begins: what happens from now on is seen."""
    with capturing(MysqlSource(options), directory) as running:
        eventually(lambda: running.log.tail().position, running)
        yield running


def seen(running: Running, table: str, number: int) -> bool:
    """Whether one of the last events has this row."""
    return any((e["after"] or {}).get("id") == number for e in running.rows(last=50) if e["table"] == table)
