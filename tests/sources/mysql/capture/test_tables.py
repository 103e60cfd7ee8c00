"""Which tables are captured: those that are named, not temporary ones, also such as come later."""

from __future__ import annotations

from pathlib import Path

import orjson
import pymysql
import pytest

from tests.servers.mysql import KINDS, private_server
from tests.sources.mysql.capture.support import TABLE, captured, same, seen, settings
from tests.sources.mysupport import account, config
from tests.support.capturing import capturing, eventually
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Op
from tidemill.sources.mysql import MysqlSource, errors


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
