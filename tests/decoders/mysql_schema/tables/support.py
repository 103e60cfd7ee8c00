"""Statements that a server ran, and tables that only the statements are known of."""

from __future__ import annotations

from dataclasses import dataclass, field

import pymysql

from tests.support.mysqlbinlog import Event, statement
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders._shared.mysql.table_lookup import DdlChange
from tidemill.decoders.mysql_schema import MysqlTables, ServerCatalog
from tidemill.decoders.mysql_schema.catalog import CatalogColumn, CatalogDatabase, CatalogTable
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.position import Position
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


def tables(story: Story, registry: SchemaRegistry) -> MysqlTables:
    return MysqlTables(registry, lambda database, table: database == "d", flavor=story.flavor)


def row(server: Server, connection: pymysql.Connection, story: Story, table: CatalogTable) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {table.name} () VALUES ()")
    except pymysql.err.MySQLError:
        return  # a second row with the key's default
    story.then.append((table.name, tuple(c.name for c in table.columns), table.key))


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


def run(made: MysqlTables, clock: Clock, *statements: str) -> list[DdlChange]:
    return [change for text in statements for change in made.ddl(text, "d", clock())]
