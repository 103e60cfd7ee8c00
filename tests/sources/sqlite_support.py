"""A file, its capture, and a copy of its tables made of nothing but the events."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.capturing import Running, capturing, eventually
from tidemill.contracts import SnapshotReader
from tidemill.model.snapshot import Chunk, SnapshotTable
from tidemill.sources.sqlite import SqliteFileConfig, SqliteSource
from tidemill.sources.sqlite.resume import LAST_NUMBER

Row = dict[str, Any]


def config_of(path: Path, **settings: Any) -> SqliteFileConfig:
    return SqliteFileConfig(**{"id": "shop", "path": path, "poll_seconds": 0.05, "trim_seconds": 0, **settings})


@contextmanager
def shop(path: Path, *statements: str, journal: str = "wal") -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(path, isolation_level=None, timeout=20)
    try:
        db.execute(f"PRAGMA journal_mode = {journal}")
        for statement in statements:
            db.execute(statement)
        yield db
    finally:
        db.close()


@contextmanager
def captured(path: Path, directory: Path, **settings: Any) -> Iterator[Running]:
    directory.mkdir(exist_ok=True)
    with capturing(SqliteSource(config_of(path, **settings)), directory) as running:
        eventually(lambda: running.log.tail().position, running)
        yield running


def caught_up(db: sqlite3.Connection, running: Running) -> list[Row]:
    """All events, once the log has every change that the file has recorded."""

    def done() -> bool:
        (last,) = db.execute(LAST_NUMBER).fetchone()
        position = running.log.tail().position
        return int(position.partition("@")[0].partition("/")[0] or 0) >= last

    eventually(done, running)
    return running.rows()


def shown(events: list[Row]) -> list[tuple[Any, ...]]:
    """(op, before, after) as values, for a test to read."""
    names = {1: "insert", 2: "update", 3: "delete", 4: "truncate", 6: "ddl"}
    return [
        (names[e["op"]], tuple(e["before"].values()) if e["before"] else None,
         tuple(e["after"].values()) if e["after"] else None)
        for e in events
    ]  # fmt: skip


def exact(row: Row, side: int, event: Row) -> tuple[Any, ...]:
    """With what the column's Arrow type cannot hold, from `odd`."""
    values = list(row.values())
    for odd in event.get("odd") or ():
        if odd["side"] == side:
            values[odd["column"]] = odd["text"]
    return tuple(values)


def copy_of(events: list[Row], table: str, key: tuple[int, ...]) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The table as its events make it. Each must fit what those before it have left: an insert of a row that is there
    or a change of one that is not is a missing or a superfluous event."""
    rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for event in events:
        if event["table"] != f"main.{table}" or event["op"] == 6:
            continue
        if event["op"] == 4:
            rows.clear()
            continue
        before = exact(event["before"], 1, event) if event["before"] else None
        after = exact(event["after"], 2, event) if event["after"] else None
        if before is not None:
            at = tuple(before[i] for i in key)
            assert rows.pop(at, None) == before, f"{event} does not follow from what came before"
        if after is not None:
            at = tuple(after[i] for i in key)
            assert at not in rows, f"{event} inserts a row that is there"
            rows[at] = after
    return rows


def read_chunks(reader: SnapshotReader, table: SnapshotTable, rows: int) -> list[list[dict[str, Any]]]:
    """The rows of each chunk of so many rows, until the table's end."""
    found, lower = [], None
    for number in range(1000):
        upper = reader.plan(table, "", lower, rows)
        with reader.read(Chunk(table.name, number, "", lower, upper), table, ["", ""]) as reading:
            assert reading.observation == 1
            found.append([row for block in reading.blocks() for row in block.batch.to_pylist()])
        if upper is None:
            return found
        lower = upper
    raise AssertionError("the table has no end")
