"""Events that are no rows, and events that are larger than a packet or than memory should be."""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.decoders.binlog import goldens as mygoldens
from tests.decoders.binlog.corpus import unchecked
from tests.servers.mysql import KINDS
from tests.support.binlogstream import MapTables, decode, end_of_binlog, packets, record
from tests.support.decoded import rows
from tidemill.decoders._shared.crc32 import crc32
from tidemill.decoders._shared.mysql.gtid import Flavor
from tidemill.decoders.binlog import BinlogRefused
from tidemill.decoders.binlog.rows import Names, TransactionName, Uuid
from tidemill.errors import ConnectionLost, DecodeError, SourceError, is_retryable
from tidemill.lab.servers.mysql_family import Server
from tidemill.model.change import SpillCommitted, Spilled

GOLDEN, STREAM = next(p for p in mygoldens.load() if p[0].name == "insert_update_delete" and p[1].server == "mysql")
PLAIN = list(packets(unchecked(STREAM.data)))
ROWS = len(GOLDEN.expected)


def event(kind: int, body: bytes, flags: int = 0) -> bytes:
    head = struct.pack("<IBIIIH", 1_700_000_000, kind, 1, 19 + len(body), 5_000, flags)
    return packet(b"\0" + head + body)


def packet(payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + b"\0" + payload


def statement(text: str) -> bytes:
    return event(2, struct.pack("<IIBHH", 8, 0, 6, 0, 0) + b"golden\0" + text.encode())


def decoded(*more: bytes) -> int:
    """Rows of a stream to which packets were added behind its first transaction."""
    first = next(i for i, p in enumerate(PLAIN) if p[9] == 16) + 1
    stream = b"".join([*PLAIN[:first], *more, *PLAIN[first:]])
    return len(rows(decode(stream, GOLDEN.tables(Flavor.MYSQL), Flavor.MYSQL)))


@pytest.mark.parametrize("kind", [3, 27, 28, 29, 35, 41, 161, 163, 164])
def test_events_without_changes_are_passed_over(kind: int) -> None:
    assert decoded(event(kind, b"binlog.000001")) == ROWS


def test_an_unknown_event_that_says_it_can_be_ignored_is_ignored() -> None:
    assert decoded(event(120, b"news", flags=0x80)) == ROWS


def test_an_unknown_event_is_an_error() -> None:
    with pytest.raises(DecodeError, match="type 120"):
        decoded(event(120, b"news"))


def test_an_incident_says_that_changes_are_missing_and_how_to_go_on() -> None:
    with pytest.raises(SourceError, match="incident") as caught:
        decoded(event(26, b"\1\0\0"))
    assert "recover" in caught.value.fix


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO t VALUES (9, 'x')",
        "/* app */ update t set v = 1",
        "  DELETE FROM t WHERE id = 1",
        "REPLACE t VALUES (1)",
        "SELECT `golden`.`function_that_writes`()",
    ],
)
def test_a_statement_in_place_of_rows_is_an_error_that_does_not_quote_it(text: str) -> None:
    with pytest.raises(SourceError, match="statement") as caught:
        decoded(statement("BEGIN"), statement(text), statement("COMMIT"))
    assert "VALUES" not in str(caught.value)
    assert "binlog_format=ROW" in caught.value.fix


def test_a_statement_for_tables_that_are_not_captured_is_passed_over() -> None:
    heartbeat = statement("INSERT INTO mysql.rds_heartbeat2(id, value) values (1, 2)")
    assert decoded(statement("BEGIN"), heartbeat, statement("COMMIT")) == ROWS
    assert decoded(heartbeat) == ROWS, "without a transaction around it"


def test_load_data_is_judged_by_the_table_it_fills() -> None:
    def load(table: str) -> list[bytes]:
        text = f"LOAD DATA INFILE 'x' INTO TABLE {table}".encode()
        body = struct.pack("<IIBHH", 8, 0, 6, 0, 0) + struct.pack("<IIIB", 1, 5, 9, 0) + b"golden\0" + text
        return [statement("BEGIN"), event(17, b"\1\0\0\x005\n"), event(9, b"\1\0\0\x006\n"), event(18, body),
                statement("COMMIT")]  # fmt: skip

    assert decoded(*load("mysql.x")) == ROWS
    with pytest.raises(SourceError, match="LOAD DATA"):
        decoded(*load("t"))


def torn(golden: mygoldens.Golden, stream: mygoldens.Stream) -> tuple[bytes, int]:
    """A stream whose first transaction lacks its end, because the server died; the next file follows. And how many
    transactions are whole."""
    plain = list(packets(unchecked(stream.data)))
    ends = [i for i, p in enumerate(plain) if p[9] == 16]
    made_up = [plain[0], next(p for p in plain if p[9] == 15)]
    return b"".join([*plain[: ends[0]], *made_up, *plain[ends[0] + 1 :]]), len(ends) - 1


@pytest.mark.parametrize("spill_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
def test_a_transaction_that_the_server_died_in_was_never_there(kind: str, spill_bytes: int) -> None:
    golden, stream = next(p for p in mygoldens.load() if p[0].name == "insert_update_delete" and p[1].server == kind)
    broken, whole = torn(golden, stream)
    changes = decode(broken, golden.tables(stream.flavor), stream.flavor, [200] * 1000, spill_bytes=spill_bytes)
    expected = [row["op"] for row in golden.expected if row["tx"] > 0]
    assert whole > 0
    assert [row["op"] for row in rows(changes)] == expected


def test_a_file_that_ends_in_order_does_not_end_within_a_transaction() -> None:
    end = next(i for i, p in enumerate(PLAIN) if p[9] == 16)
    rotate = event(4, struct.pack("<Q", 4) + b"binlog.000002")
    with pytest.raises(DecodeError, match="stands where it cannot"):
        decode(b"".join([*PLAIN[:end], rotate]), GOLDEN.tables(Flavor.MYSQL), Flavor.MYSQL)


def test_old_rows_of_which_nothing_was_sent_are_an_error() -> None:
    golden, stream = next(
        p for p in mygoldens.load() if p[0].name == "table_without_a_key" and p[1].server == "mysql"
    )  # fmt: skip
    plain = list(packets(unchecked(stream.data)))
    at = next(i for i, p in enumerate(plain) if p[9] == 31)
    number = plain[at][24:30]
    plain[at] = event(31, number + b"\1\0\2\0\2\0\3" + b"\0\1\0\0\0\1a")
    with pytest.raises(DecodeError, match="no column"):
        decode(b"".join(plain), golden.tables(Flavor.MYSQL), Flavor.MYSQL)


def test_a_server_met_by_another_way_first_is_still_found_by_its_bytes() -> None:
    names = Names()
    name = TransactionName("uuid:", Uuid("uuid"))
    assert names.number(name) == names.number(name, bytes(range(16)))
    assert names.vectors()[2].tolist() == [names.number(name)]


def test_what_a_savepoint_took_back_was_never_there(mariadb: Server) -> None:
    mariadb.query("CREATE DATABASE saved")
    try:
        mariadb.query("CREATE TABLE saved.i (id int PRIMARY KEY)")
        mariadb.query("CREATE TABLE saved.m (id int PRIMARY KEY) ENGINE = MyISAM")
        begin = end_of_binlog(mariadb)
        with mariadb.connect("saved") as db, db.cursor() as cursor:
            for text in (
                "BEGIN", "INSERT INTO i VALUES (1)", "SAVEPOINT `a b`", "INSERT INTO i VALUES (2)", "SAVEPOINT c",
                "INSERT INTO i VALUES (3)", "INSERT INTO m VALUES (4)", "ROLLBACK TO C", "INSERT INTO i VALUES (5)",
                "ROLLBACK TO `a b`", "INSERT INTO i VALUES (6)", "COMMIT",
                "BEGIN", "INSERT INTO i VALUES (7)", "CREATE TEMPORARY TABLE x (a int)", "SAVEPOINT a",
                "INSERT INTO i VALUES (8)", "ROLLBACK TO a", "COMMIT",
                "XA START 'x'", "INSERT INTO i VALUES (9)", "SAVEPOINT a", "INSERT INTO i VALUES (10)",
                "INSERT INTO m VALUES (11)", "ROLLBACK TO a",
                "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'",
            ):  # fmt: skip
                cursor.execute(text)
        stream = record(mariadb, begin)
        assert stream.count(b"ROLLBACK TO") == 4
        for size in (len(stream), 1, 100):
            found = rows(decode(stream, MapTables(), Flavor.MARIADB, [size] * len(stream)))
            assert [(row["table"], row["after"]["id"]) for row in found] == [
                ("saved.m", 4), ("saved.i", 1), ("saved.i", 6), ("saved.i", 7), ("saved.m", 11), ("saved.i", 9),
            ], f"in pieces of {size}"  # fmt: skip
        with pytest.raises(SourceError, match="savepoint"):
            decode(stream, MapTables(), Flavor.MARIADB, [100] * len(stream), spill_bytes=0)
    finally:
        mariadb.query("DROP DATABASE saved")


def test_a_table_that_changed_unseen_ends_a_batch_however_its_bytes_arrive(mysql: Server) -> None:
    mysql.query("CREATE DATABASE unseen")
    try:
        mysql.query("CREATE TABLE unseen.t (id int PRIMARY KEY)")
        begin = end_of_binlog(mysql)
        with mysql.connect("unseen") as db, db.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1)")
            cursor.execute("SET sql_log_bin = 0")
            cursor.execute("ALTER TABLE t ADD COLUMN v int")
            cursor.execute("SET sql_log_bin = 1")
            cursor.execute("INSERT INTO t VALUES (2, 2)")
        stream = record(mysql, begin)
        for size in (len(stream), 1, 40):
            changes = decode(stream, MapTables(), Flavor.MYSQL, [size] * len(stream))
            assert getattr(changes[-1], "barrier", False), f"in pieces of {size}"
    finally:
        mysql.query("DROP DATABASE unseen")


def test_a_table_that_a_restart_emptied_is_truncated() -> None:
    tables = MapTables(ddls={"TRUNCATE TABLE `golden`.`t`": ("t", True)})
    first = next(i for i, p in enumerate(PLAIN) if p[9] == 16) + 1
    stream = b"".join([*PLAIN[:first], statement("DELETE FROM `golden`.`t`"), *PLAIN[first:]])
    assert [row["op"] for row in rows(decode(stream, tables, Flavor.MYSQL))].count("truncate") == 1


def test_a_refusal_of_the_server_carries_its_code() -> None:
    with pytest.raises(BinlogRefused) as caught:
        decoded(packet(b"\xff" + struct.pack("<H", 1236) + b"#HY000" + b"the binlog was purged"))
    assert (caught.value.errno, caught.value.state, caught.value.message) == (1236, "HY000", "the binlog was purged")


def test_the_end_of_the_stream_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost) as caught:
        decoded(packet(b"\xfe\0\0\2\0"))
    assert is_retryable(caught.value)


def test_a_commit_of_what_was_prepared_before_the_stream_began_is_an_error() -> None:
    with pytest.raises(SourceError, match="XA") as caught:
        decoded(statement("XA COMMIT X'6f6e65',X'',1"))
    assert "recover" in caught.value.fix


def test_a_transaction_without_gtid_stops_a_source_that_resumes_by_gtid() -> None:
    stream = b"".join(PLAIN[:2]) + statement("BEGIN") + event(16, bytes(8))
    with pytest.raises(SourceError, match="no GTID"):
        decode(stream, GOLDEN.tables(Flavor.MYSQL), Flavor.MYSQL, began="empty")


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 1000])
def test_our_checksum_is_that_of_zlib(size: int) -> None:
    data = bytes(range(256)) * 4
    assert int(crc32(np.frombuffer(data, np.uint8), 3, 3 + size)) == zlib.crc32(data[3 : 3 + size])


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    found: Server = request.getfixturevalue(request.param)
    found.query("CREATE DATABASE large")
    found.query("CREATE TABLE large.b (id int PRIMARY KEY, v longblob)")
    limit = found.query("SELECT @@GLOBAL.max_allowed_packet")[0][0]
    found.query("SET GLOBAL max_allowed_packet = 1073741824")
    yield found
    found.query(f"SET GLOBAL max_allowed_packet = {limit}")
    found.query("DROP DATABASE large")


def test_an_event_of_several_packets_arrives(server: Server) -> None:
    begin = end_of_binlog(server)
    sizes = {1: 3, 2: 0xFFFFFF - 100, 3: 40_000_000, 4: 5}
    for number, size in sizes.items():
        server.query(f"INSERT INTO large.b VALUES ({number}, REPEAT('{number}', {size}))")
    stream = record(server, begin)
    tables = MapTables()
    found = decode(stream, tables, _flavor(server), [1 << 22] * 20)
    values: dict[int, bytes] = {}
    for change in found:
        for block in getattr(change, "blocks", ()):
            after = block.struct("after")
            values |= dict(zip(after["id"].to_pylist(), after["v"].to_pylist(), strict=True))
    assert {i: hashlib.sha256(v).digest() for i, v in values.items()} == {
        i: hashlib.sha256(str(i).encode() * size).digest() for i, size in sizes.items()
    }


def test_a_compressed_transaction_larger_than_memory_should_be_leaves_in_pieces(mysql: Server) -> None:
    mysql.query("CREATE DATABASE packed")
    try:
        mysql.query("CREATE TABLE packed.p (id int AUTO_INCREMENT PRIMARY KEY, v varchar(1000))")
        begin = end_of_binlog(mysql)
        with mysql.connect() as db, db.cursor() as cursor:
            cursor.execute("SET SESSION binlog_transaction_compression = ON")
            cursor.execute("BEGIN")
            cursor.execute("INSERT INTO packed.p (v) VALUES (REPEAT('x', 1000))")
            for _ in range(15):
                cursor.execute("INSERT INTO packed.p (v) SELECT v FROM packed.p")
            cursor.execute("COMMIT")
            cursor.execute("INSERT INTO packed.p VALUES (1000000, 'last')")
        stream = record(mysql, begin)
        assert len(stream) < 3_000_000, "compressed"
        changes = decode(stream, MapTables(), Flavor.MYSQL, [1 << 18] * 10, capacity=1 << 15)
        pieces = [change.events for change in changes if isinstance(change, Spilled)]
        assert sum(pieces) == 1 << 15
        assert len(pieces) > 1
        assert sum(isinstance(change, SpillCommitted) for change in changes) == 1
    finally:
        mysql.query("DROP DATABASE packed")


def _flavor(server: Server) -> Flavor:
    return Flavor.MYSQL if server.name == "MySQL" else Flavor.MARIADB
