"""What TABLE_MAP events say of signs, character sets and names, with the catalog as the oracle.

The lists of this metadata have no column numbers: a type that is wrongly counted among the character columns, or is
missing there, shifts all that stand behind it. So each type stands before, between and behind texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.decoders.binlog.kinds import KINDS
from tests.support.binlogstream import end_of_binlog, packets, record
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders._shared.mysql.table_map import TableMap
from tidemill.lab.servers.mysql_family import Server

_TABLE_MAP, _BINARY = 19, 63
_LATIN, _CYRILLIC = "varchar(9) character set latin1", "text character set cp1251"
_GREEK, _HEBREW = "enum('α','β') character set greek", "set('א','ב') character set hebrew"
_UTF8 = "char(3) character set utf8mb4 collate utf8mb4_bin"
#: `*` is the type that is tried. A server names each column's character set, or a default and what differs from it:
#: whichever is shorter.
_LAYOUTS = (
    ("*", _LATIN, _GREEK, "bigint unsigned", _CYRILLIC, _HEBREW),
    (_LATIN, "*", _CYRILLIC, _GREEK, "*", "int", _HEBREW, "*", "int unsigned"),
    (_LATIN, _GREEK, "*"),
    (_UTF8, _UTF8, "*", _UTF8, _UTF8, _UTF8, "blob", "*", _CYRILLIC, _UTF8),
    ("*", _UTF8),
    ("*",),
)
_MORE = ["decimal(9,2) unsigned", "float unsigned", "double unsigned", "char(200) character set utf8mb4"]
_MORE_OF_ONE = {
    "MySQL": ["point srid 4326", "vector(16383)", "vector(2) not null"],
    "MariaDB": ["text compressed character set greek", "varchar(9) compressed character set greek"],
}

Columns = list[tuple[str, int | None, bool]]


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_no_type_shifts_the_metadata_of_the_columns_beside_it(mysql_server: Server, metadata: str) -> None:
    mysql_server.execute("CREATE DATABASE beside CHARACTER SET utf8mb4", f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        begin = end_of_binlog(mysql_server)
        made = _make(mysql_server)
        wanted = _catalog(mysql_server)
        stream = record(mysql_server, begin)
    finally:
        mysql_server.execute("DROP DATABASE beside", "SET GLOBAL binlog_row_metadata = FULL")
    found = {shape.name: shape for shape in _shapes(stream, mariadb=mysql_server.name == "MariaDB")}
    assert found.keys() == wanted.keys() == made.keys()
    wrong = [
        (made[name], difference)
        for name, columns in wanted.items()
        for difference in _differences(found[name], columns, full=metadata == "FULL")
    ]
    assert not wrong, f"(definition, (column, catalog, binlog)): {wrong[:5]}"


def _make(server: Server) -> dict[str, str]:
    """A table for each type, whatever its length, and each layout, with a row. Answers their columns."""
    types = {re.split(r"\(| char", kind.type)[0]: kind.type for kind in KINDS if server.name in kind.servers}
    made = {}
    for i, type_ in enumerate([*types.values(), *_MORE, *_MORE_OF_ONE[server.name]]):
        for k, layout in enumerate(_LAYOUTS):
            made[f"t{i}_{k}"] = ", ".join(f"c{j} {type_ if kind == '*' else kind}" for j, kind in enumerate(layout))
    server.execute(*(f"CREATE TABLE beside.{name} ({columns})" for name, columns in made.items()))
    server.execute(*(f"INSERT IGNORE INTO beside.{name} () VALUES ()" for name in made))
    return made


def _catalog(server: Server) -> dict[str, Columns]:
    """Each column's name, collation, and whether it is unsigned."""
    found: dict[str, Columns] = {}
    for table, column, type_, collation in server.query(
        "SELECT c.table_name, c.column_name, c.column_type, x.id FROM information_schema.columns c LEFT JOIN "
        "information_schema.collations x ON x.collation_name = c.collation_name WHERE c.table_schema = 'beside' "
        "ORDER BY c.table_name, c.ordinal_position"
    ):
        found.setdefault(table, []).append((column, collation, "unsigned" in type_))
    return found


def _shapes(stream: bytes, *, mariadb: bool) -> Iterator[TableMap]:
    for packet in packets(stream):
        if packet[9] == _TABLE_MAP:
            yield table_map.parse(packet[24:-4], mariadb=mariadb)


def _differences(shape: TableMap, columns: Columns, *, full: bool) -> Iterator[tuple[object, ...]]:
    for j, (name, collation, unsigned) in enumerate(columns):
        came = shape.collations[j] if shape.collations else None
        if shape.types[j] in (table_map.ENUM, table_map.SET) and not full:
            collation = None
        if came != collation and not (collation is None and came == _BINARY):
            yield name, collation, came
        if unsigned and not shape.signs[j]:
            yield name, "unsigned", "signed"
    if full and shape.names != tuple(name for name, *_ in columns):
        yield "names", columns, shape.names
