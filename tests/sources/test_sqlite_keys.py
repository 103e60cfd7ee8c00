"""Keys that SQLite tells apart by their storage class alone are told apart by every reader of events, too."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.sources.sqlite_support import captured, caught_up, config_of, copy_of, shop
from tidemill.formats.json import JsonFormat
from tidemill.model.rowkeys import key_strings, keys_of
from tidemill.model.snapshot import Chunk
from tidemill.sources.sqlite import SqliteSource

ALIKE: tuple[Any, ...] = (
    1, 1.0, "1", "'1'", "''1''", b"1", "X'31'", "x'31'", "'X''31'''", 1.5, "1.5", 1e300, "1e+300", "1E300", -7, "-7",
    math.inf, -math.inf, "Infinity", "-Infinity", "inf", "", b"", "''", "X''", "31", b"31",
    "MQ==", "'MQ=='", 1234, "1234", b"\xd7m\xf8", b"\x22\x7b\x62\x9e\x7c\xb2", "true", "a\nb", "it's",
    "CAST(1234 AS INTEGER)",
    "CAST(X'C328' AS TEXT)", "CAST(1.5 AS REAL)", "null", "2026-11-17",
)  # fmt: skip


@pytest.mark.parametrize("declared", ["", "ANY", "TEXT", "BLOB", "INT", "REAL", "NUMERIC", "BOOLEAN", "DATETIME"])
def test_no_two_keys_of_a_table_have_one_text_in_blocks_and_in_json_and_each_is_found_by_its_own(
    tmp_path: Path, declared: str
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, f"CREATE TABLE t (k {declared} NOT NULL PRIMARY KEY, n INT)") as db:
        db.executemany("INSERT OR IGNORE INTO t VALUES (?, ?)", [(key, n) for n, key in enumerate(ALIKE)])
        db.execute("INSERT INTO t VALUES (CAST(X'C328' AS TEXT), -1)")
        count = db.execute("SELECT count(*) FROM t").fetchone()[0]
        source = SqliteSource(config_of(path))
        source.setup()
        with closing(source.snapshot_reader()) as reader:
            (table,) = reader.tables()
            with reader.read(Chunk(table.name, 0), table, [""]) as reading:
                (block,) = reading.blocks()
            strings = key_strings(block, range(block.rows))
            documents = JsonFormat().encode_key(block).to_pylist()
            assert [len(set(each)) for each in (keys_of(block, "after").to_pylist(), documents)] == [count, count]
            for row, (key,) in enumerate(strings):
                with reader.read(Chunk(table.name, 0, points=((key,),)), table, [""]) as reading:
                    found = [row["after"]["n"] for each in reading.blocks() for row in each.batch.to_pylist()]
                assert block.batch.column("after")[row]["n"].as_py() in found, key
                if declared in ("", "ANY", "TEXT", "BLOB", "DATETIME"):
                    assert len(found) == 1, key


def test_rows_whose_keys_differ_in_their_class_alone_are_two_rows_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with (
        shop(path, "CREATE TABLE t (k PRIMARY KEY, n INT)") as db,
        captured(path, tmp_path) as running,
    ):
        db.execute("INSERT INTO t VALUES (1, 10), ('1', 20), (X'31', 30), ('abc', 40)")
        db.execute("UPDATE t SET n = n + 1 WHERE typeof(k) = 'text'")
        db.execute("DELETE FROM t WHERE typeof(k) = 'integer'")
        db.execute("UPDATE t SET k = 1 WHERE k = '1'")  # another key
        events = caught_up(db, running)
    assert copy_of(events, "t", (0,)) == {
        ("1",): ("1", 21),
        ("X'31'",): ("X'31'", 30),
        ("abc",): ("abc", 41),
    }
    assert [event["op"] for event in events] == [1, 1, 1, 1, 2, 2, 3, 3, 1]
