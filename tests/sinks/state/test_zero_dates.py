"""Zero dates of MySQL as NULL (`zero_dates: null`), in columns that are NOT NULL there."""

from __future__ import annotations

from pathlib import Path

from tests.sinks.state.following import Origin, names, write
from tests.sinks.state.support import Destination
from tests.sources import mysupport
from tidemill.lab.servers.mysql_family import Server
from tidemill.sources.mysql import MysqlSource

MARK = "day, at) VALUES ({}, '2026-01-31', '2026-01-31')"


def test_a_zero_date_that_is_null_arrives_also_where_the_source_has_no_null(
    mysql_server: Server, tmp_path: Path, there: Destination
) -> None:
    name = f"zero{next(names)}"
    with mysql_server.database(name):
        mysql_server.query(
            "CREATE TABLE t (id int PRIMARY KEY, day date NOT NULL, at datetime NOT NULL)", database=name
        )
        settings = mysupport.config(mysql_server.dsn(), f"{name}.t", heartbeat_seconds=0.5, zero_dates="null")
        origin = Origin(
            lambda: MysqlSource(settings), lambda text: mysql_server.query(text, database=name), lambda _: [], tmp_path
        )
        origin.begin()
        origin.do("INSERT INTO t VALUES (1, '2026-01-31', '2026-01-31')", mark=MARK)
        origin.do("INSERT IGNORE INTO t VALUES (2, '0000-00-00', '0000-00-00')", mark=MARK)
        write(there, *origin.blocks())
        rows = {int(row[0]): row[1:] for row in there.rows("id, day, at")}
    assert rows[2] == (None, None)
    assert None not in rows[1]
