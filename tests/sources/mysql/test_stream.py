"""The binlog stream's edges: TLS, a server that falls silent, events of many packets, a log without room."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import config, opened
from tests.support.capturing import capturing, eventually
from tidemill.capture.loop import Limits
from tidemill.errors import ConnectionLost
from tidemill.lab.servers.mysql_family import Server
from tidemill.sources.mysql import MysqlSource
from tidemill.sources.mysql.stream import event_size


@pytest.fixture(scope="module", params=KINDS)
def private(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param, ssl=True, max_allowed_packet=256 << 20) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id int PRIMARY KEY, v longtext)")
        yield server


@pytest.fixture(autouse=True)
def empty(private: Server) -> None:
    private.query("TRUNCATE shop.t")


def test_a_stream_over_tls_brings_every_row(private: Server, tmp_path: Path) -> None:
    settings = config(private.dsn(), "shop.t", ssl_mode="verify_identity", ssl_ca=private.ca)
    with capturing(MysqlSource(settings), tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        for start in range(0, 20_000, 1000):
            values = ",".join(f"({n}, 'value {n}')" for n in range(start, start + 1000))
            private.query(f"INSERT INTO shop.t VALUES {values}")
        eventually(lambda: running.events == 20_000, running)
        assert [row["after"]["v"] for row in running.rows()] == [f"value {n}" for n in range(20_000)]


def test_a_row_of_many_packets_comes_whole(private: Server, tmp_path: Path) -> None:
    """An event of 16 MB and more is cut into packets of 16 MB, each with a header of its own."""
    size = (40 << 20) + 17
    with capturing(MysqlSource(config(private.dsn(), "shop.t")), tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        with private.connect(max_allowed_packet=256 << 20) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO shop.t VALUES (1, CONCAT(REPEAT('abc', %s), 'end')), (2, 'small')", [size // 3])
            cursor.execute("INSERT INTO shop.t VALUES (3, 'after')")
        eventually(lambda: running.events == 3, running)
        rows = running.rows()
    assert rows[0]["after"]["v"] == "abc" * (size // 3) + "end"
    assert [row["after"]["v"] for row in rows[1:]] == ["small", "after"]


def test_the_size_of_an_event_counts_the_headers_of_its_packets() -> None:
    def first_packet(length: int, event: int) -> memoryview:
        head = length.to_bytes(3, "little") + bytes(2) + bytes(9)
        return memoryview(head + event.to_bytes(4, "little") + bytes(6))

    assert event_size(memoryview(b"\x01")) == 0
    assert event_size(first_packet(100, 99)) == 104
    assert event_size(first_packet(0xFFFFFF, 0xFFFFFE)) == 0xFFFFFF + 8  # exactly full: an empty packet follows
    assert event_size(first_packet(0xFFFFFF, 40 << 20)) == (40 << 20) + 1 + 3 * 4


def listen(source: MysqlSource, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        source.consumed(len(source.read(0.1)))


def test_a_server_that_falls_silent_is_given_up(private: Server) -> None:
    settings = config(private.dsn(), "shop.t", heartbeat_seconds=0.1, network_timeout_seconds=1)
    with opened(settings) as source:
        listen(source, 2)  # heartbeats keep it alive
        assert private.pid is not None
        os.kill(private.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLost, match="nothing for"):
                listen(source, 20)
        finally:
            os.kill(private.pid, signal.SIGCONT)


def test_a_killed_session_is_a_lost_connection_and_comes_back(private: Server, tmp_path: Path) -> None:
    with capturing(MysqlSource(config(private.dsn(), "shop.t")), tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        sessions = private.query("SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND LIKE 'Binlog Dump%'")
        for (number,) in sessions:
            with contextlib.suppress(pymysql.err.OperationalError):  # a session of an earlier test may be ending
                private.query(f"KILL {number}")
        eventually(lambda: running.last_error)
        private.query("INSERT INTO shop.t VALUES (1, 'a')")
        eventually(lambda: running.events == 1, running)
        assert all(isinstance(trouble, ConnectionLost) for trouble in running.last_error)


def test_a_log_without_room_makes_the_stream_wait_and_lose_nothing(private: Server, tmp_path: Path) -> None:
    settings = config(private.dsn(), "shop.t", heartbeat_seconds=0.2, network_timeout_seconds=1)
    with capturing(MysqlSource(settings), tmp_path, limits=Limits(ahead_bytes=50_000)) as running:
        eventually(lambda: running.log.tail().position, running)
        for number in range(20):
            values = ",".join(f"({number * 100 + n}, REPEAT('x', 1000))" for n in range(100))
            private.query(f"INSERT INTO shop.t VALUES {values}")
            eventually(lambda: running.events, running)  # the first transaction alone fills the log
        time.sleep(2)  # longer than the silence that means a dead peer
        waiting = running.events
        assert waiting < 2000

        def delivered() -> bool:
            running.deliver()
            return running.events == 2000

        eventually(delivered, running)
        assert not running.failure
