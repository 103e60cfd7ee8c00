"""Every kind of table that the catalog lists is recognised in the TABLE_MAP events of its rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.decoders.mysql_schema.statements import COLUMNS
from tests.servers.mysql import private_server
from tests.support.mysqlbinlog import events
from tests.support.mysqlcatalog import read_catalog
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders.mysql_schema.column_definition import canonical
from tidemill.decoders.mysql_schema.shape import difference

TABLE_MAP = 19


def _labels(count: int) -> str:
    return ",".join(f"'v{i}'" for i in range(count))


TABLES = [
    f"every ({COLUMNS.replace('v2 point not null', 'v2 point')})",
    "made (a int, b int as (a + 1) virtual, c int as (a + 2) stored)",
    "bits (a bit(1), b bit(8), c bit(9), d bit(64))",
    f"labels (a enum({_labels(300)}), b set({_labels(40)}), c set('a'), d set({_labels(9)}))",
    "lengths (a char(200) charset utf8mb4, b char(255) charset utf8mb4, c binary(255), d varchar(300), e char(0))",
    "other_engine (a bit(3), b char(4)) engine=myisam",
    "charsets (a geometry, b varchar(9) charset latin1, c point, d text charset cp1250, e json, f char(3) charset gbk)",
    "partitioned (a int, b date) partition by hash (a) partitions 3",
]
ONLY = {
    "mysql": ["hidden (a int, index f ((a + 1)))", "vectors (a vector(3))"],
    "mariadb": [
        "compressed (a varchar(100) compressed, b text compressed, c varbinary(20) compressed)",
        "addresses (a uuid, b inet6, c inet4)",
    ],
}


@pytest.mark.parametrize(
    ("kind", "metadata"), [("mysql", "FULL"), ("mysql", "MINIMAL"), ("mariadb", "FULL"), ("mariadb", "NO_LOG")]
)
def test_a_table_is_recognised_by_the_shape_of_its_rows(kind: str, metadata: str) -> None:
    with private_server(kind, binlog_row_metadata=metadata) as server:
        server.query("CREATE DATABASE d")
        server.execute(*(f"CREATE TABLE {table}" for table in TABLES + ONLY[kind]), database="d")
        listed = read_catalog(server, "d")
        server.execute(
            *(f"INSERT INTO {t.name} ({t.columns[0].name}) VALUES (DEFAULT)" for t in listed.values()), database="d"
        )
        shapes = [table_map.parse(e.body, mariadb=kind == "mariadb") for e in events(server) if e.kind == TABLE_MAP]
    found = {shape.name: shape for shape in shapes if shape.database == "d"}
    assert found.keys() == listed.keys()
    for name, table in listed.items():
        assert difference(replace(table, columns=tuple(map(canonical, table.columns))), found[name]) == "", name
