"""Tables that take a captured name by RENAME TABLE: rows of before are not under it, and a mark says so until somebody
has looked at it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tests.sources.mysql.capture.support import TABLE, seen, settings
from tests.support.capturing import capturing, eventually
from tidemill.lab.servers.mysql_family import Server
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.mysql import MysqlSource

Marks = list[tuple[str, str]]


def marks(source: MysqlSource, shop: str) -> Marks:
    return [(notice.code, notice.subject.removeprefix(f"{shop}.")) for notice in source.notices()]


def test_tables_of_one_shape_that_exchange_their_names_are_marked_until_it_is_accepted(
    private: Server, shop: str, tmp_path: Path
) -> None:
    options = settings(private, shop)
    private.execute(TABLE.format("other"), "INSERT INTO other (id) VALUES (1)", database=shop)
    swapped = [("table-incomplete", "other"), ("table-incomplete", "t")]
    source = MysqlSource(options)
    with capturing(source, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        assert marks(source, shop) == []
        private.execute("RENAME TABLE t TO third, other TO t, third TO other", "INSERT INTO t (id) VALUES (2)",
                        database=shop)  # fmt: skip
        eventually(lambda: seen(running, f"{shop}.t", 2), running)
        assert marks(source, shop) == swapped
    again = MysqlSource(options)
    with capturing(again, tmp_path) as running:
        eventually(again.notices, running)
        assert marks(again, shop) == swapped
        (_, notice) = again.notices()
    assert f"it was renamed from {shop}.other there" in notice.what
    assert f'"tidemill recover FILE --table {shop}.t"' in notice.fix
    with closing(SchemaRegistry(tmp_path / "registry.sqlite")) as schemas:
        assert again.accept(f"{shop}.nosuch", schemas) == ()
        assert [each.subject for each in again.accept(f"{shop}.t", schemas)] == [f"{shop}.t"]
        assert again.accept(f"{shop}.t", schemas) == ()
    last = MysqlSource(options)
    with capturing(last, tmp_path) as running:
        eventually(last.notices, running)
        assert marks(last, shop) == swapped[:1]


def test_a_copy_that_an_online_tool_puts_in_its_place_is_the_table(private: Server, shop: str, tmp_path: Path) -> None:
    source = MysqlSource(settings(private, shop))
    with capturing(source, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        private.execute(
            "CREATE TABLE _t_gho LIKE t", "ALTER TABLE _t_gho ADD COLUMN more int",
            "INSERT INTO _t_gho SELECT t.*, 1 FROM t", "RENAME TABLE t TO _t_del, _t_gho TO t",
            TABLE.format("_t_new"), "INSERT INTO _t_new SELECT id, v, n, at FROM t",
            "RENAME TABLE t TO _t_old, _t_new TO t", "INSERT INTO t (id) VALUES (3)", database=shop,
        )  # fmt: skip
        eventually(lambda: seen(running, f"{shop}.t", 3), running)
        found = marks(source, shop)
    assert found == [("table-incomplete", "_t_del"), ("table-incomplete", "_t_old")], "all but the table itself"


def test_an_empty_table_of_the_same_shape_that_is_put_in_its_place_is_another_table(
    private: Server, shop: str, tmp_path: Path
) -> None:
    """As tables are rotated: rows of before are those of the archive."""
    source = MysqlSource(settings(private, shop))
    with capturing(source, tmp_path) as running:
        eventually(lambda: running.log.tail().position, running)
        private.execute(
            "CREATE TABLE t_empty LIKE t", "RENAME TABLE t TO t_archive, t_empty TO t", "INSERT INTO t (id) VALUES (3)",
            database=shop,
        )  # fmt: skip
        eventually(lambda: seen(running, f"{shop}.t", 3), running)
        found = marks(source, shop)
    assert found == [("table-incomplete", "t"), ("table-incomplete", "t_archive")]
