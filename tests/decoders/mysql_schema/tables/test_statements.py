"""What a statement does to a table, and what it tells of it."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from tests.decoders.mysql_schema.tables.support import ORDERS, SHAPE, TABLE_MAP, Clock, run
from tests.support.mysqlbinlog import events
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders._shared.mysql.session import SqlMode, StatementSession
from tidemill.decoders.mysql_schema import MysqlTables, ServerCatalog
from tidemill.decoders.mysql_schema.catalog import CatalogDatabase
from tidemill.lab.servers.mysql_family import Server
from tidemill.schema.registry import SchemaRegistry


def test_gh_ost_swaps_its_copy_in_and_renamed_columns_are_known_as_such(shop: MysqlTables) -> None:
    clock = Clock()
    changes = run(
        shop, clock,
        "create /* gh-ost */ table `d`.`_orders_ghc` (id bigint auto_increment, last_update timestamp not null, hint"
        " varchar(64) charset ascii not null, value varchar(4096) charset ascii not null, primary key(id))",
        "create /* gh-ost */ table `d`.`_orders_gho` like `d`.`orders`",
        "alter /* gh-ost */ table `d`.`_orders_gho` add column paid tinyint(1)",
        "alter /* gh-ost */ table `d`.`_orders_gho` change note remark varchar(20)",
        "rename /* gh-ost */ table `d`.`orders` to `d`.`_orders_del`, `d`.`_orders_gho` to `d`.`orders`",
        "drop /* gh-ost */ table if exists `d`.`_orders_del`",
    )  # fmt: skip
    [change] = changes
    assert [c.name for c in change.table.columns] == ["id", "total", "remark", "paid"]
    assert change.table.renamed == (("note", "remark"),)
    assert change.barrier
    assert orjson.loads(change.document)["changes"] == [
        {"change": "rename_table", "from": "d._orders_gho", "to": "d.orders"},
        {"change": "rename", "column": "remark", "from": "note"},
        {"change": "add", "column": "paid", "type": "tinyint(1)", "nullable": True, "after": "remark"},
    ]


def test_pt_online_schema_change_swaps_its_copy_in(shop: MysqlTables) -> None:
    clock = Clock()
    changes = run(
        shop, clock,
        "CREATE TABLE `d`.`_orders_new` (`id` int NOT NULL, `total` decimal(10,2) DEFAULT NULL, `note` varchar(20)"
        " DEFAULT NULL, PRIMARY KEY (`id`)) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4",
        "ALTER TABLE `d`.`_orders_new` RENAME COLUMN note TO remark, DROP COLUMN total",
        "RENAME TABLE `d`.`orders` TO `d`.`_orders_old`, `d`.`_orders_new` TO `d`.`orders`",
        "DROP TABLE IF EXISTS `d`.`_orders_old`",
    )  # fmt: skip
    assert [orjson.loads(c.document)["kind"] for c in changes] == ["rename"]
    assert [c.name for c in changes[0].table.columns] == ["id", "remark"]
    assert changes[0].table.renamed == (("note", "remark"),)


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("CREATE UNIQUE INDEX by_note ON orders (note)", [{"change": "index", "index": "by_note"}]),
        ("DROP INDEX by_note ON orders", [{"change": "index", "index": "by_note"}]),
        ("ALTER TABLE orders ADD INDEX (note), ADD CONSTRAINT c CHECK (id > 0)", [{"change": "index", "index": None}]),
        ("ALTER TABLE orders ADD CONSTRAINT u UNIQUE KEY w (note)", [{"change": "index", "index": "w"}]),
        ("ALTER TABLE orders DROP KEY w", [{"change": "index", "index": "w"}]),
        ("ALTER TABLE orders RENAME INDEX v TO w", [{"change": "index", "index": "w"}]),
        ("ALTER TABLE orders COMMENT = 'all (of it)', ENGINE = InnoDB", [{"change": "comment", "to": "all (of it)"}]),
        ("ALTER TABLE orders ADD FOREIGN KEY (id) REFERENCES t (id)", []),
        ("ALTER TABLE orders ENGINE = InnoDB", []),
    ],
)  # fmt: skip
def test_indexes_and_comments_are_told_with_a_barrier_and_leave_the_structure(
    shop: MysqlTables, statement: str, changes: list[dict[str, object]]
) -> None:
    first, change = (run(shop, Clock(), text)[0] for text in ("ALTER TABLE orders FORCE", statement))
    assert orjson.loads(change.document)["changes"] == changes
    assert change.barrier is bool(changes)
    assert change.table == first.table


def test_a_default_that_changes_is_told(shop: MysqlTables) -> None:
    clock = Clock()
    [_, change] = run(
        shop, clock, "ALTER TABLE orders ADD x int DEFAULT 5",
        "ALTER TABLE orders ALTER COLUMN x SET DEFAULT 7",
    )  # fmt: skip
    assert orjson.loads(change.document)["changes"] == [{"change": "default", "column": "x", "from": "5", "to": "7"}]
    assert change.barrier
    [change] = run(shop, clock, "ALTER TABLE orders ALTER COLUMN x DROP DEFAULT")
    assert orjson.loads(change.document)["changes"] == [{"change": "default", "column": "x", "from": "7", "to": None}]


def test_a_truncate_is_told_apart_and_changes_no_structure(shop: MysqlTables) -> None:
    [change] = run(shop, Clock(), "TRUNCATE TABLE orders")
    assert (change.truncate, change.barrier, change.table.version) == (True, True, 1)


def test_unrelated_statements_are_no_events(shop: MysqlTables) -> None:
    statements = """
        BEGIN; CREATE TABLE other (a int); ALTER TABLE other ADD b int; CREATE USER u IDENTIFIED BY 'secret';
        GRANT ALL ON *.* TO u; CREATE VIEW v AS SELECT * FROM orders; DROP VIEW v; ANALYZE TABLE orders;
        CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.id = 1; DROP TABLE other; FLUSH PRIVILEGES;
        SAVEPOINT a; CREATE TEMPORARY TABLE orders (x int); DROP TEMPORARY TABLE IF EXISTS orders; XA START 'a';
        CREATE DATABASE e; DROP DATABASE e
    """
    assert not run(shop, Clock(), *statements.split(";"), statements)


def test_statements_in_the_body_of_a_stored_program_were_not_run(shop: MysqlTables) -> None:
    body = "BEGIN TRUNCATE TABLE orders; DROP TABLE orders; INSERT INTO orders VALUES ('it''s'); DROP DATABASE d; END"
    assert not run(
        shop,
        Clock(),
        f"CREATE PROCEDURE p() {body}",
        f"CREATE DEFINER=`root`@`table` PROCEDURE p() {body}",
        f"CREATE OR REPLACE DEFINER = 'a'@'b' FUNCTION f() RETURNS int {body}",
        f"CREATE TRIGGER t BEFORE INSERT ON other FOR EACH ROW {body}",
        f"CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO {body}",
        f"ALTER EVENT e DO {body}",
        "CREATE VIEW v AS SELECT 'unclosed FROM orders",
    )
    table = shop.resolve(SHAPE, Clock()())
    assert table is not None
    assert [c.name for c in table.columns] == ["id", "total", "note"]


def test_sequences_of_mariadb_are_no_tables(mariadb: Server, registry: SchemaRegistry) -> None:
    with mariadb.database("sequences"):
        mariadb.execute("CREATE SEQUENCE s", "DO NEXTVAL(s)", "DROP SEQUENCE s", database="sequences")
        found = [table_map.parse(event.body, mariadb=True) for event in events(mariadb) if event.kind == TABLE_MAP]
    shapes = [shape for shape in found if shape.database == "sequences"]
    assert shapes
    made = MysqlTables(registry, lambda database, table: True, flavor=Flavor.MARIADB)
    start = BinlogPlace(Flavor.MARIADB, None, "binlog.000001", 4, "1")
    made.begin(start, lambda: ServerCatalog([], [], start), fresh=True)
    for shape in shapes:
        assert made.resolve(shape, start.text()) is None
        assert made.resolve(replace(shape, names=()), start.text()) is None


def test_passwords_of_table_options_are_not_in_the_event_whatever_a_backslash_means(shop: MysqlTables) -> None:
    plain = StatementSession(SqlMode.NO_BACKSLASH_ESCAPES)
    [change] = shop.ddl(r"ALTER TABLE orders PASSWORD = 'secret\'", "d", Clock()(), plain)
    assert "secret" not in change.document


def test_passwords_of_table_options_are_not_in_the_event(shop: MysqlTables) -> None:
    [change] = run(shop, Clock(), "ALTER TABLE orders CONNECTION='mysql://u:secret@h/d', PASSWORD = \"secret\"")
    assert "secret" not in change.document


def test_a_structure_that_comes_back_keeps_its_version_but_not_its_renames(shop: MysqlTables) -> None:
    changes = run(
        shop,
        Clock(),
        "ALTER TABLE orders RENAME COLUMN note TO remark",
        "ALTER TABLE orders RENAME COLUMN remark TO note",
    )
    first = shop.resolve(SHAPE, Clock()())
    assert first is not None
    assert [c.table.renamed for c in changes] == [(("note", "remark"),), (("remark", "note"),)]
    assert changes[1].table.fingerprint == first.fingerprint
    assert changes[0].table.fingerprint != first.fingerprint


def test_the_same_statement_asked_twice_is_applied_once(shop: MysqlTables) -> None:
    at = Clock()()
    assert shop.ddl("ALTER TABLE orders ADD x int", "d", at) == shop.ddl("ALTER TABLE orders ADD x int", "d", at)


def test_an_alter_that_mariadb_logs_in_two_phases_is_applied_once(registry: SchemaRegistry) -> None:
    made = MysqlTables(registry, lambda database, table: table == "orders", flavor=Flavor.MARIADB)
    start, clock = BinlogPlace(Flavor.MARIADB, None, "binlog.000001", 4, "1"), Clock()
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    first, second = run(made, clock, *["ALTER TABLE orders ADD COLUMN x int"] * 2)
    assert first.table == second.table
    assert (first.barrier, second.barrier) == (True, False)
    assert orjson.loads(second.document)["changes"] == []


def test_a_dropped_database_takes_its_tables_along(shop: MysqlTables) -> None:
    [change] = run(shop, Clock(), "DROP DATABASE d")
    assert orjson.loads(change.document)["kind"] == "drop"
    assert change.table.name == "orders"


def test_names_in_another_case_are_the_same_where_the_server_says_so(registry: SchemaRegistry) -> None:
    made = MysqlTables(registry, lambda database, table: table == "orders", flavor=Flavor.MYSQL, fold=True)
    start = BinlogPlace(Flavor.MYSQL, None, "binlog.000001", 4, "1")
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    [change] = run(made, Clock(), "ALTER TABLE D.Orders ADD COLUMN X int")
    assert [c.name for c in change.table.columns] == ["id", "total", "note", "X"]
