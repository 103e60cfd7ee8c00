"""The schema history against the servers themselves: after every statement it lists what information_schema lists."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pymysql
import pytest

from tests.decoders.mysql_schema.statements import COLUMNS, ONLY_MARIADB, ONLY_MYSQL, SEQUENCE, random_statement
from tests.servers.mysql import private_server
from tests.support.mysqlbinlog import Statements, events
from tests.support.mysqlcatalog import read_catalog
from tidemill.decoders._shared.mysql import table_map
from tidemill.decoders.mysql_schema.catalog import CatalogTable
from tidemill.decoders.mysql_schema.column_definition import canonical
from tidemill.decoders.mysql_schema.ddl import parse
from tidemill.decoders.mysql_schema.history import Effect, TableHistory, Unknown
from tidemill.decoders.mysql_schema.shape import difference
from tidemill.lab.servers.mysql_family import Server

_names = itertools.count(1)


class Follower:
    """Runs statements on a server and, as its binlog has them, on a history."""

    def __init__(self, server: Server, database: str) -> None:
        self.server, self.database = server, database
        self.mariadb = server.name == "MariaDB"
        self.history = TableHistory(mariadb=self.mariadb)
        [(charset,)] = server.query(
            "SELECT DEFAULT_CHARACTER_SET_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = %s", (database,)
        )
        self.history.charsets[database] = charset
        self._log = Statements(server)
        self._connection = server.connect(database)

    def run(self, statement: str) -> list[Effect]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
        effects = []
        for logged in self._log.new():
            for parsed in parse(logged.text, mariadb=self.mariadb, mode=logged.session.mode):
                effects += self.history.apply(parsed, logged.database, logged.session)
        return effects

    def columns(self) -> dict[str, list[str]]:
        found = self.history.tables.items()
        return {key[1]: [c.name for c in t.columns] for key, t in found if isinstance(t, CatalogTable)}

    def compare(self, statement: str) -> None:
        """Only what the server lists: where a table came from is the history's own affair."""
        listed = {
            name: replace(table, columns=tuple(map(canonical, table.columns)))
            for name, table in read_catalog(self.server, self.database).items()
        }
        followed = {}
        for (database, name), state in self.history.tables.items():
            if database == self.database:
                assert isinstance(state, CatalogTable), f"{statement}: {state}"
                followed[name] = replace(state, like="", renamed=())
        assert followed == listed, statement

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def follower(mysql_server: Server) -> Iterator[Follower]:
    name = f"history_{next(_names)}"
    with mysql_server.database(name):
        made = Follower(mysql_server, name)
        yield made
        made.close()


def test_every_type_is_followed_as_the_server_lists_it(follower: Follower) -> None:
    follower.run(f"CREATE TABLE every ({COLUMNS})")
    follower.compare("every type")


def test_every_statement_is_followed_as_the_server_does_it(follower: Follower) -> None:
    for statement in [*SEQUENCE, *(ONLY_MARIADB if follower.mariadb else ONLY_MYSQL)]:
        follower.run(statement)
        follower.compare(statement)


def test_types_of_oracle_are_those_of_mariadb(mariadb: Server) -> None:
    with mariadb.database("oracle"):
        follower = Follower(mariadb, "oracle")
        follower.run("SET sql_mode = ORACLE")
        follower.run(
            "CREATE TABLE t (a date, b blob, c number, d number(5), e number(9,2), f varchar2(9), g clob, h raw(5),"
            ' i blob(100), "j" date default sysdate)'
        )
        follower.compare("ORACLE")
        follower.close()


@pytest.mark.parametrize(
    ("mode", "definition"),
    [
        ("", "e enum(x'61', 0x6262, b'01100011', 'n', X'4D', 0b1100100, 0x2120, x'c3a4')"),
        ("", "e set(0xe4, 'ü') charset latin1, f enum(0x61, 0x2603, 'z') charset ucs2"),
        ("", "e enum(x'61', 'ä') charset binary"),
        ("NO_BACKSLASH_ESCAPES", r"e enum('x\\y', 'a\nb', 'p\%', '\') comment '\', f set('\\', '''') default '\\'"),
        (
            "ANSI_QUOTES",
            r""""a\" enum('a"b', '\'', 'c') comment '"', "key" int, "x""y" int primary key""",
        ),
        ("ANSI_QUOTES,NO_BACKSLASH_ESCAPES", r""""a\" enum('a"b', '\', 'c'), "b" int"""),
        ("REAL_AS_FLOAT", "a real, b real(7,3) unsigned, c double"),
        ("ANSI", 'a real, "b" text'),
    ],
)
def test_a_definition_means_what_it_means_in_its_session(follower: Follower, mode: str, definition: str) -> None:
    follower.run(f"SET sql_mode = '{mode}'")
    follower.run(f"CREATE TABLE labels ({definition})")
    follower.compare(definition)
    follower.run(r"ALTER TABLE labels ADD z int COMMENT '-- \\'")
    follower.compare(definition)


VERSIONED = [
    "CREATE TABLE t (id int PRIMARY KEY, a int) WITH SYSTEM VERSIONING",
    "ALTER TABLE t ADD b int, ADD c int FIRST, MODIFY a bigint AFTER b",
    "ALTER TABLE t DROP PRIMARY KEY",
    "ALTER TABLE t ADD PRIMARY KEY (id, a)",
    "ALTER TABLE t DROP SYSTEM VERSIONING",
    "ALTER TABLE t ADD d int, ADD SYSTEM VERSIONING",
    "CREATE OR REPLACE TABLE t (id int) CHARSET=latin1 WITH SYSTEM VERSIONING COMMENT 'x'"
    " PARTITION BY SYSTEM_TIME (PARTITION p0 HISTORY, PARTITION pn CURRENT)",
    "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, a int WITH SYSTEM VERSIONING, b int)",
    "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, a int)",
    "ALTER TABLE t ADD rs timestamp(6) GENERATED ALWAYS AS ROW START INVISIBLE,"
    " ADD re timestamp(6) GENERATED ALWAYS AS ROW END INVISIBLE, ADD PERIOD FOR SYSTEM_TIME (rs, re),"
    " ADD SYSTEM VERSIONING",
    "ALTER TABLE t ADD b int, DROP PRIMARY KEY, ADD PRIMARY KEY (a)",
    "ALTER TABLE t DROP COLUMN rs, DROP COLUMN re, DROP PERIOD FOR SYSTEM_TIME, DROP SYSTEM VERSIONING",
    "CREATE OR REPLACE TABLE t WITH SYSTEM VERSIONING SELECT 1 AS id, 2 AS a",
]


def test_columns_of_system_versioning_are_followed_as_the_binlog_has_them() -> None:
    """The catalog does not list those that the server adds by itself; rows have them."""
    with private_server("mariadb", binlog_row_metadata="FULL") as server, server.database("d"):
        follower = Follower(server, "d")
        follower.run("SET system_versioning_alter_history = KEEP")
        for number, statement in enumerate(VERSIONED):
            follower.run(statement)
            follower.run(f"INSERT INTO t (id, a) VALUES ({number}, {number})" if "(id int)" not in statement
                         else f"INSERT INTO t (id) VALUES ({number})")  # fmt: skip
            [*_, shape] = [table_map.parse(event.body, mariadb=True) for event in events(server) if event.kind == 19]
            table = follower.history.tables["d", "t"]
            assert isinstance(table, CatalogTable)
            assert tuple(column.name for column in table.columns) == shape.names, statement
            assert set(table.key) == {shape.names[j] for j, _ in shape.key}, statement
            assert difference(table, shape) == "", statement
        follower.close()


def test_statements_about_a_temporary_table_are_not_about_the_one_that_it_hides(follower: Follower) -> None:
    follower.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
    follower.run("CREATE TABLE other (id int PRIMARY KEY)")
    follower.run("SET SESSION binlog_format = 'STATEMENT'")
    for statement in (
        "CREATE TEMPORARY TABLE t (x int) SELECT 1 AS x",
        "ALTER TABLE t ADD y int, ADD PRIMARY KEY (x)",
        "CREATE INDEX i ON t (y)",
        "DROP INDEX i ON t",
        "TRUNCATE TABLE t",
    ):
        assert not follower.run(statement), statement
        follower.compare(statement)
    assert follower.run("ALTER TABLE other ADD a int")
    follower.run("CREATE TABLE copied LIKE t")
    assert isinstance(follower.history.tables.pop((follower.database, "copied")), Unknown)
    follower.run("DROP TABLE copied")
    # MariaDB renames the temporary table, MySQL the one that stays.
    renamed = follower.run("RENAME TABLE t TO u")
    assert bool(renamed) is not follower.mariadb
    follower.compare("RENAME TABLE")
    there, temporary = ("t", "u") if follower.mariadb else ("u", "t")
    assert not follower.run(f"ALTER TABLE {temporary} RENAME TO v")
    assert follower.history.temporary.names
    assert follower.run(f"ALTER TABLE {there} ADD z int")
    assert follower.run(f"TRUNCATE TABLE {there}")
    follower.compare("ALTER TABLE")
    assert not follower.run("DROP TABLE v")
    assert not follower.history.temporary.names
    follower.run(f"CREATE TEMPORARY TABLE {there} (x int)")
    assert not follower.run(f"DROP TABLE {there}")
    assert follower.run(f"DROP TABLE {there}")
    follower.compare("DROP TABLE")


def test_a_database_has_the_charset_that_its_session_gave_it(follower: Follower) -> None:
    def listed() -> str:
        [(charset,)] = follower.server.query(
            "SELECT DEFAULT_CHARACTER_SET_NAME FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = 'sessions'"
        )
        return str(charset)

    statements = [
        "CREATE DATABASE sessions",
        "CREATE DATABASE IF NOT EXISTS sessions CHARACTER SET latin1",
        "ALTER DATABASE sessions COLLATE latin2_bin",
        "DROP DATABASE sessions",
        "CREATE DATABASE IF NOT EXISTS sessions",
        "ALTER DATABASE sessions CHARACTER SET utf8mb4",
    ]
    if follower.mariadb:
        statements += ["ALTER DATABASE sessions CHARACTER SET DEFAULT", "ALTER DATABASE sessions COMMENT 'x'",
                       "CREATE TABLE sessions.t (a text)", "CREATE OR REPLACE DATABASE sessions CHARACTER SET latin5",
                       "CREATE OR REPLACE DATABASE sessions"]  # fmt: skip
    else:
        statements += ["ALTER SCHEMA sessions READ ONLY = 0"]
    follower.run("SET collation_server = 'cp1251_general_ci'")
    try:
        for statement in statements:
            follower.run(statement)
            if not statement.startswith("DROP"):
                assert follower.history.charsets["sessions"] == listed(), statement
        follower.run("CREATE TABLE sessions.u (a text, b varchar(3))")
        [table] = [state for key, state in follower.history.tables.items() if key[0] == "sessions"]
        assert isinstance(table, CatalogTable)
        assert (table.name, {column.charset for column in table.columns}) == ("u", {listed()})
    finally:
        follower.server.query("DROP DATABASE sessions")


@pytest.mark.parametrize("seed", range(4))
def test_random_statements_are_followed_as_the_server_does_them(follower: Follower, seed: int) -> None:
    dice = Random(seed)
    names = [f"t{i}" for i in range(4)]
    columns = [f"c{i}" for i in range(7)]
    done = 0
    for _ in range(120):
        statement = random_statement(dice, names, columns, follower.columns())
        try:
            with contextlib.suppress(pymysql.err.Warning):
                follower.run(statement)
        except pymysql.err.MySQLError:
            continue  # what the server refuses is not in the binlog
        done += 1
        follower.compare(f"seed {seed}: {statement}")
    assert done > 40
    assert not any(isinstance(state, Unknown) for state in follower.history.tables.values())
