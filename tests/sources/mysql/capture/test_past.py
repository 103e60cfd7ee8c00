"""A first start in the past."""

from __future__ import annotations

from pathlib import Path

import pymysql
import pytest

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysql.capture.support import captured, seen, settings
from tests.sources.mysupport import purge
from tests.support.capturing import capturing, eventually
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Op
from tidemill.sources.mysql import MysqlSource


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
