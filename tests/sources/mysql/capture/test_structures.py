"""Rows are read with the structure that their table had; statements that change a table count when they are done."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sources.mysql.capture.support import captured, seen, settings
from tests.support.capturing import eventually
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Op


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
