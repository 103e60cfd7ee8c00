"""The private MySQL and MariaDB that tests and benches use."""

from __future__ import annotations

import pytest

from tests.servers.mysql import KINDS, private_server
from tidemill.lab.servers.mysql_family import Server


def test_it_writes_a_row_binlog_with_full_metadata(mysql_server: Server) -> None:
    settings = "@@log_bin, @@binlog_format, @@binlog_row_metadata, @@binlog_row_image"
    assert mysql_server.query(f"SELECT {settings}") == [(1, "ROW", "FULL", "FULL")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_server_starts_again_with_its_data_and_port_and_leaves_nothing_when_closed(kind: str) -> None:
    with private_server(kind) as server:
        with server.database("shop"):
            server.query("CREATE TABLE t (id int PRIMARY KEY)", database="shop")
            server.query("INSERT INTO t VALUES (1), (2)", database="shop")
            port = server.port
            server.kill()
            assert not server.running
            server.start()
            assert server.port == port
            assert server.query("SELECT count(*) FROM shop.t") == [(2,)]
        assert server.query("SHOW DATABASES LIKE 'shop'") == []
        folder = server.directory
    assert not folder.exists()
    assert not server.running
