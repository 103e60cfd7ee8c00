"""INSERTs that leave columns out of their image (binlog_row_image MINIMAL and NOBLOB): filled with what the server
stored. The server is the oracle: it writes the same row once more with a FULL image.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pymysql
import pytest
from pymysql.converters import escape_string

from tests.decoders.binlog.kinds import KINDS as TYPES
from tests.servers.mysql import KINDS, private_server
from tests.sources.mysupport import config
from tests.support.binlogstream import MapTables, decode, end_of_binlog, record
from tests.support.capturing import Running, capturing, eventually
from tests.support.seed import run_seed
from tidemill.decoders._shared.mysql import types
from tidemill.decoders._shared.mysql.fill import fill
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders.mysql_schema.catalog import CatalogTable
from tidemill.decoders.mysql_schema.ddl import parse
from tidemill.decoders.mysql_schema.defaults import kept_default
from tidemill.decoders.mysql_schema.history import TableHistory
from tidemill.errors import DecodeError, SetupError, SourceError
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.change import Committed
from tidemill.model.table import Column, Table
from tidemill.sources.mysql import MysqlSource
from tidemill.sources.mysql import server as facts
from tidemill.sources.mysql.catalog import read_tables
from tidemill.sources.mysql.client import connect

SEED = run_seed()
_names = itertools.count(1)
Confirmed = tuple[Any, str]
#: In ways that people write them, beside those of every type.
LITERALS = (
    ("int", "'42'"), ("int", "-7"), ("int", "TRUE"), ("int", "0x41"), ("bigint unsigned", "'18446744073709551615'"),
    ("decimal(10,2)", "'12.345'"), ("decimal(10,2)", "-0.005"), ("decimal(5,1)", ".5"), ("decimal(8,3)", "1e2"),
    ("float", "1.23456789"), ("float", "'1.1'"), ("float", "1e-7"), ("float(7,2)", "3.14"), ("double", "-1.5e3"),
    ("double(8,3)", "2.5"), ("bit(9)", "b'101010101'"), ("bit(1)", "b'1'"), ("bit(3)", "5"), ("year", "'71'"),
    ("year", "99"), ("year", "2004"), ("year", "'0000'"), ("date", "20240102"), ("date", "'2024-1-2'"),
    ("datetime", "'2024-01-02'"), ("datetime", "20240102030405"), ("datetime(3)", "'2024-01-02 03:04:05.6'"),
    ("datetime", "0"), ("timestamp", "0"), ("time", "112233"), ("time(2)", "'-1:02:03.4'"), ("time", "'11:12'"),
    ("char(5)", "'ab  '"), ("varchar(9)", "'ab  '"), ("varchar(20)", r"'it\'s ''q'' \\ \n \% x'"), ("varchar(9)", "65"),
    ("varchar(9)", "'a' 'b'"), ("varchar(9)", '"double"'), ("varchar(9)", "N'nat'"), ("varchar(9)", "_utf8mb4'é'"),
    ("varchar(9)", "_latin1'abc'"), ("varchar(9)", "x'4142'"), ("varchar(9) character set latin1", "'é€'"),
    ("varchar(20)", r"'App\\Models\\User'"), ("binary(4)", "'ab'"), ("binary(4)", "0x41420043"),
    ("varbinary(6)", "x'FF00'"), ("varbinary(9)", "'text'"), ("varbinary(9)", "'é'"), ("enum('a','b','it''s')", "'B'"),
    ("enum('a','b','it''s')", "'it''s'"), ("set('p','q','r')", "'r,p,r'"), ("set('p','q','r')", "''"),
    ("varchar(9)", "NULL"), ("int", "NULL"),
)  # fmt: skip


#: MariaDB's literals of these are in the binlog like expressions; a NOT NULL vector has no value to fall back to.
_ALWAYS_LOGGED = re.compile(r"\w*(text|blob)\b.*DEFAULT X?'|vector.*NOT NULL|json .*DEFAULT '|float DEFAULT .*\d{7}")


@pytest.fixture(scope="module", params=KINDS)
def private(request: pytest.FixtureRequest) -> Iterator[Server]:
    with private_server(request.param) as server:
        server.query("SET GLOBAL sql_mode = ''")
        yield server


@pytest.fixture
def shop(private: Server) -> Iterator[str]:
    name = f"filled{next(_names)}"
    with private.database(name):
        yield name


def flavor_of(server: Server) -> Flavor:
    return Flavor.MYSQL if server.name == "MySQL" else Flavor.MARIADB


class Stored:
    """Tables with a column for each default, how each was made, and the row that the server made of them."""

    def __init__(self, server: Server, database: str) -> None:
        self.server, self.database = server, database
        self.texts: dict[str, list[str]] = {}
        self.literals: dict[tuple[str, str], str] = {}
        with server.connect(database) as db, db.cursor() as cursor:
            cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+03:00'")
            for table, columns in _wanted(server):
                self._make(cursor, table, columns)
            begin = end_of_binlog(server)
            cursor.execute("SET binlog_row_image = 'FULL'")
            for table in list(self.texts):
                try:
                    cursor.execute(f"INSERT INTO {table} () VALUES ()")
                except pymysql.MySQLError:  # NOT NULL of a geometry has no default, MariaDB's json has an invalid one
                    del self.texts[table]
        self.expected = self._decoded(record(server, begin))

    def _make(self, cursor: Any, table: str, columns: list[tuple[str, str]]) -> None:
        """Column by column: some of the literals are not what a server takes."""
        made = [f"CREATE TABLE {table} (id int PRIMARY KEY AUTO_INCREMENT)"]
        cursor.execute(made[0])
        for i, (kind, default) in enumerate(columns):
            text = f"ALTER TABLE {table} ADD COLUMN d{i} {kind} {default}"
            try:
                cursor.execute(text)
            except pymysql.MySQLError:
                continue
            made.append(text)
            self.literals[table, f"d{i}"] = f"{kind} {default}"
        if len(made) > 1:
            self.texts[table] = made

    def tables(self) -> dict[str, CatalogTable]:
        """As the catalog has them."""
        with connect(config(self.server.dsn())) as db:
            found = read_tables(db, facts.MysqlServerInfo.read(db))
        return {table.name: table for table in found if table.name in self.texts}

    def followed(self) -> dict[str, CatalogTable]:
        """As the history has them after their statements."""
        history = TableHistory()
        history.charsets[self.database] = "utf8mb4"
        found = {}
        for table, texts in self.texts.items():
            for text in texts:
                for statement in parse(text, mariadb=flavor_of(self.server) is Flavor.MARIADB):
                    (effect,) = history.apply(statement, self.database)
            assert isinstance(effect.after, CatalogTable), texts
            found[table] = effect.after
        return found

    def _decoded(self, stream: bytes) -> dict[str, dict[str, Confirmed]]:
        known = {
            f"{self.database}.{name}": [(c.name, c.type, c.charset) for c in table.columns]
            for name, table in self.tables().items()
        }
        found: dict[str, dict[str, Confirmed]] = {}
        for change in decode(stream, MapTables(known, flavor=flavor_of(self.server)), flavor_of(self.server)):
            assert isinstance(change, Committed)
            for block in change.blocks:
                (row,) = block.batch.to_pylist()
                odd = {item["column"]: item["text"] for item in row.get("odd") or []}
                names = [c.name for c in block.table.columns]
                found[block.table.name] = {n: (row["after"][n], odd.get(j, "")) for j, n in enumerate(names)}
        return found

    def differing(self, tables: dict[str, CatalogTable]) -> tuple[list[Any], list[str]]:
        """(what was filled otherwise than the server did, what was refused)."""
        wrong, refused = [], []
        for name, table in tables.items():
            columns = [
                Column(c.name, types.data_type(c.type, c.charset, flavor_of(self.server)), c.nullable)
                for c in table.columns
            ]
            for column, listed in list(zip(columns, table.columns, strict=True))[1:]:
                try:
                    made = fill(Table("", "", name, tuple(columns)), column, kept_default(listed))
                except DecodeError:
                    refused.append(self.literals[name, column.name])
                    continue
                value = pa.scalar(made.value, column.type.arrow).as_py()
                if (value, made.odd) != self.expected[name][column.name]:
                    wrong.append((self.literals[name, column.name], made, self.expected[name][column.name]))
        return wrong, refused


def _wanted(server: Server) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    dice = random.Random(SEED)
    yield "literals", [(kind, f"DEFAULT {value}") for kind, value in LITERALS]
    for number, kind in enumerate(TYPES):
        if server.name in kind.servers:
            values = [_quoted(value) for value in kind.values(dice)]
            some = dice.sample(values, min(6, len(values)))
            bare = kind.type.removesuffix(" null")
            yield (
                f"t{number}",
                [
                    *((kind.type, f"DEFAULT {value}") for value in some if _is_literal(value)),
                    (bare, "NOT NULL"),
                    (kind.type, ""),
                ],
            )


def _quoted(value: str) -> str:
    if found := re.fullmatch(r"CONVERT\(X'([0-9a-f]*)' USING utf8mb4\)", value):
        return f"'{escape_string(bytes.fromhex(found[1]).decode())}'"
    return value


def _is_literal(value: str) -> bool:
    return "(" not in re.sub(r"'(?:[^'\\]|\\.|'')*'", "", value)


@pytest.fixture(scope="module")
def stored(private: Server) -> Iterator[Stored]:
    with private.database("every_default"):
        yield Stored(private, "every_default")


def test_a_default_that_the_catalog_lists_becomes_what_the_server_stores(stored: Stored) -> None:
    wrong, refused = stored.differing(stored.tables())
    assert not wrong, f"seed {SEED}: {wrong[:5]}"
    assert not [text for text in refused if not _ALWAYS_LOGGED.match(text)], f"seed {SEED}"


def test_a_default_of_a_statement_becomes_what_the_server_stores_or_is_refused(stored: Stored) -> None:
    wrong, refused = stored.differing(stored.followed())
    assert not wrong, f"seed {SEED}: {wrong[:5]}"
    unsure = re.compile(r"timestamp.*'\d|.*_utf8mb4'é'|varbinary.*'é'|float.*\d{7}|float.*\.\d{5}")
    assert not [t for t in refused if not (_ALWAYS_LOGGED.match(t) or unsure.match(t))], f"seed {SEED}"


@contextmanager
def captured(server: Server, shop: str, directory: Path, **options: Any) -> Iterator[Running]:
    settings = config(server.dsn(), f"{shop}.*", heartbeat_seconds=0.5, feedback_seconds=0.1, **options)
    with capturing(MysqlSource(settings), directory) as running:
        eventually(lambda: running.log.tail().position, running)
        yield running


class Twins:
    """Every row is written twice, one id after the other: with an image that lacks columns, and with a whole one."""

    def __init__(self, server: Server, shop: str, dice: random.Random) -> None:
        self.server, self.shop, self.dice = server, shop, dice
        self.columns: list[tuple[str, str]] = []
        self.id = 0

    def create(self) -> str:
        self.columns = [
            (f"c{i}", kind) for i, kind in enumerate(self.dice.choice(_ORDINARY)[0] for _ in range(8))
        ]  # fmt: skip
        shown = ", ".join(f"{name} {kind} {self.default(kind)}" for name, kind in self.columns)
        return f"CREATE TABLE t (id int PRIMARY KEY, made datetime(2) DEFAULT CURRENT_TIMESTAMP(2), {shown})"

    def default(self, kind: str) -> str:
        literal = self.dice.choice(dict(_ORDINARY)[kind])
        return self.dice.choice(
            (f"DEFAULT {literal}", f"NOT NULL DEFAULT {literal}", "NOT NULL", "", f"DEFAULT {literal}")
        )

    def alter(self) -> str:
        at = self.dice.randrange(len(self.columns))
        name, kind = self.columns[at]
        literal = self.dice.choice(dict(_ORDINARY)[kind])
        match self.dice.randrange(6):
            case 0 | 1:
                return f"ALTER TABLE t ALTER COLUMN {name} SET DEFAULT {literal}"
            case 2:
                return f"ALTER TABLE t ALTER {name} DROP DEFAULT"
            case 3:
                return f"ALTER TABLE t MODIFY COLUMN {name} {kind} {self.default(kind)}"
            case 4:
                new = f"c{next(_names)}x"
                self.columns[at] = (new, kind)
                return self.dice.choice((
                    f"ALTER TABLE t CHANGE {name} {new} {kind} DEFAULT {literal}",
                    f"ALTER TABLE t RENAME COLUMN {name} TO {new}",
                ))  # fmt: skip
            case _:
                kind = self.dice.choice(_ORDINARY)[0]
                self.columns.append((f"n{next(_names)}", kind))
                return f"ALTER TABLE t ADD COLUMN {self.columns[-1][0]} {kind} {self.default(kind)}"

    def insert(self, cursor: Any) -> None:
        chosen = [pair for pair in self.columns if self.dice.random() < 0.3]
        names = ", ".join(["id", *(name for name, _ in chosen)])
        values = ", ".join(self.dice.choice(dict(_ORDINARY)[kind]) for _, kind in chosen)
        for image in (self.dice.choice(("MINIMAL", "MINIMAL", "NOBLOB")), "FULL"):
            self.id += 1
            cursor.execute(f"SET binlog_row_image = '{image}'")
            cursor.execute(f"INSERT INTO t ({names}) VALUES ({self.id}{values and ', '}{values})")

    def run(self, rounds: int) -> None:
        with self.server.connect(self.shop) as db, db.cursor() as cursor:
            cursor.execute("SET sql_mode = '', timestamp = 1700000000")
            for _ in range(rounds):
                if self.dice.random() < 0.3:
                    kept = list(self.columns)
                    try:
                        cursor.execute(self.alter())
                    except (pymysql.DataError, pymysql.IntegrityError):  # rows have NULL where it would be NOT NULL
                        self.columns = kept
                self.insert(cursor)

    def check(self, running: Running) -> None:
        def rows() -> dict[int, dict[str, Any]]:
            found = (e for e in running.rows() if e["table"] == f"{self.shop}.t" and e["after"])
            return {e["after"]["id"]: e for e in found if e["after"]["id"] > 0}

        eventually(lambda: self.id in rows(), running)
        found = rows()
        assert len(found) == self.id
        for low in range(1, self.id, 2):
            one, other = found[low], found[low + 1]
            assert one.get("unchanged") is None
            assert one["after"] | {"id": 0} == other["after"] | {"id": 0}, f"seed {SEED}, row {low}"
            assert one.get("odd") == other.get("odd"), f"seed {SEED}, row {low}"


_ORDINARY: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("int", ("1", "'42'", "-7", "0")),
    ("decimal(10,2)", ("1.5", "'-3.25'", "0")),
    ("varchar(20)", ("'a'", "''", r"'it\'s'", "'Zürich'")),
    ("char(5) character set latin1", ("'ab'", "'é'")),
    ("varbinary(8)", ("'ab'", "0xFF00")),
    ("binary(4)", ("'ab'", "0x41420043")),
    ("datetime(2)", ("'2024-01-02 03:04:05.6'", "0")),
    ("date", ("'2024-01-02'", "'0000-00-00'")),
    ("time", ("'01:02:03'", "'-12:00:00'")),
    ("timestamp", ("'0000-00-00 00:00:00'",)),
    ("enum('x','y')", ("'x'", "'y'")),
    ("set('p','q','r')", ("'r,p'", "''", "'q'")),
    ("bit(9)", ("b'101'", "0", "b'111111111'")),
    ("year", ("2004", "1999")),
    ("float", ("1.5", "0", "-2.25")),
    ("double", ("0.1", "1e10")),
    ("bigint unsigned", ("18446744073709551615", "5")),
)


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_rows_are_whole_while_statements_change_defaults_and_also_when_read_later(
    private: Server, shop: str, tmp_path: Path, metadata: str
) -> None:
    private.query(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    twins = Twins(private, shop, random.Random(SEED))
    private.query(twins.create(), database=shop)
    if private.name == "MariaDB":  # of an empty table it does not say every default
        private.query("INSERT INTO t (id) VALUES (-1)", database=shop)
    with captured(private, shop, tmp_path) as running:
        twins.run(40)
        private.query("CREATE TABLE u LIKE t", database=shop)
        private.query("RENAME TABLE t TO v, u TO t", database=shop)
        twins.run(10)
        twins.check(running)
    twins.run(60)  # read when all of its statements are long done (invariant 6)
    with captured(private, shop, tmp_path) as running:
        twins.run(5)
        twins.check(running)


def test_columns_made_by_create_table_select_have_their_defaults(private: Server, shop: str, tmp_path: Path) -> None:
    twins = Twins(private, shop, random.Random(SEED))
    definition = "id int PRIMARY KEY, a int NOT NULL DEFAULT 5, b varchar(9) DEFAULT 'x'"
    private.query(f"CREATE TABLE s ({definition})", database=shop)
    with captured(private, shop, tmp_path) as running:
        private.query("CREATE TABLE t (PRIMARY KEY (id)) SELECT id, a, b, 1 AS c, 'y' AS d FROM s", database=shop)
        twins.columns = [("a", "int"), ("b", "varchar(20)"), ("c", "int")]
        with private.connect(shop) as db, db.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            for _ in range(5):
                twins.insert(cursor)
        twins.check(running)


def refused(running: Running) -> DecodeError:
    error = eventually(lambda: running.failure)[0]
    assert isinstance(error, DecodeError)
    return error


def test_a_capture_that_begins_in_the_past_does_not_take_the_defaults_of_today(
    private: Server, shop: str, tmp_path: Path
) -> None:
    private.query("SET GLOBAL binlog_row_metadata = 'FULL'")
    private.query("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 1, k int DEFAULT 2)", database=shop)
    asked = "SELECT @@GLOBAL.gtid_executed" if private.name == "MySQL" else "SELECT @@GLOBAL.gtid_binlog_pos"
    start = str(private.query(asked)[0][0]).replace("\n", "")
    with private.connect(shop) as db, db.cursor() as cursor:
        cursor.execute("SET binlog_row_image = 'MINIMAL'")
        cursor.execute("INSERT INTO t (id) VALUES (1)")
        cursor.execute("ALTER TABLE t ALTER COLUMN n SET DEFAULT 9")
    settings = config(private.dsn(), f"{shop}.*", start_position=start)
    with capturing(MysqlSource(settings), tmp_path) as running:
        error = refused(running)
    assert error.what == f'an INSERT into {shop}.t came without column "n", and its default is not known'


def test_a_timestamp_of_an_unknown_time_zone_stops_capture(private: Server, shop: str, tmp_path: Path) -> None:
    private.query("CREATE TABLE t (id int PRIMARY KEY)", database=shop)
    with captured(private, shop, tmp_path) as running:
        added = "at timestamp NULL DEFAULT '2024-01-02 03:04:05'"
        private.query(f"ALTER TABLE t ADD COLUMN {added}", database=shop)
        with private.connect(shop) as db, db.cursor() as cursor:
            cursor.execute("SET binlog_row_image = 'MINIMAL'")
            cursor.execute("INSERT INTO t (id) VALUES (1)")
        error = refused(running)
    assert f'{shop}.t came without column "at"' in error.what
    assert "time zone" in error.what
    assert "binlog_row_image=FULL" in error.fix


def test_a_virtual_column_that_mariadb_leaves_out_stops_capture(shop: str, private: Server, tmp_path: Path) -> None:
    private.query("CREATE TABLE t (id int PRIMARY KEY, g int AS (id + 1) VIRTUAL)", database=shop)
    with captured(private, shop, tmp_path) as running:
        with private.connect(shop) as db, db.cursor() as cursor:
            cursor.execute("SET binlog_row_image = 'MINIMAL'")
            cursor.execute("INSERT INTO t (id) VALUES (1)")
        if private.name == "MySQL":
            eventually(lambda: any((e["after"] or {}).get("g") == 2 for e in running.rows()), running)
        else:
            assert 'without column "g"' in refused(running).what


def test_a_history_of_an_earlier_version_knows_no_defaults() -> None:
    column = {"name": "n", "type": "int", "charset": "", "nullable": True, "generated": False, "invisible": False}
    document = {"database": "d", "name": "t", "columns": [column], "key": [], "charset": "", "like": "", "renamed": []}
    (found,) = CatalogTable.from_json(orjson.dumps(document)).columns
    assert kept_default(found) is None
    made = Column("n", types.data_type("int"))
    with pytest.raises(DecodeError, match="its default is not known"):
        fill(Table("", "d", "t", (made,)), made, None)


def test_a_catalog_with_bytes_that_are_no_text_is_read_all_the_same(private: Server, shop: str, tmp_path: Path) -> None:
    """MariaDB lists ED A0 80, half of a surrogate pair, as it is: in defaults of bytes, and in names."""
    private.query("CREATE TABLE a (id int PRIMARY KEY, v varbinary(9) DEFAULT x'41EDA08042')", database=shop)
    private.query("CREATE TABLE b (id int PRIMARY KEY, v int)", database=shop)
    halves = private.name == "MariaDB"
    if halves:
        with private.connect(shop) as db:
            db.query(b"CREATE TABLE c (id int PRIMARY KEY, `v\xed\xa0\x80` int)")
            db.query(b"CREATE TABLE d (id int PRIMARY KEY, v varchar(9) CHARACTER SET ucs2 DEFAULT x'0041D800')")
            db.query(b"CREATE TABLE `e\xed\xa0\x80` (id int PRIMARY KEY)")
    with connect(config(private.dsn())) as db:
        found = {t.name: t for t in read_tables(db, facts.MysqlServerInfo.read(db)) if t.database == shop}
    assert found["a"].columns[1].default == "0x41EDA08042"
    assert sorted(found) == (["a", "b", "c", "d", r"e\xed\xa0\x80"] if halves else ["a", "b"])
    if halves:
        assert found["c"].columns[1].name == r"v\xed\xa0\x80"
        assert found["d"].columns[1].default is None, "it is not known"
        with pytest.raises(SetupError, match=r"the name of \w+\.e\\xed\\xa0\\x80 is no UTF-8"):
            MysqlSource(config(private.dsn(), f"{shop}.*")).setup()
        with private.connect(shop) as connection:
            connection.query(b"DROP TABLE `e\xed\xa0\x80`")
    private.query("SET GLOBAL binlog_row_image = 'MINIMAL'")
    try:
        with captured(private, shop, tmp_path) as running:
            private.execute("INSERT INTO a (id) VALUES (1)", "INSERT INTO b VALUES (1, 2)", database=shop)
            eventually(lambda: len(running.rows()) == 2, running)
            assert [row["after"] for row in running.rows()] == [{"id": 1, "v": b"A\xed\xa0\x80B"}, {"id": 1, "v": 2}]
    finally:
        private.query("SET GLOBAL binlog_row_image = 'FULL'")


def test_an_answer_that_is_no_text_is_an_error_of_ours(private: Server) -> None:
    if private.name == "MySQL":
        pytest.skip("MySQL answers with question marks")
    with connect(config(private.dsn())) as db, pytest.raises(SourceError, match=r"no UTF-8: b'A\\xed\\xa0\\x80'"):
        db.value("SELECT CONVERT(_ucs2 x'0041D800' USING utf8mb4)")
