"""MySQL and MariaDB through the capture loop into the log, until the rows in the log are those in the database."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pymysql
import pytest

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import account, config, purge
from tests.support.capturing import Running, capturing, eventually
from tidemill.errors import ConnectionLost, PositionLost
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Op
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.mysql import MysqlConfig, MysqlSource, errors

TABLE = "CREATE TABLE {} (id int PRIMARY KEY, v varchar(100), n decimal(10,2), at datetime(3))"
_names = itertools.count(1)
Kind = str


@pytest.fixture(scope="module", params=KINDS)
def private(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param) as server:
        yield server


@pytest.fixture
def shop(private: Server) -> Iterator[str]:
    """A database of the test's own."""
    name = f"shop{next(_names)}"
    with private.database(name):
        private.query(TABLE.format("t"), database=name)
        yield name


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
    marker = 1_000_000 + next(_names)
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


def load(server: Server, table: str, stop: threading.Event, seed: int, limit: int = 100_000) -> None:
    """Small random transactions until told to stop."""
    dice = random.Random(seed)
    with server.connect(autocommit=False) as connection, connection.cursor() as cursor:
        for _ in range(limit):
            if stop.is_set():
                break
            for _ in range(dice.randint(1, 5)):
                number = dice.randint(1, 300)
                match dice.choice("iud"):
                    case "i":
                        cursor.execute(
                            f"INSERT IGNORE INTO {table} VALUES (%s, %s, 1.5, NOW(3))",
                            (number, "x" * dice.randint(0, 90)),
                        )
                    case "u":
                        cursor.execute(f"UPDATE {table} SET n = n + %s WHERE id = %s", (dice.randint(1, 9), number))
                    case _:
                        cursor.execute(f"DELETE FROM {table} WHERE id = %s", (number,))
            connection.rollback() if dice.random() < 0.1 else connection.commit()


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_rows_in_the_log_are_those_in_the_database(private: Server, shop: str, positions: str, tmp_path: Path) -> None:
    table = f"{shop}.t"
    with captured(settings(private, shop, positions=positions), tmp_path) as running:
        private.execute(
            "INSERT INTO t VALUES (1, 'one', 1.10, '2026-01-02 03:04:05.678'), (2, NULL, -2, NULL)",
            "UPDATE t SET v = 'zwei ü' WHERE id = 2",
            "UPDATE t SET id = 3 WHERE id = 1",
            "DELETE FROM t WHERE id = 2",
            "INSERT INTO t (id) VALUES (9)",
            "TRUNCATE t",
            "INSERT INTO t (id, v) VALUES (4, 'four')",
            database=shop,
        )
        same(running, private, table)
        ops = [Op(event["op"]) for event in running.rows()]
        assert Op.TRUNCATE in ops
        offsets = [event["offset"] for event in running.rows()]
        assert offsets == list(range(len(offsets)))
        positions_of_events = {event["position"] for event in running.rows()}
        assert len(positions_of_events) >= 7


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_rotation_restarts_and_a_killed_server_lose_nothing(
    private: Server, shop: str, positions: str, tmp_path: Path
) -> None:
    """Under load: new binlog files, an orderly restart, a crash, and capture itself started anew."""
    table = f"{shop}.t"
    for turn in range(3):
        with captured(settings(private, shop, positions=positions), tmp_path) as running:
            stop = threading.Event()
            thread = threading.Thread(target=_until_cut, args=(private, table, stop, turn))
            thread.start()
            try:
                for _ in range(5):
                    time.sleep(0.1)
                    private.query("FLUSH BINARY LOGS")
                if turn == 0:
                    private.restart()
                elif turn == 1:
                    private.kill()
                    private.start()
            finally:
                stop.set()
                thread.join()
            same(running, private, table)
            assert not running.failure
            if turn < 2:
                assert any(isinstance(trouble, ConnectionLost) for trouble in running.last_error)


def _until_cut(server: Server, table: str, stop: threading.Event, seed: int) -> None:
    """A client whose server goes away."""
    import pymysql

    while not stop.is_set():
        try:
            load(server, table, stop, seed)
        except (pymysql.MySQLError, OSError):
            time.sleep(0.05)


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_a_purge_while_capture_is_down_stops_it_with_the_way_out(
    private: Server, shop: str, positions: str, tmp_path: Path
) -> None:
    with captured(settings(private, shop, positions=positions), tmp_path) as running:
        private.query(f"INSERT INTO {shop}.t (id) VALUES (1)")
        eventually(lambda: running.events == 1, running)
    private.query(f"INSERT INTO {shop}.t (id) VALUES (2)")
    purge(private)
    with captured(settings(private, shop, positions=positions), tmp_path) as running:
        failure = eventually(lambda: running.failure)[0]
    assert isinstance(failure, PositionLost)
    assert isinstance(failure, errors.BinlogPurged)
    assert "tidemill recover" in failure.fix


def test_a_purge_while_the_connection_is_down_stops_a_running_loop(tmp_path: Path) -> None:
    """The loop knows only that the server is away; when it is back, what comes next is gone."""
    with private_server("mariadb") as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY)")
        with captured(settings(server, "shop"), tmp_path) as running:
            server.query("INSERT INTO shop.t (id) VALUES (1)")
            eventually(lambda: running.events == 1, running)
            port = server.port
            server.stop()
            eventually(lambda: running.last_error)
            server.port = 0  # where the loop does not find it
            server.start()
            server.query("INSERT INTO shop.t (id) VALUES (2)")
            purge(server)
            server.stop()
            server.port = port
            server.start()
            failure = eventually(lambda: running.failure)[0]
    assert isinstance(failure, errors.BinlogPurged)
    assert "tidemill recover" in failure.fix


def test_a_quiet_table_among_busy_ones_does_not_hold_its_old_position(
    private: Server, shop: str, tmp_path: Path
) -> None:
    with private.database(f"{shop}_other") as _:
        private.query(TABLE.format("t"), database=f"{shop}_other")
        with captured(settings(private, shop), tmp_path) as running:
            private.query(f"INSERT INTO {shop}.t (id) VALUES (1)")
            eventually(lambda: running.events == 1, running)
            private.query(f"INSERT INTO {shop}_other.t (id) VALUES (1)")
            time.sleep(0.5)
            assert not running.confirmed, "told of what was not delivered"
            running.deliver()
            eventually(lambda: running.confirmed, running)
            private.query(f"INSERT INTO {shop}_other.t (id) VALUES (2)")
            before = len(running.confirmed)
            eventually(lambda: len(running.confirmed) > before, running)
        purge(private)
        with captured(settings(private, shop), tmp_path) as running:
            private.query(f"INSERT INTO {shop}.t (id) VALUES (2)")
            eventually(lambda: running.events == 2, running)


def test_a_large_transaction_becomes_visible_at_once(private: Server, shop: str, tmp_path: Path) -> None:
    private.execute(*_numbers(), database=shop)
    with captured(settings(private, shop), tmp_path) as running:
        private.execute(
            "INSERT INTO t SELECT a.n * 1000 + b.n * 100 + c.n + 2000000, REPEAT('y', 90), 1, NOW(3)"
            " FROM (SELECT n FROM numbers WHERE n < 180) a, numbers b, numbers c WHERE b.n < 10 AND c.n < 100",
            database=shop,
        )
        assert eventually(lambda: running.events, running) == 180_000


def _numbers() -> list[str]:
    values = ",".join(f"({n})" for n in range(1000))
    return ["CREATE TABLE numbers (n int PRIMARY KEY)", f"INSERT INTO numbers VALUES {values}"]


def test_a_second_pipeline_with_the_same_server_id_is_refused_and_the_first_goes_on(
    private: Server, shop: str, tmp_path: Path
) -> None:
    one = settings(private, shop, id="twin")
    with captured(one, tmp_path / "a") as first:
        private.query(f"INSERT INTO {shop}.t (id) VALUES (1)")
        eventually(lambda: first.events == 1, first)
        with capturing(MysqlSource(one), tmp_path / "b") as second:
            eventually(lambda: second.failure)
        assert isinstance(second.failure[0], errors.ServerIdTaken)
        assert "tidemill:twin:" in second.failure[0].what
        private.query(f"INSERT INTO {shop}.t (id) VALUES (2)")
        eventually(lambda: first.events == 2, first)
        assert not first.failure
        assert not first.last_error


def test_a_stream_that_this_pipeline_left_behind_is_taken_over(private: Server, shop: str, tmp_path: Path) -> None:
    """What a killed process leaves at the server: a connection that nobody reads."""
    one = settings(private, shop)
    schemas = SchemaRegistry(tmp_path / "registry.sqlite")
    left = MysqlSource(one)
    left.open(None, schemas)
    try:
        with captured(one, tmp_path) as running:
            private.query(f"INSERT INTO {shop}.t (id) VALUES (1)")
            eventually(lambda: seen(running, f"{shop}.t", 1), running)
            assert not running.last_error
    finally:
        left.close()
        schemas.close()


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_old_rows_are_read_with_the_structure_they_had(
    private: Server, shop: str, metadata: str, tmp_path: Path
) -> None:
    """Capture is down while the table changes, and was started with an older binlog position."""
    private.query(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        with captured(settings(private, shop), tmp_path) as running:
            private.query("INSERT INTO t (id, v) VALUES (1, 'a')", database=shop)
            eventually(lambda: running.events == 1, running)
        private.execute(
            "INSERT INTO t (id, v) VALUES (2, 'b')",
            "ALTER TABLE t ADD COLUMN w int FIRST, DROP COLUMN at, CHANGE v text1 varchar(100)",
            "INSERT INTO t (id, text1, w) VALUES (3, 'c', 7)",
            database=shop,
        )
        with captured(settings(private, shop), tmp_path) as running:
            eventually(lambda: seen(running, f"{shop}.t", 3), running)
            rows = {e["after"]["id"]: e["after"] for e in running.rows() if e["after"]}
        assert list(rows[2]) == ["id", "v", "n", "at"]
        assert rows[2]["v"] == "b"
        assert list(rows[3]) == ["w", "id", "text1", "n"]
        assert (rows[3]["w"], rows[3]["text1"]) == (7, "c")
        assert Op.DDL in {Op(e["op"]) for e in running.rows()}
    finally:
        private.query("SET GLOBAL binlog_row_metadata = 'FULL'")


def test_only_statements_for_captured_tables_stop_a_capture_of_rows(private: Server, shop: str, tmp_path: Path) -> None:
    private.execute("CREATE TABLE mysql.rds_heartbeat2 (id int PRIMARY KEY, value bigint)",
                    f"CREATE DATABASE {shop}_tools", f"CREATE TABLE {shop}_tools.sums (id int)")  # fmt: skip
    try:
        with captured(settings(private, shop), tmp_path) as running, private.connect(shop) as db, db.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("INSERT INTO mysql.rds_heartbeat2(id, value) values (1,17) ON DUPLICATE KEY UPDATE value=17")
            cursor.execute(f"INSERT INTO {shop}_tools.sums SELECT COUNT(*) FROM t")
            private.query("INSERT INTO t (id) VALUES (1)", database=shop)
            eventually(lambda: seen(running, f"{shop}.t", 1), running)
            cursor.execute("INSERT INTO t (id) VALUES (2)")
            with pytest.raises(errors.BinlogUnusable, match="INSERT"):
                eventually(lambda: seen(running, f"{shop}.t", 2), running)
            running.failure.clear()
    finally:
        private.execute("DROP TABLE mysql.rds_heartbeat2", f"DROP DATABASE {shop}_tools")


def test_tables_of_the_server_are_captured_only_if_they_are_named(private: Server, shop: str, tmp_path: Path) -> None:
    options = {"heartbeat_seconds": 0.5, "feedback_seconds": 0.1}
    private.query("CREATE TABLE mysql.mine (id int PRIMARY KEY)")
    try:
        with captured(config(private.dsn(), "*.*", **options), tmp_path / "a") as every:
            with captured(config(private.dsn(), "mysql.mine", **options), tmp_path / "b") as named:
                private.query("INSERT INTO mysql.mine VALUES (1)")
                eventually(lambda: seen(named, "mysql.mine", 1), named)
            private.query("INSERT INTO t (id) VALUES (1)", database=shop)
            eventually(lambda: seen(every, f"{shop}.t", 1), every)
            assert not [event for event in every.rows() if event["table"].startswith("mysql.")]
    finally:
        private.query("DROP TABLE mysql.mine")


def test_a_row_of_a_table_that_the_account_may_not_see_names_the_grant(
    private: Server, shop: str, tmp_path: Path
) -> None:
    private.query("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    private.query("CREATE TABLE hidden (id int PRIMARY KEY)", database=shop)
    grants = ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*", f"SELECT ON {shop}.t")
    try:
        with (
            account(private, *grants) as (user, dsn),
            captured(config(dsn, f"{shop}.*", heartbeat_seconds=0.5), tmp_path) as running,
        ):
            private.query("INSERT INTO hidden VALUES (1)", database=shop)
            failure = eventually(lambda: running.failure)[0]
            running.failure.clear()
        assert f"the structure of {shop}.hidden is not known" in failure.what
        assert f"GRANT SELECT ON `{shop}`.`hidden` TO '{user}'@'%'" in failure.fix
    finally:
        private.query("SET GLOBAL binlog_row_metadata = 'FULL'")


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_a_table_with_system_versioning_is_captured_with_its_versions(metadata: str, tmp_path: Path) -> None:
    with private_server("mariadb", binlog_row_metadata=metadata) as server, server.database("shop"):
        server.query("CREATE TABLE listed (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING", database="shop")
        with captured(settings(server, "shop"), tmp_path) as running:
            server.execute("INSERT INTO listed VALUES (1, 1)", "UPDATE listed SET v = 2",
                           "CREATE TABLE made (id int PRIMARY KEY, v int)", "ALTER TABLE made ADD SYSTEM VERSIONING",
                           "INSERT INTO made VALUES (1, 1)", "DELETE FROM made", "INSERT INTO made VALUES (9, 1)",
                           database="shop")  # fmt: skip
            eventually(lambda: seen(running, "shop.made", 9), running)
            found = running.rows()
    rows = [event["after"] for event in found if event["after"] and event["table"] == "shop.listed"]
    assert [(row["id"], row["v"]) for row in rows] == [(1, 1), (1, 2), (1, 1)]
    assert all(list(row) == ["id", "v", "row_start", "row_end"] for row in rows)
    assert rows[2]["row_end"] == rows[1]["row_start"], "the old version ends where the new one begins"
    [_, altered] = [orjson.loads(e["ddl"]) for e in found if e["table"] == "shop.made" and Op(e["op"]) is Op.DDL]
    assert [(c["change"], c.get("column") or c["to"]) for c in altered["changes"]] == [
        ("add", "row_start"), ("add", "row_end"), ("key", ["id", "row_end"])
    ]  # fmt: skip


@pytest.mark.parametrize("restart", [False, True])
def test_a_temporary_table_that_hides_a_captured_one_is_not_captured(
    private: Server, shop: str, restart: bool, tmp_path: Path
) -> None:
    options = settings(private, shop)
    with private.connect(shop) as db, db.cursor() as cursor:
        with captured(options, tmp_path) as running:
            private.query("INSERT INTO t (id) VALUES (1)", database=shop)
            cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
            cursor.execute("CREATE TEMPORARY TABLE t (x int)")
            if not restart:
                _on_temporary(cursor)
            private.query("INSERT INTO t (id) VALUES (2)", database=shop)
            eventually(lambda: seen(running, f"{shop}.t", 2), running)
        with captured(options, tmp_path) as running:
            if restart:
                _on_temporary(cursor)
            cursor.execute("DROP TABLE t")
            cursor.execute("ALTER TABLE t ADD COLUMN w int")
            private.query("INSERT INTO t (id) VALUES (3)", database=shop)
            eventually(lambda: seen(running, f"{shop}.t", 3), running)
            found = [Op(event["op"]) for event in running.rows()]
    assert found == [Op.INSERT, Op.INSERT, Op.DDL, Op.INSERT]


def _on_temporary(cursor: pymysql.cursors.Cursor) -> None:
    for statement in ("ALTER TABLE t ADD COLUMN y int", "INSERT INTO t VALUES (1, 2)", "TRUNCATE TABLE t"):
        cursor.execute(statement)


def test_a_table_that_is_dropped_or_not_there_yet_is_said_and_stops_nothing(
    private: Server, shop: str, tmp_path: Path
) -> None:
    options = config(private.dsn(), f"{shop}.t", f"{shop}.later%", heartbeat_seconds=0.5, feedback_seconds=0.1)

    def said(source: MysqlSource) -> list[tuple[str, str]]:
        return [(notice.code, notice.subject) for notice in source.notices()]

    source = MysqlSource(options)
    with capturing(source, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        assert said(source) == [("pattern-unmatched", f"{shop}.later%")]
        private.execute("CREATE TABLE later1 (id int PRIMARY KEY)", "INSERT INTO later1 VALUES (1)", "DROP TABLE t",
                        database=shop)  # fmt: skip
        eventually(lambda: said(source) == [("pattern-unmatched", f"{shop}.t")], running)
        eventually(lambda: seen(running, f"{shop}.later1", 1), running)
    again = MysqlSource(options)
    with capturing(again, tmp_path) as running:
        eventually(again.notices, running)
        [notice] = again.notices()
        assert notice.what == f'no table matches "{shop}.t" yet'
        private.query(TABLE.format("t"), database=shop)
        private.query("INSERT INTO t (id) VALUES (7)", database=shop)
        eventually(lambda: seen(running, f"{shop}.t", 7), running)
        assert not said(again)


@pytest.mark.parametrize("metadata", ["FULL", "least"])
def test_what_a_procedure_does_behind_a_drop_counts(private: Server, shop: str, metadata: str, tmp_path: Path) -> None:
    """Its statements have the flag of temporary tables then, and there are none."""
    before = private.query("SELECT @@GLOBAL.binlog_row_metadata")[0][0]
    least = "NO_LOG" if private.name == "MariaDB" else "MINIMAL"
    private.query(f"SET GLOBAL binlog_row_metadata = '{least if metadata == 'least' else metadata}'")
    try:
        private.query("CREATE PROCEDURE p() BEGIN DROP TABLE IF EXISTS nosuch; TRUNCATE TABLE t;"
                      " ALTER TABLE t RENAME COLUMN v TO w; END", database=shop)  # fmt: skip
        with captured(settings(private, shop), tmp_path) as running:
            for statement in (
                "INSERT INTO t (id, v) VALUES (1, 'a')",
                "CALL p()",
                "INSERT INTO t (id, w) VALUES (2, 'b')",
            ):
                private.query(statement, database=shop)
            same(running, private, f"{shop}.t")
            events = running.rows()
    finally:
        private.query(f"SET GLOBAL binlog_row_metadata = '{before}'")
    assert [Op(event["op"]) for event in events[:4]] == [Op.INSERT, Op.TRUNCATE, Op.DDL, Op.INSERT]
    assert events[3]["after"]["w"] == "b"


@pytest.mark.parametrize("kind", KINDS)
def test_a_thread_of_a_server_that_came_back_has_no_temporary_table_of_an_earlier_one(
    kind: str, tmp_path: Path
) -> None:
    with private_server(kind) as server, server.database("shop"):
        server.query(TABLE.format("t"), database="shop")
        server.query("CREATE PROCEDURE p() BEGIN DROP TABLE IF EXISTS nosuch; TRUNCATE TABLE t; END", database="shop")
        with captured(settings(server, "shop"), tmp_path) as running:
            for _ in range(40):  # numbers that a server gives away before the one below
                server.query("SELECT 1")
            with server.connect("shop") as db, db.cursor() as cursor:
                cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
                cursor.execute("CREATE TEMPORARY TABLE t (x int)")
                thread = db.thread_id()
                server.query("INSERT INTO t (id) VALUES (1)", database="shop")
                eventually(lambda: seen(running, "shop.t", 1), running)
                server.kill()
            server.start()
            server.query("INSERT INTO t (id) VALUES (2)", database="shop")
            eventually(lambda: seen(running, "shop.t", 2), running)  # capture has its session and takes no number more
            for _ in range(10_000):  # until a session has the number that the other one had
                with server.connect("shop") as db, db.cursor() as cursor:
                    if db.thread_id() == thread:
                        cursor.execute("CALL p()")
                        break
                    assert db.thread_id() < thread
            same(running, server, "shop.t")
            assert [Op(event["op"]) for event in running.rows()][:3] == [Op.INSERT, Op.INSERT, Op.TRUNCATE]


@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_an_alter_in_two_phases_counts_when_it_is_done(start: str, tmp_path: Path) -> None:
    """MariaDB's binlog_alter_two_phase, with nothing but the schema history to tell the columns."""
    with private_server("mariadb") as server, server.database("shop"):
        server.query("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
        server.query("CREATE TABLE t (id int PRIMARY KEY, v int)", database="shop")

        def work() -> None:
            with server.connect("shop") as db, db.cursor() as cursor:
                cursor.execute("SET SESSION binlog_alter_two_phase = ON")
                cursor.execute("INSERT INTO t VALUES (1, 5), (2, 5)")
                with pytest.raises(pymysql.MySQLError, match="Duplicate"):
                    cursor.execute("ALTER TABLE t ADD COLUMN w int, ADD UNIQUE (v)")
                cursor.execute("INSERT INTO t VALUES (3, 6)")
                cursor.execute("ALTER TABLE t ADD COLUMN w int FIRST")
                cursor.execute("INSERT INTO t VALUES (7, 4, 7)")

        if start == "earliest":
            work()
        with captured(settings(server, "shop", start_position=start), tmp_path) as running:
            if start == "latest":
                work()
            eventually(lambda: seen(running, "shop.t", 4), running)
            found = [e["after"] for e in running.rows() if e["table"] == "shop.t" and e["after"]]
            altered = [e for e in running.rows() if Op(e["op"]) is Op.DDL and "ALTER" in e["ddl"]]
        assert found == [{"id": 1, "v": 5}, {"id": 2, "v": 5}, {"id": 3, "v": 6}, {"w": 7, "id": 4, "v": 7}]
        assert len(altered) == 1


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_a_first_start_in_the_past_knows_the_tables_of_then(
    private: Server, shop: str, metadata: str, positions: str, tmp_path: Path
) -> None:
    private.query(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        purge(private)
        private.execute(
            "CREATE TABLE p (id int PRIMARY KEY, v varchar(100))",
            "INSERT INTO p VALUES (1, 'a')",
            "ALTER TABLE p ADD COLUMN w int FIRST",
            "INSERT INTO p VALUES (5, 2, 'b')",
            database=shop,
        )
        source = MysqlSource(settings(private, shop, positions=positions, start_position="earliest"))
        with capturing(source, tmp_path) as running:
            eventually(lambda: seen(running, f"{shop}.p", 2), running)
            rows = {e["after"]["id"]: e["after"] for e in running.rows() if e["after"]}
        assert rows[1] == {"id": 1, "v": "a"}
        assert rows[2] == {"w": 5, "id": 2, "v": "b"}
    finally:
        private.query("SET GLOBAL binlog_row_metadata = 'FULL'")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "later",
    [
        ["ALTER DATABASE shop CHARACTER SET latin1"],
        ["DROP DATABASE shop", "CREATE DATABASE shop CHARACTER SET latin1", "CREATE TABLE shop.t (id int, v text)"],
    ],
    ids=["altered", "dropped"],
)
def test_a_first_start_in_the_past_does_not_take_the_charset_of_today_for_that_of_then(
    kind: str, later: list[str], tmp_path: Path
) -> None:
    with private_server(kind, binlog_row_metadata="MINIMAL" if kind == "mysql" else "NO_LOG") as server:
        server.query("CREATE DATABASE shop CHARACTER SET utf8mb4")
        purge(server)
        server.execute("CREATE TABLE shop.t (id int PRIMARY KEY, v text)", "INSERT INTO shop.t VALUES (1, 'Привет')",
                       *later)  # fmt: skip
        source = MysqlSource(settings(server, "shop", start_position="earliest"))
        with capturing(source, tmp_path) as running:
            if kind == "mysql":  # whose events name it
                eventually(lambda: seen(running, "shop.t", 1), running)
                assert [e["after"]["v"] for e in running.rows() if e["after"]] == ["Привет"]
            else:
                failure = eventually(lambda: running.failure)[0]
                assert 'the character set of column "v" of shop.t is not known' in str(failure)
                running.failure.clear()


def test_the_lag_is_counted_in_bytes_of_binlog(private: Server, shop: str, tmp_path: Path) -> None:
    source = MysqlSource(settings(private, shop))
    with capturing(source, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        private.query(f"INSERT INTO {shop}.t (id) VALUES (1)")
        eventually(lambda: running.events == 1, running)
        lag = source.lag_bytes()
        assert lag is not None
        assert 0 <= lag < 100_000


def test_tagged_gtids_are_resumed_after(mysql: Server, tmp_path: Path) -> None:
    with mysql.database("tagged"):
        mysql.query("CREATE TABLE t (id int PRIMARY KEY)", database="tagged")
        options = config(mysql.dsn(), "tagged.t")
        with captured(options, tmp_path) as running:
            mysql.execute("SET gtid_next = 'AUTOMATIC:nightly'", "INSERT INTO t VALUES (1)",
                          "SET gtid_next = 'AUTOMATIC'", "INSERT INTO t VALUES (2)", database="tagged")  # fmt: skip
            eventually(lambda: running.events == 2, running)
            assert ":nightly:" in running.log.tail().position
        mysql.execute("SET gtid_next = 'AUTOMATIC:nightly'", "INSERT INTO t VALUES (3)", database="tagged")
        with captured(options, tmp_path) as running:
            eventually(lambda: running.events == 3, running)
            assert [row["after"]["id"] for row in running.rows()] == [1, 2, 3]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_columns_that_an_update_did_not_send_are_unchanged_and_never_null(
    private: Server, shop: str, image: str, tmp_path: Path
) -> None:
    private.query("CREATE TABLE doc (id int PRIMARY KEY, body text, n int)", database=shop)
    private.query(f"SET GLOBAL binlog_row_image = '{image}'")
    try:
        with captured(settings(private, shop), tmp_path) as running:
            changes = ("UPDATE doc SET n = 2", "UPDATE doc SET body = NULL", "DELETE FROM doc")
            private.execute("INSERT INTO doc VALUES (1, 'long', 1)", *changes, database=shop)
            eventually(lambda: running.events == 4, running)
            insert, number, body, delete = running.rows()
    finally:
        private.query("SET GLOBAL binlog_row_image = 'FULL'")
    assert insert["after"] == {"id": 1, "body": "long", "n": 1}
    assert 1 in number["unchanged"], "the place of body among the columns"
    assert number["after"]["n"] == 2
    assert body["after"]["body"] is None
    assert 1 not in (body.get("unchanged") or [])
    assert (delete["key"] or delete["before"])["id"] == 1
    if image == "MINIMAL":
        assert 2 in body["unchanged"]


def test_a_structure_that_comes_back_while_capture_is_away_is_met_in_order(
    private: Server, shop: str, tmp_path: Path
) -> None:
    options = settings(private, shop)
    with captured(options, tmp_path):
        pass
    private.execute(
        "INSERT INTO t (id, v) VALUES (1, 'v0')",
        "ALTER TABLE t ADD w int",
        "UPDATE t SET v = 'v1' WHERE id = 1",
        "ALTER TABLE t DROP w",
        "UPDATE t SET v = 'v2' WHERE id = 1",
        "ALTER TABLE t ADD w int",
        "UPDATE t SET v = 'v3' WHERE id = 1",
        database=shop,
    )
    with captured(options, tmp_path) as running:
        eventually(lambda: running.events >= 7, running)
        log = running.log
        blocks = [log.read(ref) for ref in log.refs(0, log.tail().offset) if ref.table == f"{shop}.t"]
    met = [row for block in blocks for row in block.batch.to_pylist()]
    assert [row["after"]["v"] for row in met if Op(row["op"]) is not Op.DDL] == ["v0", "v1", "v2", "v3"]
    assert [row["offset"] for row in met] == list(range(7))
