"""What an ADD COLUMN or a RENAME COLUMN at the source did to rows that never change again is done at the target, too.

A real database is captured into a log, and the log delivered to each sink that keeps tables: a row that was untouched
by the change of structure is the same on both sides in the end, or the sink says which rows are not.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.sinks.test_state_sinks import Destination, clickhouse_server, postgres_destination, starrocks_server, there
from tests.sources import mysupport, support
from tests.support.capturing import capturing, eventually
from tests.support.changes import delivery
from tests.support.origin import session
from tidemill.contracts import Notice, Source
from tidemill.errors import Refused
from tidemill.lab.servers.mysql_family import Server
from tidemill.lab.servers.postgres import Postgres
from tidemill.log import LogReader
from tidemill.model.block import Block
from tidemill.model.delivery import Receipt
from tidemill.model.table import Table
from tidemill.sinks._shared.unfollowed import Looks
from tidemill.sinks.clickhouse import ClickHouseSink
from tidemill.sinks.postgres import PostgresSink
from tidemill.sinks.starrocks import StarRocksSink
from tidemill.sources.mysql import MysqlSource
from tidemill.sources.postgres import PostgresSource

__all__ = ["clickhouse_server", "starrocks_server", "there"]  # fixtures

_names = itertools.count(1)
Rows = list[tuple[Any, ...]]


class Origin:
    """A source database. Each `do` is captured by a capture of its own, as after a restart, and ends in a row of the
    table `t` that tells where it ends."""

    def __init__(
        self, source: Callable[[], Source], run: Callable[[str], object], rows: Callable[[str], Rows], path: Path
    ) -> None:
        self._source, self._run, self.rows, self._path = source, run, rows, path
        self._delivered = 0

    def run(self, *statements: str) -> None:
        for statement in statements:
            self._run(statement)

    def begin(self) -> None:
        """A binlog is captured from wherever it is when the capture connects."""
        with capturing(self._source(), self._path) as running:
            eventually(lambda: running.log.tail().position, running)

    def do(self, *statements: str, mark: str = ") VALUES ({})") -> None:
        with capturing(self._source(), self._path) as running:
            before = running.events
            self.run(*statements)
            number = 1000 + next(_names)
            self._run(f"INSERT INTO t (id{', ' if mark[0] != ')' else ''}{mark.format(number)}")
            eventually(lambda: running.events > before and _id_of(running.rows(last=1)[0]) == number, running)

    @contextmanager
    def connected(self) -> Iterator[Callable[[int], object]]:
        """One capture for all that is run meanwhile; gives a function that waits for a row with this id."""
        with capturing(self._source(), self._path) as running:
            yield lambda row: eventually(lambda: running.events and _id_of(running.rows(last=1)[0]) == row, running)

    def blocks(self) -> list[Block]:
        """What was captured since the last time."""
        log = LogReader(str(self._path / "log"))
        start, self._delivered = self._delivered, log.tail().offset
        return [log.read(ref) for ref in log.refs(start, self._delivered)]


def _id_of(row: dict[str, Any]) -> int:
    return int((row["after"] or {}).get("id", 0))


@pytest.fixture
def postgres_origin(postgres18: Postgres, tmp_path: Path) -> Iterator[Origin]:
    name = f"following_{next(_names)}"
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


def write(there: Destination, *blocks: Block, **options: Any) -> list[Receipt]:
    """Each structure in a batch of its own, as the barrier does it; every batch by a new worker, and once more."""
    receipts = []
    for block in blocks:
        start = int(block.offsets()[0])
        receipts.append(there.sink(**options).write(delivery(block, start=start)))
        there.sink(**options).write(delivery(block, start=start))
    return receipts


def said(receipts: list[Receipt]) -> dict[str, list[str]]:
    """Of each table: what the last worker that looked at it says."""
    found: dict[str, list[str]] = {}
    for receipt in receipts:
        if receipt.notices:
            found |= {table: [n["what"] for n in each] for table, each in orjson.loads(receipt.notices).items()}
    return found


def same(origin: Origin, there: Destination, columns: str) -> bool:
    def texts(rows: Rows) -> list[list[str]]:
        return sorted([str(value) for value in row] for row in rows)

    assert texts(there.rows(columns)) == texts(origin.rows(columns))
    return True


def test_rows_that_never_change_again_get_the_default_of_a_new_column(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN level int NOT NULL DEFAULT 5, ADD COLUMN word text DEFAULT 'it''s \\ \"it\"', "
        "ADD COLUMN price numeric(10,2) DEFAULT 1.25, ADD COLUMN hollow text",
        "ALTER TABLE t ALTER COLUMN level SET DEFAULT 6, ALTER COLUMN hollow SET DEFAULT 'later'",
        "UPDATE t SET note = 'changed' WHERE id = 2",
    )
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, note, level, word, price, hollow")
    assert not any(said(receipts).values())


def test_a_value_of_any_type_is_the_one_that_the_source_has(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN d date DEFAULT '2024-02-29',"
        " ADD COLUMN at timestamp DEFAULT '2024-02-29 12:34:56.789',"
        " ADD COLUMN z timestamptz DEFAULT '2024-02-29 12:34:56+02',"
        " ADD COLUMN big bigint DEFAULT -9007199254740993, ADD COLUMN f double precision DEFAULT 0.1,"
        " ADD COLUMN u uuid DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', ADD COLUMN yes boolean DEFAULT true,"
        " ADD COLUMN wide numeric(38,10) DEFAULT 12345678901234567890.5"
    )
    assert not any(said(write(there, *origin.blocks())).values())
    columns = ["d", "at", "z", "big", "f", "u", "yes", "wide"]
    old, new = (
        {str(r[0]): r[1:] for r in there.rows(f"id, {', '.join(columns)}")}[key] for key in ("1", str(_last(there)))
    )
    assert old == new  # what the stream brought for a row that was inserted afterwards


def _last(there: Destination) -> int:
    return max(int(row[0]) for row in there.rows("id"))


def test_a_value_that_each_row_has_of_its_own_is_said_to_be_missing_until_somebody_mends_it(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t ADD COLUMN dice double precision DEFAULT random()")
    receipts = write(there, *origin.blocks())
    (what,) = said(receipts)["public.t"]
    assert 'column "dice"' in what
    assert "keep NULL" in what
    assert dict(there.rows("id, dice"))[1] is None
    # A worker that starts later says it again, also with the next structure, until the comment is gone.
    origin.do("ALTER TABLE t ADD COLUMN more int")
    receipts = write(there, *origin.blocks())
    assert len(said(receipts)["public.t"]) == 1
    fix = orjson.loads(receipts[-1].notices)["public.t"][0]["fix"]
    there.run(fix.partition("run ")[2].partition(" at the destination")[0])
    origin.do("INSERT INTO t VALUES (3)")
    assert said(write(there, *origin.blocks())) == {"public.t": []}


def test_an_empty_target_has_no_rows_to_be_missed(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("DELETE FROM t")
    write(there, *origin.blocks())
    origin.do("DELETE FROM t", "ALTER TABLE t ADD COLUMN dice double precision DEFAULT random()")
    notices = said(write(there, *origin.blocks()))["public.t"]
    if isinstance(there.sink(), ClickHouseSink):  # keeps deleted rows until they are merged: the table is not empty
        (what,) = notices
        assert 'column "dice"' in what
    else:
        assert notices == []


def test_a_renamed_column_keeps_the_values_of_rows_that_never_change_again(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t RENAME COLUMN name TO label", "UPDATE t SET note = 'changed' WHERE id = 2")
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, label, note")
    origin.do("ALTER TABLE t RENAME COLUMN label TO title", "ALTER TABLE t RENAME COLUMN title TO name")
    receipts += write(there, *origin.blocks())
    assert same(origin, there, "id, name, note")
    assert not any(said(receipts).values())


def test_a_new_column_under_the_name_of_a_renamed_one_is_another_column(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t RENAME COLUMN name TO label", "ALTER TABLE t ADD COLUMN name text DEFAULT 'new'")
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, label, note")
    assert not any(said(receipts).values())


def test_columns_that_exchange_their_names_are_followed_or_named(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO third",
        "ALTER TABLE t RENAME COLUMN note TO name",
        "ALTER TABLE t RENAME COLUMN third TO note",
    )
    receipts = write(there, *origin.blocks())
    if isinstance(there.sink(), PostgresSink):
        assert same(origin, there, "id, name, note")
        assert not any(said(receipts).values())
    else:
        assert any("name" in what and "note" in what for what in said(receipts)["public.t"])


def test_a_column_that_was_dropped_and_added_again_is_not_renamed(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do("ALTER TABLE t DROP COLUMN note, ADD COLUMN remark text")
    write(there, *origin.blocks())
    assert same(origin, there, "id, name, remark")
    origin.do("ALTER TABLE t DROP COLUMN remark, ADD COLUMN remark text DEFAULT 'other'")
    receipts = write(there, *origin.blocks())
    if not isinstance(there.sink(), StarRocksSink):  # which has no place to note what a column is known by
        assert any("dropped" in what for what in said(receipts)["public.t"])


def test_a_change_that_the_catalog_was_ahead_of_is_said_not_to_be_known(
    postgres_origin: Origin, there: Destination
) -> None:
    """Rows of one structure are read when the table has another one already."""
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.run(
        "ALTER TABLE t RENAME COLUMN name TO label",
        "ALTER TABLE t ADD COLUMN extra int DEFAULT 7",
        "INSERT INTO t (id) VALUES (2)",
        "ALTER TABLE t RENAME COLUMN label TO title",
        "INSERT INTO t (id) VALUES (3)",
    )
    origin.do()
    receipts = write(there, *origin.blocks())
    notices = said(receipts)["public.t"]
    assert any('column "label"' in what for what in notices)
    assert dict(there.rows("id, title"))[1] == "a" or any('column "title"' in what for what in notices)


def test_what_is_wrong_is_said_with_every_receipt_and_that_nothing_is_wrong_once() -> None:
    looks, wrong = Looks(), (Notice("rows-left-behind", "public.t", "what", "fix"),)
    looks.record("public.t", wrong)
    looks.record("public.u", ())
    assert orjson.loads(looks.pack()).keys() == {"public.t", "public.u"}
    assert orjson.loads(looks.pack()).keys() == {"public.t"}
    looks.record("public.t", ())
    assert orjson.loads(looks.pack()) == {"public.t": []}
    assert looks.pack() == ""


@pytest.fixture
def mysql_origin(mysql_server: Server, tmp_path: Path) -> Iterator[Origin]:
    name = f"following{next(_names)}"
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
    with postgres18.database(f"following_{next(_names)}") as dsn, session(dsn) as db:
        made = postgres_destination(dsn, db)
        yield made
        made.close()


def test_what_mysql_and_mariadb_do_to_rows_that_never_change_again_is_done(
    mysql_origin: Origin, target: Destination
) -> None:
    origin = mysql_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)")
    write(target, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN level int NOT NULL DEFAULT 5, ADD COLUMN word varchar(20) DEFAULT 'it''s', "
        "ADD COLUMN price decimal(10,2) DEFAULT 1.25, ADD COLUMN hollow text, ADD COLUMN zero int NOT NULL, "
        "ADD COLUMN blank varchar(10) NOT NULL, ADD COLUMN at datetime(3) DEFAULT '2024-02-29 12:34:56.789', "
        "ADD COLUMN mood enum('good', 'bad') NOT NULL",
        "ALTER TABLE t ALTER COLUMN level SET DEFAULT 6",
        "UPDATE t SET note = 'changed' WHERE id = 2",
        "INSERT INTO t (id, zero, blank, mood) VALUES (3, 1, 'x', 'bad')",
        mark="zero, blank, mood) VALUES ({}, 0, '', 'good')",
    )
    receipts = write(target, *origin.blocks())
    assert same(origin, target, "id, name, note, level, word, price, hollow, zero, blank, at, mood")
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO note, RENAME COLUMN note TO name",
        "ALTER TABLE t RENAME COLUMN word TO words, ADD COLUMN word varchar(20) DEFAULT 'new'",
        mark="zero, blank, mood) VALUES ({}, 0, '', 'good')",
    )
    receipts += write(target, *origin.blocks())
    assert same(origin, target, "id, name, note, level, word, words, price, zero, blank, mood")
    assert not any(said(receipts).values())


def test_a_default_that_mysql_or_mariadb_computes_is_said_to_be_missing(
    mysql_origin: Origin, target: Destination
) -> None:
    origin = mysql_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(target, *origin.blocks())
    origin.do(
        "ALTER TABLE t ADD COLUMN token char(36) DEFAULT (concat(id, 'x')), "
        "ADD COLUMN at timestamp DEFAULT CURRENT_TIMESTAMP"
    )
    notices = next(iter(said(write(target, *origin.blocks())).values()))
    assert ["token" in what or '"at"' in what for what in notices] == [True, True]


def test_several_lanes_may_meet_the_new_structure_at_once(postgres_origin: Origin, there: Destination) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t SELECT i, 'a' || i, 'n' FROM generate_series(1, 40) i")
    write(there, *origin.blocks())
    origin.do(
        "ALTER TABLE t RENAME COLUMN name TO label",
        "ALTER TABLE t ADD COLUMN name text DEFAULT 'new', ADD COLUMN level int DEFAULT 5",
        "UPDATE t SET note = 'changed' WHERE id % 2 = 0",
    )
    blocks = [block for block in origin.blocks() if block.rows]
    start, end = int(blocks[0].offsets()[0]), int(blocks[-1].offsets()[-1]) + 1
    lanes = 4

    def deliver(lane: int) -> Receipt:
        shares = []
        for block in blocks:
            ids = block.batch.column("after").field("id").to_pylist()
            if mine := [row for row, number in enumerate(ids) if number % lanes == lane]:
                shares.append(block.take(mine))
        sink = there.sink()
        return sink.write(delivery(*shares, start=start, end=end, lane=lane, lanes=lanes))

    with ThreadPoolExecutor(lanes) as workers:
        receipts = list(workers.map(deliver, range(lanes)))
    assert same(origin, there, "id, label, note, name, level")
    assert not any(said(receipts).values())


def test_a_name_that_comes_back_within_one_connection_is_followed_or_named(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do(
        "INSERT INTO t VALUES (1, 'a', 'n')",
        "ALTER TABLE t RENAME COLUMN name TO label",
        "INSERT INTO t VALUES (2, 'b', 'n')",
        "ALTER TABLE t RENAME COLUMN label TO name",
        "INSERT INTO t VALUES (3, 'c', 'n')",
    )
    receipts = write(there, *origin.blocks())
    notices = [what for each in said(receipts).values() for what in each]
    same_names = there.rows("id, name") == origin.rows("id, name")
    assert same_names or any('column "name"' in what or 'column "label"' in what for what in notices)


def test_a_column_that_comes_again_within_one_connection_is_named(postgres_origin: Origin, there: Destination) -> None:
    """To the stream it looks the same: names and types are those of before."""
    origin = postgres_origin
    with origin.connected() as wait_for:
        origin.run("INSERT INTO t VALUES (1, 'a', 'n')")
        wait_for(1)
        origin.run("ALTER TABLE t DROP COLUMN note, ADD COLUMN note text", "INSERT INTO t VALUES (2, 'b', 'other')")
        wait_for(2)
    receipts = write(there, *origin.blocks())
    if not isinstance(there.sink(), StarRocksSink):  # which has no place to note what a column is known by
        assert any("dropped" in what for what in said(receipts)["public.t"])


def _add_first(there: Destination, column: str) -> str:
    """What somebody who migrates the target before the source runs there."""
    kind = {"level": "int", "label": "text"}[column]
    if isinstance(sink := there.sink(), ClickHouseSink):
        kind = {"int": "Nullable(Int32)", "text": "Nullable(String)"}[kind]
        return f"ALTER TABLE {sink.config.database}.t ADD COLUMN {column} {kind}"
    return f"ALTER TABLE t ADD COLUMN {column} {kind}"


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_the_target_had_before_the_source_added_it_is_named(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    there.run(_add_first(there, "level"))
    origin.do("ALTER TABLE t ADD COLUMN level int DEFAULT 5")
    receipts = write(there, *origin.blocks())
    assert dict(there.rows("id, level"))[1] is None
    (what,) = said(receipts)["public.t"]
    assert 'column "level"' in what
    origin.do("INSERT INTO t VALUES (3)")
    assert len(said(write(there, *origin.blocks()))["public.t"]) == 1
    origin.do("ALTER TABLE t ADD COLUMN more int")  # the next structure says nothing new of it
    receipts = write(there, *origin.blocks())
    fix = orjson.loads(receipts[-1].notices)["public.t"][0]["fix"]
    there.run(fix.partition("run ")[2].partition(" at the destination")[0])
    origin.do("ALTER TABLE t ADD COLUMN still_more int")
    assert said(write(there, *origin.blocks())) == {"public.t": []}


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_the_target_had_with_the_right_values_is_none_to_speak_of(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    there.run(f"{_add_first(there, 'level')} DEFAULT 5")
    origin.do("ALTER TABLE t ADD COLUMN level int DEFAULT 5")
    receipts = write(there, *origin.blocks())
    assert same(origin, there, "id, name, level")
    assert not any(said(receipts).values())


@pytest.mark.parametrize("there", ["clickhouse", "postgres"], indirect=True)
def test_a_column_that_is_renamed_to_one_that_the_target_had_is_named(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    there.run(_add_first(there, "label"))
    origin.do("ALTER TABLE t RENAME COLUMN name TO label")
    receipts = write(there, *origin.blocks())
    assert dict(there.rows("id, label"))[1] is None
    assert dict(there.rows("id, name"))[1] == "a"
    (what,) = said(receipts)["public.t"]
    assert 'column "label"' in what
    assert '"name"' in what
    origin.do("ALTER TABLE t ADD COLUMN more int")
    assert len(said(write(there, *origin.blocks()))["public.t"]) == 1
    assert dict(there.rows("id, name"))[1] == "a"


def test_a_column_of_a_table_that_is_not_the_sinks_own_is_named_all_the_same(
    postgres_origin: Origin, target: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(target, *origin.blocks(), create_tables=True)
    target.run("ALTER TABLE t ADD COLUMN level int")
    origin.do("ALTER TABLE t ADD COLUMN level int DEFAULT 5")
    (what,) = said(write(target, *origin.blocks(), create_tables=False))["public.t"]
    assert 'column "level"' in what


CHANGES = {  # statements, and the columns afterwards
    "added": (["ALTER TABLE t ADD COLUMN level int DEFAULT 5"], "id, name, note, level"),
    "renamed": (["ALTER TABLE t RENAME COLUMN name TO label"], "id, label, note"),
    "name reused": (
        ["ALTER TABLE t RENAME COLUMN name TO label", "ALTER TABLE t ADD COLUMN name text DEFAULT 'n'"],
        "id, label, note, name",
    ),
    "names exchanged": (
        [
            "ALTER TABLE t RENAME COLUMN name TO third",
            "ALTER TABLE t RENAME COLUMN note TO name",
            "ALTER TABLE t RENAME COLUMN third TO note",
        ],
        "id, name, note",
    ),
    "dropped and added": (
        ["ALTER TABLE t DROP COLUMN name", "ALTER TABLE t ADD COLUMN name text DEFAULT 'n'"], "id, name, note",
    ),
    "key retyped": (
        ["ALTER TABLE t ALTER COLUMN id TYPE bigint", "ALTER TABLE t ADD COLUMN level int DEFAULT 5"],
        "id, name, note, level",
    ),
}  # fmt: skip


def _send_again(there: Destination, dead_letter: list[Block], newest: Table | None = None) -> None:
    for block in dead_letter:
        again = delivery(block, start=int(block.offsets()[0]))
        there.sink().write(dataclasses.replace(again, redelivered=True, newest=newest))


@pytest.mark.parametrize("change", CHANGES)
def test_a_dead_letter_of_an_older_structure_has_its_values_where_its_columns_are_now(
    postgres_origin: Origin, target: Destination, change: str
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(target, *origin.blocks())
    origin.do("INSERT INTO t VALUES (2, 'letter', 'x')")
    dead_letter = origin.blocks()
    statements, columns = CHANGES[change]
    origin.do(*statements)
    write(target, *origin.blocks())
    structure = _structure(target)
    _send_again(target, dead_letter)
    assert _structure(target) == structure
    (here,), (there,) = ([row for row in rows if row[0] == 2] for rows in (origin.rows(columns), target.rows(columns)))
    assert there == here


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("emptied", [False, True], ids=["over what is there", "into an emptied table"])
def test_a_rewind_over_a_change_of_structure_ends_with_the_rows_of_the_source(
    postgres_origin: Origin, target: Destination, change: str, emptied: bool
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n'), (2, 'b', NULL)", "UPDATE t SET note = 'm' WHERE id = 2")
    first = origin.blocks()
    write(target, *first)
    statements, columns = CHANGES[change]
    origin.do(*statements, "DELETE FROM t WHERE id = 2")
    second = origin.blocks()
    write(target, *second)
    structure = _structure(target)
    if emptied:
        target.run("DELETE FROM t")
    elif change == "dropped and added":
        target.run("UPDATE t SET name = 'n'")  # as the notice asks for
    write(target, *first, *second, rewind="apply")
    assert _structure(target) == structure
    assert same(origin, target, columns)


def _structure(target: Destination) -> list[tuple[Any, ...]]:
    return target.rows("attnum AS id, attname::text", table="pg_attribute WHERE attrelid = 't'::regclass")


@pytest.mark.parametrize("there", ["clickhouse"], indirect=True)
@pytest.mark.parametrize("change", ["name reused", "names exchanged", "dropped and added"])
def test_a_dead_letter_whose_names_are_other_columns_now_is_refused(
    postgres_origin: Origin, there: Destination, change: str
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do("INSERT INTO t VALUES (2, 'letter', 'x')")
    dead_letter = origin.blocks()
    origin.do(*CHANGES[change][0])
    write(there, *origin.blocks())
    before = there.rows("id, name, note")
    with pytest.raises(Refused, match="name"):
        _send_again(there, dead_letter)
    assert there.rows("id, name, note") == before


@pytest.mark.parametrize("there", ["starrocks"], indirect=True)
@pytest.mark.parametrize("change", [name for name in CHANGES if name != "key retyped"])
def test_a_dead_letter_of_an_older_structure_is_refused_where_the_target_cannot_tell(
    postgres_origin: Origin, there: Destination, change: str
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do("INSERT INTO t VALUES (2, 'letter', 'x')")
    dead_letter = origin.blocks()
    statements, columns = CHANGES[change]
    origin.do(*statements)
    since = origin.blocks()
    write(there, *since)
    before = there.rows(columns)
    with pytest.raises(Refused, match="older structure"):
        _send_again(there, dead_letter, since[-1].table)
    assert there.rows(columns) == before


def test_a_dead_letter_from_before_a_column_was_dropped_or_got_no_value_is_taken(
    postgres_origin: Origin, there: Destination
) -> None:
    origin = postgres_origin
    origin.do("INSERT INTO t VALUES (1, 'a', 'n')")
    write(there, *origin.blocks())
    origin.do("INSERT INTO t VALUES (2, 'letter', 'x')")
    dead_letter = origin.blocks()
    origin.do("ALTER TABLE t DROP COLUMN note, ADD COLUMN more int")
    since = origin.blocks()
    write(there, *since)
    _send_again(there, dead_letter, since[-1].table)
    assert same(origin, there, "id, name, more")
