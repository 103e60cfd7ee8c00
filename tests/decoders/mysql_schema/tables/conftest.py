"""Stories that real servers wrote, and a small shop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pymysql
import pytest

from tests.decoders.mysql_schema.statements import random_statement
from tests.decoders.mysql_schema.tables.support import METADATA, ORDERS, QUERY, TABLE_MAP, Story, row
from tests.servers.mysql import KINDS, private_server
from tests.support.mysqlbinlog import events
from tests.support.mysqlcatalog import read_catalog
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders._shared.mysql.place import BinlogPlace
from tidemill.decoders.mysql_schema import MysqlTables, ServerCatalog
from tidemill.decoders.mysql_schema.catalog import CatalogDatabase
from tidemill.schema.registry import SchemaRegistry


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
                row(server, connection, story, table)
            if dice.random() < 0.05:
                server.execute("FLUSH BINARY LOGS")
        connection.close()
        story.events = [e for e in events(server) if e.kind in (QUERY, TABLE_MAP)]
        yield story


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    made = SchemaRegistry(tmp_path / "schemas.sqlite")
    yield made
    made.close()


@pytest.fixture
def shop(registry: SchemaRegistry) -> MysqlTables:
    made = MysqlTables(registry, lambda database, table: (database, table) == ("d", "orders"), flavor=Flavor.MYSQL)
    start = BinlogPlace(Flavor.MYSQL, None, "binlog.000001", 4, "1")
    made.begin(start, lambda: ServerCatalog([CatalogDatabase("d", "utf8mb4")], [ORDERS], start), fresh=True)
    return made
