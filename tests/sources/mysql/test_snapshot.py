"""Chunks of real tables: every row is in one of them, whatever the key; and what a read proves about the stream."""

from __future__ import annotations

import datetime
import itertools
import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.servers.mysql import private_server
from tests.sources.mysupport import account, config, opened
from tests.support.changes import column
from tests.support.seed import sample
from tidemill.capture.window import ChunkWindow, Verdict
from tidemill.errors import StructureChanged
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.block import Block, Op
from tidemill.model.position import Position
from tidemill.model.rowkeys import key_strings, moved_with_holes
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.sources.mysql import MysqlSource
from tidemill.sources.mysql.chunks import KeyColumn
from tidemill.sources.mysql.copyable import end
from tidemill.sources.mysql.errors import GrantMissing
from tidemill.sources.mysql.snapshot import MysqlSnapshotReader

_names = itertools.count(1)
_WORDS = ("", "a", "A", "ä", "b", "ß", "Ωmega", "z", "😀", "it's", "back\\slash", "  spaced")
#: Name, columns of the key, and the values of row number n, as SQL.
KEYS: tuple[tuple[str, str, Any], ...] = (
    ("signed", "k int", lambda n: str(n * 7 - 100)),
    ("unsigned", "k bigint unsigned", lambda n: str(2**64 - 1 - n * 3)),
    ("decimal", "k decimal(30,5)", lambda n: f"{(n - 20) * 12345678901234567890}.5"),
    ("float", "k float", lambda n: f"{(n - 20) * 1.1e0!r}"),
    ("double", "k double", lambda n: f"{(n - 20) / 3!r}"),
    ("date", "k date", lambda n: f"'{datetime.date(1999, 12, 1) + datetime.timedelta(days=n * 40)}'"),
    ("datetime", "k datetime(3)", lambda n: f"'2024-02-29 12:00:{n:02d}.{n:03d}'"),
    ("timestamp", "k timestamp(6) NOT NULL DEFAULT '2000-01-01'", lambda n: f"'2024-02-29 12:00:{n:02d}.000{n:03d}'"),
    ("time", "k time", lambda n: f"'{(n - 20) * 30}:00:01'"),
    ("year", "k year", lambda n: str(1901 + n)),
    ("bit", "k bit(40)", lambda n: str(n * 2**30)),
    ("enum", "k enum(" + ",".join(f"'v{(i * 7) % 45}'" for i in range(45)) + ")", lambda n: str(n + 1)),
    ("set", "k set('a','b','c','d','e','f')", lambda n: str(n)),
    ("text of any case", "k varchar(40) COLLATE utf8mb4_unicode_ci", lambda n: f"'{'ÄäBbß'[n % 5]}{n}'"),
    ("text in latin1", "k varchar(40) CHARACTER SET latin1", lambda n: f"'{'äöé'[n % 3]}{n}'"),
    ("text in utf16", "k char(20) CHARACTER SET utf16", lambda n: f"'{'äω'[n % 2]}{n}'"),
    ("binary", "k binary(8)", lambda n: f"X'{n * 5:04x}00ff'"),
    ("bytes", "k varbinary(60)", lambda n: f"X'{'27' * (n % 4)}5c{n:02x}'"),
)


@pytest.fixture
def database(mysql_server: Server) -> Iterator[tuple[Server, str]]:
    with mysql_server.database(name := f"copied_{next(_names)}"):
        yield mysql_server, name


def _reader(server: Server, name: str, *tables: str, **options: Any) -> MysqlSnapshotReader:
    return MysqlSnapshotReader(config(server.dsn(name), *tables, **options))


def _table(reader: MysqlSnapshotReader, name: str = "t") -> SnapshotTable:
    return next(table for table in reader.tables() if table.table.name == name)


def _bounds(reader: MysqlSnapshotReader, table: SnapshotTable, rows: int) -> list[Bound | None]:
    found: list[Bound | None] = [None]
    while (bound := reader.plan(table, "", found[-1], rows)) is not None:
        found.append(bound)
    return [*found, None]


def _blocks(reader: MysqlSnapshotReader, chunk: Chunk, table: SnapshotTable) -> list[Block]:
    with reader.read(chunk, table, []) as reading:
        return list(reading.blocks())


def _rows(blocks: Sequence[Block], *columns: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for block in blocks:
        after = block.struct("after")
        assert after is not None
        found += zip(*(after[name].to_pylist() for name in columns), strict=True)
    return found


def _chunks(reader: MysqlSnapshotReader, table: SnapshotTable, rows: int) -> list[list[Block]]:
    bounds = _bounds(reader, table, rows)
    return [
        _blocks(reader, Chunk(table.name, n, lower=lower, upper=upper), table)
        for n, (lower, upper) in enumerate(itertools.pairwise(bounds))
    ]


@pytest.mark.parametrize("kind", KEYS, ids=lambda kind: kind[0])
def test_chunks_of_any_key_have_every_row_once_and_not_more_rows_than_asked_for(
    database: tuple[Server, str], kind: tuple[str, str, Any]
) -> None:
    server, name = database
    _, columns, value = kind
    rows = ", ".join(f"({value(n)}, {n})" for n in range(40))
    server.execute(
        "SET NAMES utf8mb4, time_zone = '+00:00'",
        f"CREATE TABLE t ({columns}, n int, PRIMARY KEY (k)) CHARACTER SET utf8mb4",
        f"INSERT INTO t VALUES {rows}",
        database=name,
    )
    reader = _reader(server, name)
    table = _table(reader)
    chunks = _chunks(reader, table, 7)
    numbers = [[n for (n,) in _rows(chunk, "n")] for chunk in chunks]
    assert sorted(itertools.chain(*numbers)) == list(range(40))
    assert [len(chunk) for chunk in numbers] == [7, 7, 7, 7, 7, 5]
    in_order = [n for (n,) in server.query("SELECT n FROM t ORDER BY k", database=name)]
    assert [set(chunk) for chunk in numbers] == [set(in_order[i : i + 7]) for i in range(0, 40, 7)]
    reader.close()


def test_a_composite_key_is_cut_anywhere_and_found_through_its_index(database: tuple[Server, str]) -> None:
    server, name = database
    server.execute(
        "CREATE TABLE t (a varchar(10) COLLATE utf8mb4_unicode_ci, b int unsigned, c enum('x','y','z'), n int,"
        " PRIMARY KEY (a, b, c)) CHARACTER SET utf8mb4",
        *(f"INSERT INTO t VALUES ('{'ABc'[n % 3]}', {n // 6}, {n % 2 + 1}, {n})" for n in range(90)),
        database=name,
    )
    reader = _reader(server, name)
    table = _table(reader)
    assert table.key == ("a", "b", "c")
    for rows in (1, 4, 89, 90, 91):
        found = [n for chunk in _chunks(reader, table, rows) for (n,) in _rows(chunk, "n")]
        assert sorted(found) == list(range(90)), rows
    lower, upper = ("61", "3", "1"), ("42", "2", "2")
    statement = reader._statement(Chunk(table.name, 0, lower=lower, upper=upper), table)
    with reader._connected()[0].connection.cursor() as cursor:
        cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + statement)
        plan = dict(zip([d[0] for d in cursor.description], cursor.fetchone(), strict=True))
    assert (plan["type"], plan["key"]) == ("range", "PRIMARY")
    reader.close()


def test_the_smallest_unique_key_that_cannot_be_null_serves_where_there_is_no_primary_key(
    database: tuple[Server, str],
) -> None:
    server, name = database
    server.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, c varchar(200) NOT NULL, d bigint NOT NULL, e int,"
        " UNIQUE KEY two (a, b), UNIQUE KEY long_one (c), UNIQUE KEY small (d), UNIQUE KEY nullable (e))",
        "CREATE TABLE prefixed (a text NOT NULL, UNIQUE KEY p (a(10)))",
        "CREATE TABLE none (a int)",
        "INSERT INTO none VALUES (1), (1), (NULL)",
        database=name,
    )
    reader = _reader(server, name)
    assert [table.table.name for table in reader.tables([f"{name}.t"])] == ["t"]
    found = {table.table.name: table.key for table in reader.tables()}
    assert found == {"t": ("d",), "prefixed": (), "none": ()}
    table = _table(reader, "none")
    assert reader.plan(table, "", None, 1) is None
    assert _rows(_blocks(reader, Chunk(table.name, 0), table), "a") == [(1,), (1,), (None,)]
    reader.close()


def test_rows_of_points_and_of_a_condition_are_read_alone(database: tuple[Server, str]) -> None:
    server, name = database
    server.execute(
        "CREATE TABLE t (a varchar(20) CHARACTER SET latin1, b binary(2), PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES ('zürich', X'0027'), ('zürich', X'0028'), ('it''s', X'5c00'), ('x', X'0000')",
        database=name,
    )
    reader = _reader(server, name)
    table = _table(reader)
    points = (("zürich", "0027"), ("it's", "5c00"), ("nobody", "0000"))
    assert sorted(_rows(_blocks(reader, Chunk(table.name, 0, points=points), table), "a", "b")) == [
        ("it's", b"\\\0"), ("zürich", b"\0'")]  # fmt: skip
    assert _rows(_blocks(reader, Chunk(table.name, 0, where="a = 'x' OR b = X'0028'"), table), "a") != []
    narrow = Chunk(table.name, 0, lower=("78", "0000"), where="a = 'x' OR b = X'0028'")
    assert _rows(_blocks(reader, narrow, table), "a") == [("zürich",)]
    reader.close()


def test_a_large_row_and_many_small_ones_come_through(database: tuple[Server, str]) -> None:
    """One row of more than one packet of the protocol, and more rows than one block has."""
    server, name = database
    server.execute(
        "SET GLOBAL max_allowed_packet = 67108864", "CREATE TABLE t (id int PRIMARY KEY, v longblob)", database=name
    )
    server.execute(
        "INSERT INTO t VALUES (1, X'01'), (2, REPEAT(X'ab', 33554440)), (3, X'03')",
        "CREATE TABLE many (id int AUTO_INCREMENT PRIMARY KEY)",
        "INSERT INTO many VALUES (), (), (), (), (), (), (), ()",
        *("INSERT INTO many SELECT NULL FROM many",) * 14,
        database=name,
    )
    reader = _reader(server, name)
    blocks = _blocks(reader, Chunk("t", 0), _table(reader))
    assert [(i, len(v)) for i, v in _rows(blocks, "id", "v")] == [(1, 1), (2, 33554440), (3, 1)]
    many = _blocks(reader, Chunk("many", 0), _table(reader, "many"))
    assert len(many) > 1
    offsets = pa.concat_arrays([block.batch.column("offset") for block in many]).to_pylist()
    assert offsets == pa.concat_arrays([block.batch.column("ordinal") for block in many]).to_pylist()
    assert offsets == list(range(8 << 14))
    assert {op for block in many for op in block.batch.column("op").to_pylist()} == {int(Op.READ)}
    assert len(set(_rows(many, "id"))) == 8 << 14
    reader.close()


def test_a_reader_travels_by_pickle_and_goes_on_after_its_connection_was_killed(database: tuple[Server, str]) -> None:
    server, name = database
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", database=name)
    reader = _reader(server, name)
    table = _table(reader)
    again: MysqlSnapshotReader = pickle.loads(pickle.dumps(reader))
    assert _rows(_blocks(again, Chunk("t", 0), table), "id") == [(1,), (2,)]
    with again.read(Chunk("t", 0), table, []) as reading:
        next(reading.blocks())
        again.close()
    assert _rows(_blocks(again, Chunk("t", 0), table), "id") == [(1,), (2,)]
    reader.close()
    again.close()


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD COLUMN w int DEFAULT 7",
        "ALTER TABLE t MODIFY v varchar(300)",
        "ALTER TABLE t DROP COLUMN v",
        "DROP TABLE t",
    ],
)
def test_a_table_that_was_changed_since_it_was_planned_is_not_read_as_it_was(
    database: tuple[Server, str], statement: str
) -> None:
    server, name = database
    server.execute(
        "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v varchar(100))", "INSERT INTO t VALUES (1, 'a')",
        database=name,
    )  # fmt: skip
    reader = _reader(server, name)
    table = _table(reader)
    server.execute("INSERT INTO t VALUES (70, 'more')", database=name)  # moves AUTO_INCREMENT, which changes nothing
    assert len(_rows(_blocks(reader, Chunk("t", 0), table), "id")) == 2
    server.execute(statement, database=name)
    with pytest.raises(StructureChanged):
        _blocks(reader, Chunk("t", 0), table)
    reader.close()


def test_a_copied_table_has_the_structure_that_the_stream_gives_it(database: tuple[Server, str]) -> None:
    """Also of what only one of the two could say: generated and invisible columns, and what was renamed."""
    server, name = database
    settings = config(server.dsn(name))
    server.execute(
        "CREATE TABLE t (id int unsigned, v varchar(20) CHARACTER SET latin1 NOT NULL, d decimal(20,3),"
        " e enum('a','b'), g int AS (id + 1) STORED, w int AS (id + 2) VIRTUAL, h int INVISIBLE DEFAULT 5,"
        " s timestamp(3) NULL, PRIMARY KEY (id))",
        database=name,
    )
    with opened(settings) as source:
        server.execute("INSERT INTO t (id, v) VALUES (1, 'ä')", database=name)
        streamed = _streamed(source, 1)
        reader = source.snapshot_reader()
        table = next(table for table in reader.tables() if table.name == f"{name}.t")
        assert table.table.fingerprint == streamed.table.fingerprint
        read = _blocks(reader, Chunk("t", 0), table)
        reader.close()
    assert [block.batch.column("after").to_pylist() for block in read] == [streamed.batch.column("after").to_pylist()]


def _streamed(source: MysqlSource, rows: int, seconds: float = 20) -> Block:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for change in source.changes(0.2):
            for block in getattr(change, "blocks", ()):
                if block.rows == rows and block.column("after") is not None:
                    return block
    raise AssertionError("the row did not come")


def _ids(source: MysqlSource, into: set[int], wait: float = 0.05) -> Position:
    """Adds the ids of rows that have come since; the position that the stream has come to with them."""
    for change in source.changes(wait):
        for block in getattr(change, "blocks", ()):
            if (after := block.struct("after")) is not None:
                into.update(after["id"].to_pylist())
    return source.decoder.place.text()


@pytest.mark.parametrize("positions", ["gtid", "file"])
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_transaction_that_is_sent_but_not_yet_visible_keeps_an_observation_from_being_proven(
    kind: str, positions: str
) -> None:
    """Semi-synchronous replication holds a commit between the binlog and the engine, for as long as nobody confirms."""
    with private_server(kind) as server, server.database("shop") as dsn:
        word = "source" if kind == "mysql" else "master"
        if kind == "mysql":
            server.query("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        server.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", database="shop")
        server.query(f"SET GLOBAL rpl_semi_sync_{word}_timeout = 60000")
        server.query(f"SET GLOBAL rpl_semi_sync_{word}_wait_point = AFTER_SYNC")
        with opened(config(dsn, positions=positions)) as source:
            reader, streamed = source.snapshot_reader(), set[int]()
            table = next(iter(reader.tables()))
            early = reader.observe(_ids(source, streamed))
            server.query(f"SET GLOBAL rpl_semi_sync_{word}_enabled = ON")
            writer = threading.Thread(
                target=server.query, args=("INSERT INTO t VALUES (2)",), kwargs={"database": "shop"}
            )
            writer.start()
            deadline = time.monotonic() + 120
            while 2 not in streamed and time.monotonic() < deadline:
                logged = _ids(source, streamed)
            assert streamed == {2}, "it is sent"
            late = reader.observe(logged)
            with reader.read(Chunk("t", 0), table, [early, late]) as reading:
                assert (reading.observation, _rows(list(reading.blocks()), "id")) == (0, [(1,)])
            server.query(f"SET GLOBAL rpl_semi_sync_{word}_enabled = OFF")
            writer.join(120)
            with reader.read(Chunk("t", 0), table, [early, late]) as reading:
                assert (reading.observation, _rows(list(reading.blocks()), "id")) == (1, [(1,), (2,)])
                assert source.reached(reading.high, logged)
            reader.close()


@pytest.mark.parametrize("positions", ["gtid", "file"])
def test_under_fire_a_read_sees_all_that_was_logged_before_and_nothing_that_the_stream_lacks_at_high(
    database: tuple[Server, str], positions: str
) -> None:
    server, name = database
    server.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY)", database=name)
    stop, proven = threading.Event(), 0

    def write() -> None:
        with server.connect(name) as db, db.cursor() as cursor:
            while not stop.is_set():
                cursor.execute("INSERT INTO t VALUES ()")

    writers = [threading.Thread(target=write) for _ in range(3)]
    with opened(config(server.dsn(name), positions=positions)) as source:
        reader, streamed = source.snapshot_reader(), set[int]()
        table = next(table for table in reader.tables() if table.name == f"{name}.t")
        for writer in writers:
            writer.start()
        try:
            until = time.monotonic() + 60
            while proven < 25 and time.monotonic() < until:
                observed = reader.observe(_ids(source, streamed, 0.02))
                had = set(streamed)
                with reader.read(Chunk("t", 0), table, [observed]) as reading:
                    seen = {i for (i,) in _rows(list(reading.blocks()), "id")}
                    high = reading.high
                    if reading.observation is None:
                        continue
                proven += 1
                assert not had - seen, "logged before, and not seen"
                while not source.reached(high, logged := _ids(source, streamed, 0.02)):
                    assert time.monotonic() < until, (high, logged)
                assert not seen - streamed, "seen, and not in the stream at high"
        finally:
            stop.set()
            for writer in writers:
                writer.join(120)
        reader.close()
    assert proven == 25


def test_without_gtids_an_account_that_may_not_look_is_told_what_to_grant(database: tuple[Server, str]) -> None:
    server, name = database
    if server.name != "MySQL":
        pytest.skip("MariaDB says where its snapshot stands")
    server.execute("CREATE TABLE t (id int PRIMARY KEY)", database=name)
    with account(server, "SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.*") as (user, dsn):
        reader = MysqlSnapshotReader(config(dsn, f"{name}.*", positions="file"))
        with pytest.raises(GrantMissing, match="which transactions are being committed") as raised:
            reader.observe(Position("binlog.000001:4"))
        assert f"GRANT PROCESS ON *.* TO '{user}'@'%'" in raised.value.fix
        reader.close()


def test_a_table_without_transactions_is_locked_while_it_is_read_and_proves_every_observation(
    database: tuple[Server, str],
) -> None:
    server, name = database
    server.execute("CREATE TABLE t (id int PRIMARY KEY) ENGINE=MyISAM", "INSERT INTO t VALUES (1)", database=name)
    with opened(config(server.dsn(name))) as source:
        reader = source.snapshot_reader()
        table = _table(reader)
        observed = reader.observe(_ids(source, set()))
        with reader.read(Chunk("t", 0), table, [observed]) as reading:
            writer = threading.Thread(
                target=server.query, args=("INSERT INTO t VALUES (2)",), kwargs={"database": name}
            )
            writer.start()
            writer.join(0.3)
            assert writer.is_alive(), "it waits"
            assert (reading.observation, _rows(list(reading.blocks()), "id")) == (0, [(1,)])
        writer.join(120)
        assert not writer.is_alive()
        assert _rows(_blocks(reader, Chunk("t", 0), table), "id") == [(1,), (2,)]
        reader.close()


@pytest.mark.parametrize(
    ("kind", "image"), sample([(k, i) for k in ("mysql", "mariadb") for i in ("MINIMAL", "NOBLOB")])
)
def test_what_a_partial_row_image_leaves_out_is_completed_from_the_chunk(kind: str, image: str) -> None:
    with private_server(kind, binlog_row_image=image) as server, server.database("shop") as dsn:
        server.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v varchar(20), big text)",
            "INSERT INTO t VALUES " + ", ".join(f"({n}, 'old {n}', 'big {n}')" for n in range(1, 7)),
            database="shop",
        )
        with opened(config(dsn)) as source:
            reader = source.snapshot_reader()
            table = _table(reader)
            with reader.read(Chunk("t", 0), table, []) as reading:
                server.execute(
                    "UPDATE t SET v = 'new' WHERE id = 1",
                    "UPDATE t SET v = 'between' WHERE id = 2",
                    "UPDATE t SET v = 'newest', big = 'new big' WHERE id = 2",
                    "DELETE FROM t WHERE id = 3",
                    "INSERT INTO t VALUES (9, 'inserted', 'whole')",
                    "UPDATE t SET v = NULL WHERE id = 4",
                    "UPDATE t SET id = 50 WHERE id = 5",
                    database="shop",
                )
                chunk = list(reading.blocks())
            high = _end_of(reader)
            window: list[Block] = []
            deadline = time.monotonic() + 120
            while not source.reached(high, Position("")):
                assert time.monotonic() < deadline
                window += [block for change in source.changes(0.2) for block in getattr(change, "blocks", ())]
            reader.close()
    structure = window[0].table
    found = ChunkWindow(window, structure).filter([Block(structure, block.batch) for block in chunk])
    assert found.verdict is Verdict.FILTERED
    # 2 is left out: its last event brings all of it. 5 moved with a hole to 50, which is read again at the end.
    merged = [(1, "new", "big 1"), (4, None, "big 4"), (6, "old 6", "big 6")]
    assert sorted(_rows(found.blocks, "id", "v", "big")) == merged
    assert [row for block in window for row in moved_with_holes(block)] != []


def _end_of(reader: MysqlSnapshotReader) -> Position:
    db, server = reader._connected()
    return end(db, server, reader._config).text()


def test_rows_of_the_past_of_a_versioned_table_are_copied_as_the_stream_has_them(mariadb: Server) -> None:
    with mariadb.database("versioned") as dsn, opened(config(dsn)) as source:
        mariadb.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v int) WITH SYSTEM VERSIONING", "INSERT INTO t VALUES (1, 1), (2, 2)",
            "UPDATE t SET v = 5 WHERE id = 1", database="versioned",
        )  # fmt: skip
        reader = source.snapshot_reader()
        table = _table(reader)
        blocks = _blocks(reader, Chunk("t", 0), table)
        assert sorted(_rows(blocks, "id", "v")) == [(1, 1), (1, 5), (2, 2)]
        points = tuple(key_strings(blocks[0], [0, 2]))
        assert sorted(_rows(_blocks(reader, Chunk("t", 0, points=points), table), "id")) == [(1,), (2,)]
        reader.close()


@pytest.mark.parametrize(
    ("native", "text", "wanted"),
    [
        ("float", "0.1", "`k` = 0.10000000149011612e0"),
        ("double", "0.1", "`k` = 0.1e0"),
        ("enum('a','')", "", "`k` IN (0, 2)"),
        ("enum('a','')", "a", "`k` = 1"),
    ],
)
def test_a_key_is_looked_up_by_the_value_that_the_server_compares(native: str, text: str, wanted: str) -> None:
    """A FLOAT is compared as a double, and no row had 0.1; what is no label of an ENUM reads as the empty one."""
    assert KeyColumn(column("k", native, pa.string())).equals(text) == wanted
