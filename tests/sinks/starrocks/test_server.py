"""What `doctor` says, and how strict the stand-in is."""

from __future__ import annotations

import socket

import pytest

from tests.sinks.starrocks.support import Bench
from tidemill.contracts import Outcome
from tidemill.lab.servers.starrocks_standin import StarRocks
from tidemill.sinks.starrocks import StarRocksConfig
from tidemill.sinks.starrocks.checks import knows_conditions


def test_doctor_says_what_it_found(bench: Bench) -> None:
    assert [c.outcome for c in bench.sink(table="t").doctor()] == [Outcome.PASS] * 3
    (check,) = bench.sink(password="wrong").doctor()
    assert check.outcome is Outcome.FAIL
    (check,) = bench.sink(mysql_port=9).doctor()
    assert check.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("version", "fits"), [("3.1.2-abc", False), ("3.0.9", False), ("3.1.3 4f7a", True), ("4.0.1", True), ("main", True)]
)
def test_versions_that_know_no_conditional_partial_update_are_told(version: str, fits: bool) -> None:
    assert knows_conditions(version) is fits


def test_the_stand_in_is_strict_about_how_a_load_is_sent(server: StarRocks) -> None:
    with socket.create_connection(("127.0.0.1", server.http_port), 5) as connection:
        connection.sendall(b"PUT /api/d/t/_stream_load HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n[]")
        assert b"There is no 100-continue header" in _all(connection)
    with socket.create_connection(("127.0.0.1", server.backend_port), 5) as connection:
        connection.sendall(b"PUT /api/d/t/_stream_load HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n")
        assert b" 401 " in _all(connection)


def _all(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        return stream.read()


def test_secrets_do_not_belong_into_the_url() -> None:
    with pytest.raises(ValueError, match="fields of their own"):
        StarRocksConfig(id="x", url="http://root:pw@host:8030", database="d")
