"""Temporary tables of sessions."""

from __future__ import annotations

import orjson
import pytest

from tests.decoders.mysql_schema.tables.support import ORDERS, SHAPE, Clock
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders._shared.mysql.session import StatementSession
from tidemill.decoders.mysql_schema import MysqlTables, ServerCatalog
from tidemill.decoders.mysql_schema.catalog import CatalogDatabase
from tidemill.errors import DecodeError
from tidemill.schema.registry import SchemaRegistry


def test_temporary_tables_of_a_session_are_known_again_after_a_restart(registry: SchemaRegistry) -> None:
    def tables() -> MysqlTables:
        return MysqlTables(registry, lambda database, table: table == "orders", flavor=Flavor.MARIADB)

    start, clock = BinlogPlace(Flavor.MARIADB, None, "binlog.000001", 4, "1"), Clock()
    using, session = StatementSession(thread=7, uses_temporary=True), StatementSession(thread=7)
    made = tables()
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    assert not made.ddl("CREATE TEMPORARY TABLE orders (x int)", "d", clock(), using)
    again = tables()
    again.begin(BinlogPlace.parse(clock(), Flavor.MARIADB), pytest.fail, fresh=False)
    assert not again.writes("INSERT INTO orders VALUES (1)", "d", using)
    assert again.writes("INSERT INTO orders VALUES (my_function())", "d", using)
    assert again.writes("INSERT INTO orders VALUES (1)", "d", StatementSession(thread=8))
    assert again.writes("INSERT INTO orders VALUES (1)", "d", session), "it used no temporary table"
    assert not again.ddl("RENAME TABLE orders TO u", "d", clock(), session)
    assert not again.ddl("ALTER TABLE u FROBNICATE x", "d", clock(), using)
    [dropped] = again.ddl("RENAME TABLE orders TO old", "d", clock(), session)
    assert orjson.loads(dropped.document)["changes"] == [{"change": "rename_table", "from": "d.orders", "to": "d.old"}]
    assert not again.ddl("DROP TEMPORARY TABLE u", "d", clock(), using)
    last = tables()
    last.begin(BinlogPlace.parse(clock(), Flavor.MARIADB), pytest.fail, fresh=False)
    assert last.writes("INSERT INTO u VALUES (1)", "d", using)


def test_what_may_have_been_about_a_temporary_table_is_not_undone(registry: SchemaRegistry) -> None:
    """Where capture begins in the past, statements are known without their sessions."""
    made = MysqlTables(registry, lambda database, table: True, flavor=Flavor.MYSQL)
    start, clock = BinlogPlace(Flavor.MYSQL, None, "binlog.000001", 4, "1"), Clock()
    since = [("d", "CREATE TEMPORARY TABLE orders (x int)"), ("d", "ALTER TABLE orders ADD note varchar(20)")]
    now = BinlogPlace.parse(clock(), Flavor.MYSQL)
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], now, since=since), fresh=True)
    with pytest.raises(DecodeError, match="or about a temporary table of that name"):
        made.resolve(SHAPE, clock())


@pytest.mark.parametrize("flavor", list(Flavor))
def test_the_flag_of_a_statement_alone_does_not_make_its_table_temporary(
    registry: SchemaRegistry, flavor: Flavor
) -> None:
    """In a procedure every statement has it that follows a DROP TABLE IF EXISTS of a name that nobody has."""
    made, clock = MysqlTables(registry, lambda database, table: True, flavor=flavor), Clock()
    start, flagged = BinlogPlace(flavor, None, "binlog.000001", 4, "1"), StatementSession(thread=7, uses_temporary=True)
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    assert not made.ddl("DROP TABLE IF EXISTS `nosuch`", "d", clock(), flagged)
    [truncated] = made.ddl("TRUNCATE TABLE orders", "d", clock(), flagged)
    assert truncated.truncate
    [altered] = made.ddl("ALTER TABLE orders RENAME COLUMN note TO remark", "d", clock(), flagged)
    assert [c.name for c in altered.table.columns] == ["id", "total", "remark"]
    [copied] = made.ddl("CREATE TABLE copied LIKE orders", "d", clock(), flagged)
    assert [c.name for c in copied.table.columns] == ["id", "total", "remark"]
    [lost] = made.ddl("ALTER TABLE orders FROBNICATE", "d", clock(), flagged)
    assert orjson.loads(lost.document)["kind"] == "unknown"


def test_temporary_tables_end_with_the_server_and_not_with_the_stream(registry: SchemaRegistry) -> None:
    """Threads are numbered anew by a server that starts; one that died has not written how its sessions ended."""

    def tables() -> MysqlTables:
        return MysqlTables(registry, lambda database, table: True, flavor=Flavor.MYSQL)

    start, clock, using = (
        BinlogPlace(Flavor.MYSQL, None, "binlog.000001", 4, "1"),
        Clock(),
        StatementSession(thread=7, uses_temporary=True),
    )
    made = tables()
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    made.server_started(1_700_000_000, clock())
    assert not made.ddl("CREATE TEMPORARY TABLE orders (x int)", "d", clock(), using)
    again = tables()
    again.begin(BinlogPlace.parse(clock(), Flavor.MYSQL), pytest.fail, fresh=False)
    again.server_started(1_700_000_000, clock())
    assert not again.ddl("TRUNCATE TABLE orders", "d", clock(), using), "the same server still has the session"
    again.server_started(1_700_000_099, clock())
    assert again.ddl("TRUNCATE TABLE orders", "d", clock(), using)
    last = tables()
    last.begin(BinlogPlace.parse(clock(), Flavor.MYSQL), pytest.fail, fresh=False)
    assert last.ddl("TRUNCATE TABLE orders", "d", clock(), using)
