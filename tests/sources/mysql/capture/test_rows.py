"""Rows in the log are those of the database, over rotations, restarts and purges."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pymysql
import pytest

from tests.servers.mysql import private_server
from tests.sources.mysql.capture.support import TABLE, captured, same, seen, settings
from tests.sources.mysupport import config, purge
from tests.support.capturing import capturing, eventually
from tidemill.errors import ConnectionLost, PositionLost
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Op
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.mysql import MysqlSource, errors


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
