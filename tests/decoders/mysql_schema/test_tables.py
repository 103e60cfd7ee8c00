"""Old binlog is read with the tables as they were, whatever the catalog says by now: real binlogs, replayed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import orjson
import pymysql
import pytest

from tests.decoders.mysql_schema.statements import random_statement
from tests.servers.mysql import KINDS, private_server
from tests.support.mysqlbinlog import Event, events, statement
from tests.support.mysqlcatalog import read_catalog
from tidemill.decoders.mysql_schema import MysqlTables, ServerCatalog
from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogDatabase, CatalogTable
from tidemill.decoders.mysql_shared import table_map
from tidemill.decoders.mysql_shared.gtid import Flavor
from tidemill.decoders.mysql_shared.place import BinlogPlace
from tidemill.decoders.mysql_shared.session import SqlMode, StatementSession
from tidemill.decoders.mysql_shared.table_lookup import DdlChange
from tidemill.errors import DecodeError
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.position import Position
from tidemill.model.table import Table
from tidemill.schema.registry import SchemaRegistry

QUERY, TABLE_MAP = 2, 19
METADATA = ("FULL", "MINIMAL", "NO_LOG")


@dataclass
class Story:
    """A binlog, and for each of its TABLE_MAP events the columns that the table had then."""

    flavor: Flavor
    events: list[Event] = field(default_factory=list)
    then: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    now: dict[str, CatalogTable] = field(default_factory=dict)

    @property
    def start(self) -> BinlogPlace:
        return BinlogPlace(self.flavor, None, self.events[0].place.file, 4)

    def catalog(self, *, since: bool = False) -> ServerCatalog:
        statements = [statement(e.body) for e in self.events if e.kind == QUERY] if since else []
        return ServerCatalog(
            [CatalogDatabase("d", "utf8mb4")], list(self.now.values()), self.events[-1].place, since=statements
        )


def empty(story: Story) -> ServerCatalog:
    return ServerCatalog([CatalogDatabase("d", "utf8mb4")], [], story.start)


def tables(story: Story, registry: SchemaRegistry) -> MysqlTables:
    return MysqlTables(registry, lambda database, table: database == "d", flavor=story.flavor)


def shape_of(story: Story, event: Event) -> table_map.TableMap:
    return table_map.parse(event.body, mariadb=story.flavor is Flavor.MARIADB)


def replay(story: Story, made: MysqlTables, first: int = 0) -> Iterator[tuple[int, Table | DdlChange]]:
    """(number of the event, what became of it), from the event `first` on."""
    for number, event in enumerate(story.events[first:], first):
        if event.kind == TABLE_MAP:
            table = made.resolve(shape_of(story, event), event.place.text())
            if table is not None:
                yield number, table
        elif event.kind == QUERY:
            database, text = statement(event.body)
            for change in made.ddl(text, database, event.place.text()):
                yield number, change


def maps(story: Story) -> dict[int, tuple[str, tuple[str, ...], tuple[str, ...]]]:
    found = [n for n, e in enumerate(story.events) if e.kind == TABLE_MAP and shape_of(story, e).database == "d"]
    assert len(found) == len(story.then)
    return dict(zip(found, story.then, strict=True))


@pytest.fixture(
    scope="module", params=[(k, m) for k in KINDS for m in METADATA if (k, m) != ("mysql", "NO_LOG")], ids="-".join
)
def story(request: pytest.FixtureRequest) -> Iterator[Story]:
    """Random statements, a row into every table after each, and a restart of the binlog now and then."""
    kind, metadata = request.param
    dice = Random(f"{kind}/{metadata}")
    names, columns = [f"t{i}" for i in range(4)], [f"c{i}" for i in range(7)]
    with private_server(kind, binlog_row_metadata=metadata, character_set_server="utf8mb4") as server:
        server.execute(
            "CREATE DATABASE d CHARACTER SET utf8mb4",
            "RESET BINARY LOGS AND GTIDS" if kind == "mysql" else "RESET MASTER",
        )
        story = Story(Flavor(kind))
        connection = server.connect("d")
        while len(story.then) < 70:
            known = {name: [c.name for c in t.columns] for name, t in story.now.items()}
            try:
                with connection.cursor() as cursor:
                    cursor.execute(random_statement(dice, names, columns, known))
            except pymysql.err.MySQLError:
                continue
            story.now = read_catalog(server, "d")
            for table in story.now.values():
                _row(server, connection, story, table)
            if dice.random() < 0.05:
                server.execute("FLUSH BINARY LOGS")
        connection.close()
        story.events = [e for e in events(server) if e.kind in (QUERY, TABLE_MAP)]
        yield story


def _row(server: Server, connection: pymysql.Connection, story: Story, table: CatalogTable) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table.name} () VALUES ()")
    except pymysql.err.MySQLError:
        return  # a second row with the key's default
    story.then.append((table.name, tuple(c.name for c in table.columns), table.key))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    made = SchemaRegistry(tmp_path / "schemas.sqlite")
    yield made
    made.close()


def _shown(table: Table) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    return table.name, tuple(c.name for c in table.columns), table.key


def test_every_row_is_read_with_the_columns_that_its_table_had_then(story: Story, registry: SchemaRegistry) -> None:
    made = tables(story, registry)
    made.begin(story.start, lambda: empty(story), fresh=True)
    found = {number: _shown(item) for number, item in replay(story, made) if isinstance(item, Table)}
    assert found == maps(story)


def test_a_restart_at_any_place_reads_on_with_what_was_true_there(story: Story, registry: SchemaRegistry) -> None:
    made = tables(story, registry)
    made.begin(story.start, lambda: empty(story), fresh=True)
    whole = {number: item for number, item in replay(story, made) if isinstance(item, Table)}
    dice = Random(1)
    # Backwards, so that the registry is ahead of the place every time, as after a crash.
    for first in sorted(dice.sample(range(1, len(story.events)), 12), reverse=True):
        again = tables(story, registry)
        again.begin(story.events[first - 1].place, pytest.fail, fresh=False)
        found = {number: item for number, item in replay(story, again, first) if isinstance(item, Table)}
        assert found == {number: table for number, table in whole.items() if number >= first}


def test_an_old_place_without_a_history_is_read_right_or_not_at_all(story: Story, registry: SchemaRegistry) -> None:
    """The catalog is that of the end. What cannot be told from it and the statements since is an error, no guess."""
    expected = maps(story)
    right = 0
    for first in range(0, len(story.events), max(1, len(story.events) // 25)):
        made = tables(story, registry)
        place = story.events[first - 1].place if first else story.start
        later = [statement(e.body) for e in story.events[first:] if e.kind == QUERY]
        whole = story.catalog()
        made.begin(place, lambda: ServerCatalog(whole.databases, whole.tables, whole.at, since=later), fresh=True)  # noqa: B023
        try:
            for number, item in replay(story, made, first):
                if isinstance(item, Table):
                    assert _shown(item) == expected[number]
                    right += 1
        except DecodeError as error:
            assert "d.t" in error.what  # noqa: PT017
            assert "recover" in error.fix  # noqa: PT017
    assert right > 20


def test_ddl_events_tell_what_changed_and_name_the_table_as_it_is_afterwards(
    story: Story, registry: SchemaRegistry
) -> None:
    made = tables(story, registry)
    made.begin(story.start, lambda: empty(story), fresh=True)
    last: dict[str, Table] = {}
    for _, item in replay(story, made):
        if isinstance(item, Table):
            assert item.fingerprint == last[item.name].fingerprint, "rows of a structure that no event announced"
            continue
        document = orjson.loads(item.document)
        before, after = last.get(item.table.name), item.table
        if document["kind"] in ("create", "alter") and before is not None and before.columns:
            known = {c.name for c in before.columns}
            for change in document["changes"]:
                match change["change"]:
                    case "add":
                        assert change["column"] in {c.name for c in after.columns}
                    case "drop":
                        assert change["column"] in known
                    case "rename":
                        assert (change["from"], change["column"]) in after.renamed
            assert item.barrier or before.fingerprint == after.fingerprint
        last[item.table.name] = after


COLUMNS = (
    CatalogColumn("id", "int(11)", nullable=False),
    CatalogColumn("total", "decimal(10,2)"),
    CatalogColumn("note", "varchar(20)", "utf8mb4"),
)
ORDERS = CatalogTable("d", "orders", COLUMNS, ("id",), "utf8mb4")
SHAPE = table_map.TableMap(
    1,
    "d",
    "orders",
    (table_map.LONG, table_map.NEWDECIMAL, table_map.VARCHAR),
    (0, 10 << 8 | 2, 80),
    (False, True, True),
)


class Clock:
    """Places, one behind the other."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> Position:
        self.number += 100
        return BinlogPlace(Flavor.MYSQL, None, "binlog.000001", self.number, "1").text()


@pytest.fixture
def shop(registry: SchemaRegistry) -> MysqlTables:
    made = MysqlTables(registry, lambda database, table: (database, table) == ("d", "orders"), flavor=Flavor.MYSQL)
    start = BinlogPlace(Flavor.MYSQL, None, "binlog.000001", 4, "1")
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    return made


def _run(made: MysqlTables, clock: Clock, *statements: str) -> list[DdlChange]:
    return [change for text in statements for change in made.ddl(text, "d", clock())]


def test_gh_ost_swaps_its_copy_in_and_renamed_columns_are_known_as_such(shop: MysqlTables) -> None:
    clock = Clock()
    changes = _run(
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
    changes = _run(
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
    first, change = (_run(shop, Clock(), text)[0] for text in ("ALTER TABLE orders FORCE", statement))
    assert orjson.loads(change.document)["changes"] == changes
    assert change.barrier is bool(changes)
    assert change.table == first.table


def test_a_default_that_changes_is_told(shop: MysqlTables) -> None:
    clock = Clock()
    [_, change] = _run(
        shop, clock, "ALTER TABLE orders ADD x int DEFAULT 5",
        "ALTER TABLE orders ALTER COLUMN x SET DEFAULT 7",
    )  # fmt: skip
    assert orjson.loads(change.document)["changes"] == [{"change": "default", "column": "x", "from": "5", "to": "7"}]
    assert change.barrier
    [change] = _run(shop, clock, "ALTER TABLE orders ALTER COLUMN x DROP DEFAULT")
    assert orjson.loads(change.document)["changes"] == [{"change": "default", "column": "x", "from": "7", "to": None}]


def test_a_truncate_is_told_apart_and_changes_no_structure(shop: MysqlTables) -> None:
    [change] = _run(shop, Clock(), "TRUNCATE TABLE orders")
    assert (change.truncate, change.barrier, change.table.version) == (True, True, 1)


def test_unrelated_statements_are_no_events(shop: MysqlTables) -> None:
    statements = """
        BEGIN; CREATE TABLE other (a int); ALTER TABLE other ADD b int; CREATE USER u IDENTIFIED BY 'secret';
        GRANT ALL ON *.* TO u; CREATE VIEW v AS SELECT * FROM orders; DROP VIEW v; ANALYZE TABLE orders;
        CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.id = 1; DROP TABLE other; FLUSH PRIVILEGES;
        SAVEPOINT a; CREATE TEMPORARY TABLE orders (x int); DROP TEMPORARY TABLE IF EXISTS orders; XA START 'a';
        CREATE DATABASE e; DROP DATABASE e
    """
    assert not _run(shop, Clock(), *statements.split(";"), statements)


def test_statements_in_the_body_of_a_stored_program_were_not_run(shop: MysqlTables) -> None:
    body = "BEGIN TRUNCATE TABLE orders; DROP TABLE orders; INSERT INTO orders VALUES ('it''s'); DROP DATABASE d; END"
    assert not _run(
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
    [change] = _run(shop, clock, "ALTER TABLE orders FROBNICATE COLUMN id IDENTIFIED BY 'secret'")
    assert orjson.loads(change.document) | {"text": ""} == {"text": "", "kind": "unknown", "changes": None}
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
    [change] = _run(shop, clock, "ALTER TABLE orders ADD COLUMN more int")
    assert [c.name for c in change.table.columns] == ["id", "total", "text", "more"]


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


def test_labels_that_the_binlog_names_count_more_than_those_of_a_statement(shop: MysqlTables) -> None:
    _run(shop, Clock(), "ALTER TABLE orders ADD kind enum('a','b')")
    named = table_map.TableMap(
        1, "d", "orders", (*SHAPE.types, table_map.ENUM), (*SHAPE.metadata, 1), (*SHAPE.nullable, True),
        (False, False, None, None), (None, None, 45, 45), ("id", "total", "note", "kind"),
        (None, None, None, (b"x", b"it's")), ((0, 0),),
    )  # fmt: skip
    table = shop.resolve(named, Clock()())
    assert table is not None
    assert table.columns[3].type.native == "enum('x','it''s')"
    # Also from then on.
    [change] = _run(shop, Clock(), "ALTER TABLE orders COMMENT 'x'")
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
            _run(shop, Clock(), text)
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
    _run(shop, clock, "DROP TABLE orders")
    assert not _run(shop, clock, text.replace("orders", "another"))
    with pytest.raises(DecodeError, match="changed by a statement"):
        _run(shop, clock, text)


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
    assert not _run(shop, Clock(), "CREATE TABLE other (a int, b int)")
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
    assert not _run(shop, Clock(), "CREATE TABLE other (a int)")
    assert shop.writes(text, "d")


def test_passwords_of_table_options_are_not_in_the_event_whatever_a_backslash_means(shop: MysqlTables) -> None:
    plain = StatementSession(SqlMode.NO_BACKSLASH_ESCAPES)
    [change] = shop.ddl(r"ALTER TABLE orders PASSWORD = 'secret\'", "d", Clock()(), plain)
    assert "secret" not in change.document


def test_passwords_of_table_options_are_not_in_the_event(shop: MysqlTables) -> None:
    [change] = _run(shop, Clock(), "ALTER TABLE orders CONNECTION='mysql://u:secret@h/d', PASSWORD = \"secret\"")
    assert "secret" not in change.document


def test_a_structure_that_comes_back_keeps_its_version_but_not_its_renames(shop: MysqlTables) -> None:
    changes = _run(
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
    first, second = _run(made, clock, *["ALTER TABLE orders ADD COLUMN x int"] * 2)
    assert first.table == second.table
    assert (first.barrier, second.barrier) == (True, False)
    assert orjson.loads(second.document)["changes"] == []


def test_a_dropped_database_takes_its_tables_along(shop: MysqlTables) -> None:
    [change] = _run(shop, Clock(), "DROP DATABASE d")
    assert orjson.loads(change.document)["kind"] == "drop"
    assert change.table.name == "orders"


def test_names_in_another_case_are_the_same_where_the_server_says_so(registry: SchemaRegistry) -> None:
    made = MysqlTables(registry, lambda database, table: table == "orders", flavor=Flavor.MYSQL, fold=True)
    start = BinlogPlace(Flavor.MYSQL, None, "binlog.000001", 4, "1")
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    [change] = _run(made, Clock(), "ALTER TABLE D.Orders ADD COLUMN X int")
    assert [c.name for c in change.table.columns] == ["id", "total", "note", "X"]


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
