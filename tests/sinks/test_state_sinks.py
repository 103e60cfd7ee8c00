"""The sinks that keep tables, held to one list: what the table has in the end, whatever came and however often.

Each scenario runs against ClickHouse's engine, PostgreSQL, and the stand-in of StarRocks.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.support.changes import changes, column, delivery, structure
from tests.support.origin import session
from tidemill.errors import Poisoned
from tidemill.lab.servers.clickhouse_standin import ClickHouse
from tidemill.lab.servers.postgres import Postgres
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.model.block import Block, Op, Side
from tidemill.model.table import Column, Table
from tidemill.sinks.clickhouse import ClickHouseConfig, ClickHouseSink
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig
from tidemill.sinks.starrocks import StarRocksConfig, StarRocksSink

INSERT, UPDATE, DELETE = Op.INSERT, Op.UPDATE, Op.DELETE
ID = column("id", "bigint", pa.int64(), nullable=False)
NAME, NOTE, LABEL = (column(name, "text", pa.string()) for name in ("name", "note", "label"))
T = structure("t", ID, NAME, NOTE)
RENAMED = structure("t", ID, LABEL, NOTE, version=2, renamed=[("name", "label")])
_databases = itertools.count(1)

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


@pytest.fixture(scope="module")
def clickhouse_server() -> Iterator[ClickHouse]:
    with ClickHouse() as running:
        yield running


@pytest.fixture(scope="module")
def starrocks_server() -> Iterator[StarRocks]:
    with StarRocks() as running:
        yield running


def _clickhouse(server: ClickHouse, database: str) -> Destination:
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


def _starrocks(server: StarRocks, database: str) -> Destination:
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


@pytest.fixture(params=["clickhouse", "starrocks", "postgres"])
def there(request: pytest.FixtureRequest) -> Iterator[Destination]:
    name = f"state_{next(_databases)}"
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres18")
        with server.database(name) as dsn, session(dsn) as db:
            made = postgres_destination(dsn, db)
            yield made
            made.close()
        return
    build = _clickhouse if request.param == "clickhouse" else _starrocks
    made = build(request.getfixturevalue(f"{request.param}_server"), name)
    yield made
    made.close()


def row(id: int, name: str | None = "a", note: str | None = "n") -> dict[str, Any]:
    return {"id": id, "name": name, "note": note}


def keyed(kind: Column) -> Table:
    return structure("t", kind, NAME, NOTE, key=(kind.name,))


# Events that are not about rows


def test_messages_and_statements_of_tables_without_a_key_do_not_need_a_table(there: Destination) -> None:
    messages = structure("message", column("prefix", "text", pa.string(), nullable=False), key=())
    keyless = structure("keyless", NAME, key=())
    dropped = structure("dropped", key=())
    sink = there.sink()
    receipt = sink.write(
        delivery(
            changes(messages, (Op.MESSAGE, None, {"prefix": "x"})), changes(keyless, (Op.DDL, None, None), first=1),
            changes(dropped, (Op.DDL, None, None), first=2), changes(T, (INSERT, None, row(1)), first=3),
        )
    )  # fmt: skip
    assert receipt.events == 4
    assert there.rows() == [(1, "a", "n")]


def test_a_delivery_of_nothing_is_a_delivery(there: Destination) -> None:
    sink = there.sink()
    assert sink.write(delivery(start=5, end=9)).events == 0
    there.write(changes(T, (INSERT, None, row(1)), first=9), start=9, sink=sink)
    assert there.rows() == [(1, "a", "n")]


# Structures


def test_a_transaction_may_change_rows_and_their_table(there: Destination) -> None:
    for _ in range(3):  # replays in new workers
        there.write(
            changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))),
            changes(RENAMED, (UPDATE, None, {"id": 1, "label": "b", "note": "m"}), first=2),
        )
        assert there.rows("id, label, note") == [(1, "b", "m"), (2, "a", "n")]


def test_a_replay_of_changes_around_a_new_column_ends_in_the_last_state(there: Destination) -> None:
    wider = structure("t", ID, NAME, NOTE, LABEL, version=2)
    blocks = (
        changes(T, (INSERT, None, row(1, "first")), (INSERT, None, row(2))),
        changes(wider, (UPDATE, None, {**row(1, "second"), "label": "x"}), (DELETE, {"id": 2}, None), first=2),
    )
    for _ in range(3):
        there.write(*blocks)
        assert there.rows("id, name, label") == [(1, "second", "x")]


def test_a_structure_that_comes_back_is_followed_back(there: Destination) -> None:
    """The registry knows it by its old number; only the offset tells that it is later."""
    back = structure("t", ID, NAME, NOTE, renamed=[("label", "name")])
    sink = there.sink()
    there.write(changes(T, (INSERT, None, row(1))), sink=sink)
    there.write(changes(RENAMED, (INSERT, None, {"id": 2, "label": "b", "note": "n"}), first=1), start=1, sink=sink)
    there.write(changes(back, (INSERT, None, row(3, "c")), first=2), start=2, sink=sink)
    assert there.rows() == [(1, "a", "n"), (2, "b", "n"), (3, "c", "n")]
    there.write(changes(back, (UPDATE, None, row(1, "z")), first=3), start=3)
    assert there.rows() == [(1, "z", "n"), (2, "b", "n"), (3, "c", "n")]


def test_a_column_that_is_dropped_and_made_again_is_written_again(there: Destination) -> None:
    narrow = structure("t", ID, NAME, version=2)
    sink = there.sink(**({} if isinstance(there.sink(), StarRocksSink) else {"allow_destructive_ddl": True}))
    there.write(changes(T, (INSERT, None, row(1))), sink=sink)
    there.write(changes(narrow, (UPDATE, None, {"id": 1, "name": "b"}), first=1), start=1, sink=sink)
    there.write(changes(T, (INSERT, None, row(2, "c", "new")), first=2), start=2, sink=sink)
    assert there.rows("id, name")[-1] == (2, "c")
    assert there.rows("id, note")[-1] == (2, "new")


# Columns that the source did not send


def test_what_is_refused_only_for_a_row_that_is_not_there_is_said_to_lack_it(there: Destination) -> None:
    """While a table is copied such an event is left out, since the row comes with the copy."""
    with pytest.raises(Poisoned) as caught:
        there.write(changes(T, (UPDATE, None, {"id": 7, "name": "new"}), unchanged={0: ["note"]}))
    assert caught.value.lacking == caught.value.reasons.keys() == {0}


def test_an_insert_without_all_of_its_columns_is_poisoned_also_after_a_delete(there: Destination) -> None:
    """binlog_row_image MINIMAL leaves columns to their defaults: those of the row before are not its values."""
    there.write(changes(T, (INSERT, None, row(1, "old", "old"))))
    events = ((DELETE, {"id": 1}, None), (INSERT, None, {"id": 1, "name": "new"}))
    again = changes(T, *events, first=1, unchanged={1: ["note"]})
    with pytest.raises(Poisoned) as caught:
        there.write(again, start=1)
    assert set(caught.value.reasons) == {2}


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (column("k", "bytea", pa.binary(), nullable=False), b"\x00\xff'\\"),
        (column("k", "timestamp without time zone", pa.timestamp("us"), nullable=False), datetime.datetime(2026, 1, 2)),
        (column("k", "timestamp with time zone", pa.timestamp("us", "UTC"), nullable=False),
         datetime.datetime(2026, 1, 2, 3, 4, 5, 60, datetime.UTC)),
        (column("k", "date", pa.date32(), nullable=False), datetime.date(2026, 1, 2)),
        (column("k", "bigint unsigned", pa.uint64(), nullable=False), 2**64 - 1),
        (column("k", "decimal(20,10)", pa.decimal128(20, 10), nullable=False), decimal.Decimal("1E-10")),
        (column("k", "boolean", pa.bool_(), nullable=False), True),
        (column("k", "uuid", pa.string(), nullable=False), "0e0ec5a0-0000-4000-8000-00000000000a"),
        (column("k", "text", pa.string(), nullable=False), "A'\\ \"ü\t\n`"),
    ],
    ids=lambda value: value.type.native if isinstance(value, Column) else "",
)  # fmt: skip
def test_unchanged_columns_keep_their_value_whatever_the_key_is(there: Destination, kind: Column, key: Any) -> None:
    table = keyed(kind)
    there.write(changes(table, (INSERT, None, {"k": key, "name": "a", "note": "kept"})))
    update = (UPDATE, {"k": key}, {"k": key, "name": "b", "note": None})
    there.write(changes(table, update, first=1, unchanged={0: ["note"]}), start=1)
    assert there.rows("name, note") == [("b", "kept")]
    there.write(changes(table, (DELETE, {"k": key}, None), first=2), start=2)
    assert there.rows("name") == []


@pytest.mark.parametrize(
    "there", ["clickhouse", "starrocks"], indirect=True
)  # postgres skips what it has, event by event
def test_a_replay_in_another_cut_does_not_miss_a_row_that_was_deleted_since(there: Destination) -> None:
    updates = ((UPDATE, None, {"id": 1, "name": "b"}), (UPDATE, None, {"id": 2, "name": "b"}))
    there.write(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    later = [
        delivery(changes(T, *updates, first=2, unchanged={0: ["note"], 1: ["note"]}), start=2),
        delivery(changes(T, (DELETE, {"id": 1}, None), (INSERT, None, row(3)), first=4), start=4),
    ]
    for lanes in (1, 2):
        sink = there.sink()
        for each in later:
            sink.write(dataclasses.replace(each, lanes=lanes))
        assert there.rows() == [(2, "b", "n"), (3, "a", "n")]


def test_a_change_of_a_document_is_not_taken_for_the_document(there: Destination) -> None:
    """MySQL's PARTIAL_JSON, where the row it changes is not in the binlog."""
    table = structure("t", ID, column("doc", "json", pa.string(), raw=True))
    there.write(changes(table, (INSERT, None, {"id": 1, "doc": "{}"})))
    odd = {0: [(Side.AFTER, "doc", '[{"op":"remove","path":"$.a"}]')]}
    with pytest.raises(Poisoned) as caught:
        there.write(changes(table, (UPDATE, None, {"id": 1}), first=1, odd=odd), start=1)
    assert "only a change of a JSON document" in caught.value.reasons[1]


# Names


def test_columns_may_have_any_name(there: Destination) -> None:
    names = ["select", "a.b", "sp ace", "Upper", "ü", "x" * 63, "a'b", "--", "a;b", "${x}", "%s", "$1", "{}"]
    table = structure("t", ID, *(column(name, "text", pa.string()) for name in names))
    values = dict.fromkeys(names, "a")
    there.write(changes(table, (INSERT, None, {"id": 1, **values}), (INSERT, None, {"id": 2, **values})))
    updates = ((UPDATE, None, {"id": 1, **dict.fromkeys(names, "b")}), (UPDATE, None, {"id": 2, "Upper": "b"}))
    kept = [name for name in names if name != "Upper"]
    there.write(changes(table, *updates, first=2, unchanged={1: kept}), start=2)
    quote = '"' if isinstance(there.sink(), PostgresSink) else "`"
    for name in names:
        assert there.rows(f"id, {quote}{name}{quote} AS v") == [(1, "b"), (2, "b" if name == "Upper" else "a")], name
