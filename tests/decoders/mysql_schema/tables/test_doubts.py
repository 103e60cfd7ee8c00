"""Statements that were not understood, tables that are not as they should be, rows logged as statements."""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from tests.decoders.mysql_schema.tables.support import SHAPE, Clock, run
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders.mysql_schema import MysqlTables
from tidemill.errors import DecodeError
from tidemill.model.position import Position


def test_a_column_added_unseen_is_an_error_that_says_what_was_expected(shop: MysqlTables) -> None:
    wider = replace(
        SHAPE, types=(*SHAPE.types, table_map.LONG), metadata=(*SHAPE.metadata, 0), nullable=(*SHAPE.nullable, True)
    )
    with pytest.raises(DecodeError) as caught:
        shop.resolve(wider, Clock()())
    assert caught.value.what == "d.orders is not as its history says: 3 columns expected, but the binlog has 4"
    assert "tidemill recover" in caught.value.fix
    other = replace(SHAPE, metadata=(0, 12 << 8 | 2, 80))
    with pytest.raises(
        DecodeError, match=r'column 2, "total", expected as decimal\(10,2\), but .* has decimal\(12,2\)'
    ):
        shop.resolve(other, Clock()())
    with pytest.raises(DecodeError, match='column 1, "id", expected as int, but the binlog has unsigned numbers'):
        shop.resolve(replace(SHAPE, signs=(True, False, None)), Clock()())
    with pytest.raises(DecodeError, match='column 3, "note", expected as utf8mb4, but the binlog has latin1'):
        shop.resolve(replace(SHAPE, collations=(None, None, 8)), Clock()())
    with pytest.raises(DecodeError, match='column 1, "id", expected as NOT NULL'):
        shop.resolve(replace(SHAPE, nullable=(True, True, True)), Clock()())


def test_a_statement_that_is_not_understood_stops_at_the_first_row_without_names(shop: MysqlTables) -> None:
    clock = Clock()
    [change] = run(shop, clock, "ALTER TABLE orders FROBNICATE COLUMN id IDENTIFIED BY 'secret'")
    document = orjson.loads(change.document)
    assert [column["name"] for column in document.pop("before")["columns"]] == ["id", "total", "note"]
    assert document | {"text": ""} == {"text": "", "kind": "unknown", "changes": None, "after": None}
    with pytest.raises(DecodeError) as caught:
        shop.resolve(SHAPE, clock())
    assert "not understood" in caught.value.what
    assert "secret" not in str(caught.value)
    named = replace(
        SHAPE, names=("id", "total", "text"), key=((0, 0),), signs=(False, False, None), collations=(None, None, 45)
    )
    table = shop.resolve(named, clock())
    assert table is not None
    assert [c.name for c in table.columns] == ["id", "total", "text"]
    # From then on the history knows it again.
    [change] = run(shop, clock, "ALTER TABLE orders ADD COLUMN more int")
    assert [c.name for c in change.table.columns] == ["id", "total", "text", "more"]


def test_labels_that_the_binlog_names_count_more_than_those_of_a_statement(shop: MysqlTables) -> None:
    run(shop, Clock(), "ALTER TABLE orders ADD kind enum('a','b')")
    named = table_map.TableMap(
        1, "d", "orders", (*SHAPE.types, table_map.ENUM), (*SHAPE.metadata, 1), (*SHAPE.nullable, True),
        (False, False, None, None), (None, None, 45, 45), ("id", "total", "note", "kind"),
        (None, None, None, (b"x", b"it's")), ((0, 0),),
    )  # fmt: skip
    table = shop.resolve(named, Clock()())
    assert table is not None
    assert table.columns[3].type.native == "enum('x','it''s')"
    # Also from then on.
    [change] = run(shop, Clock(), "ALTER TABLE orders COMMENT 'x'")
    assert change.table.fingerprint == table.fingerprint


def test_a_change_of_rows_that_is_logged_as_a_statement_is_an_error(shop: MysqlTables) -> None:
    for text in (
        "INSERT INTO orders VALUES (1, 2, 'secret')",
        "update d.orders set note = 'secret'",
        "DELETE FROM orders",
        "LOAD DATA LOCAL INFILE 'x' INTO TABLE orders",
        "REPLACE orders (id) VALUES (1)",
    ):
        with pytest.raises(DecodeError, match="changed by a statement") as caught:
            run(shop, Clock(), text)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "CREATE TABLE orders AS SELECT 1 AS id",
        "CREATE TABLE orders (id int PRIMARY KEY) ENGINE=InnoDB IGNORE SELECT 1 AS id",
        "CREATE TABLE orders (SELECT 1 AS id)",
        "CREATE TABLE orders (id int) PARTITION BY KEY (id) AS (SELECT 1 AS id)",
        "CREATE TABLE orders WITH x AS (SELECT 1 AS id) SELECT * FROM x",
        "CREATE TABLE orders TABLE other",
        "CREATE TABLE orders AS VALUES ROW(1)",
    ],
)
def test_a_table_that_is_made_with_rows_which_the_binlog_does_not_have_is_an_error(
    shop: MysqlTables, text: str
) -> None:
    clock = Clock()
    run(shop, clock, "DROP TABLE orders")
    assert not run(shop, clock, text.replace("orders", "another"))
    with pytest.raises(DecodeError, match="changed by a statement"):
        run(shop, clock, text)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO mysql.rds_heartbeat2(id, value) values (1,170) ON DUPLICATE KEY UPDATE value = 170",
        "UPDATE `mysql`.`db` SET host = f()",
        "SET STATEMENT max_statement_time=0 FOR DELETE FROM mysql.proc WHERE db = 'd'",
        "INSERT INTO other VALUES (1)",
        "INSERT IGNORE other (a) SELECT MAX(id) FROM orders",
        "/* app */ update LOW_PRIORITY other AS o SET a = 1 WHERE a IN (1, 2)",
        "DELETE FROM d.other WHERE a = NOW() LIMIT 5",
        "LOAD DATA LOCAL INFILE 'x' REPLACE INTO TABLE `d`.`other` FIELDS TERMINATED BY 'x' (`a`)",
        "REPLACE INTO d.other (a, b) SELECT COUNT(*), COALESCE(LOWER(CONV(BIT_XOR(CAST(CRC32(CONCAT_WS('#', `id`))"
        " AS UNSIGNED)), 10, 16)), 0) FROM `d`.`orders` FORCE INDEX(`PRIMARY`) WHERE ((`id` >= '1')) /*chunk*/",
    ],
)
def test_a_statement_that_changed_no_captured_table_is_passed_over(shop: MysqlTables, text: str) -> None:
    assert not run(shop, Clock(), "CREATE TABLE other (a int, b int)")
    assert not shop.writes(text, "d")
    assert not shop.ddl(text, "d", Position("binlog.000001:9999@1"))


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO orders VALUES (1)",
        "INSERT INTO unheard_of VALUES (1)",  # a view, perhaps
        "INSERT INTO other VALUES (my_function())",
        "INSERT INTO other VALUES (d.my_function(1))",
        "INSERT INTO other SELECT `count`() FROM orders",
        "UPDATE other, orders SET orders.id = 1",
        "UPDATE other JOIN orders USING (a) SET orders.id = 1",
        "DELETE orders FROM orders JOIN other",
        "DELETE FROM other, orders USING other JOIN orders",
        "WITH x AS (SELECT 1) UPDATE orders SET id = 1",
        "INSERT INTO other VALUES (1); DELETE FROM orders",
        "SELECT `d`.`my_function`()",
        "INSERT INTO 'unclosed",
    ],
)
def test_a_statement_that_may_have_changed_a_captured_table_is_not(shop: MysqlTables, text: str) -> None:
    assert not run(shop, Clock(), "CREATE TABLE other (a int)")
    assert shop.writes(text, "d")
