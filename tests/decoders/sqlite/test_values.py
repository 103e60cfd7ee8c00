"""Values of SQLite: what a column holds, with SQLite as the judge; records, and bytes that are none."""

from __future__ import annotations

import math
import sqlite3
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.seed import run_seed
from tidemill.decoders.sqlite import (
    BLOB,
    INTEGER,
    NULL,
    REAL,
    TEXT,
    JoinedRecords,
    SqliteCells,
    data_type,
    read_records,
    to_arrow,
)
from tidemill.decoders.sqlite.columns import odd_text
from tidemill.errors import DecodeError
from tidemill.sources.sqlite.native import CellReader, load_library

DECLARED = (
    "INTEGER",
    "BIGINT",
    "BOOLEAN",
    "REAL",
    "DECIMAL(10,2)",
    "TEXT",
    "VARCHAR(9)",
    "BLOB",
    "DATETIME",
    "JSON",
    "",
)
CLASSES = {"integer": INTEGER, "real": REAL, "text": TEXT, "blob": BLOB, "null": NULL}


def _value(dice: Random) -> Any:
    return dice.choice([
        None, 0, 1, 2, -1, 127, -128, 1 << 15, -(1 << 23), 1 << 31, (1 << 47) - 1, (1 << 53) + 1,
        (1 << 63) - 1, -(1 << 63),
        0.0, -0.0, 1.5, 0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 2.0**53, -1e18,
        "", "a", "1", "1.5", "ключ\n", "X'00'", "'q'", "nul\0inside", "😀", "x" * dice.choice((55, 56, 70_000)),
        b"", b"\0", b"\xff\xfe", dice.randbytes(dice.randint(1, 300)),
        "2026-11-17 08:00:00", '{"a": 1}', dice.randint(-(1 << 63), (1 << 63) - 1), dice.uniform(-1e9, 1e9),
    ])  # fmt: skip


def _same(kind: pa.DataType, cells: SqliteCells, j: int, row: int, array: pa.Array, bad: Any, value: Any) -> bool:
    """Whether Arrow, or the text beside it, says what the database has."""
    held = array[row].as_py()
    if value is None:
        return held is None and (bad is None or not bad[row])
    if bad is not None and bad[row]:
        text = odd_text(cells, j, row)
        back = sqlite3.connect(":memory:").execute(f"SELECT {_literal(text, value)}").fetchone()[0]
        return type(back) is type(value) and back == value
    if pa.types.is_floating(kind):
        return struct.pack("<d", held) == struct.pack("<d", float(value)) and float(value) == value
    if pa.types.is_boolean(kind):
        return int(held) == value
    return type(held) is type(value) and held == value


def _literal(text: str, value: Any) -> str:
    if isinstance(value, str):
        return (
            text
            if text.startswith("'") and text.endswith("'")
            else "'" + text.replace("'", "''").replace("\0", "' || char(0) || '") + "'"
        )
    return {"Infinity": "9e999", "-Infinity": "-9e999"}.get(text, text)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
@pytest.mark.parametrize("compiled", [True, False])
def test_every_declared_type_keeps_every_value_exactly(
    tmp_path: Path, encoding: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("tidemill.sources.sqlite.native.load_library", lambda: None)
    dice = Random(f"values {run_seed()}")
    columns = ", ".join(f"c{i} {declared}" for i, declared in enumerate(DECLARED))
    db = sqlite3.connect(tmp_path / "values.db", isolation_level=None)
    db.execute(f"PRAGMA encoding = '{encoding}'")
    db.execute(f"CREATE TABLE t ({columns})")
    for _ in range(300):
        db.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(DECLARED))})", [_value(dice) for _ in DECLARED])
    reader = CellReader(str(tmp_path / "values.db"), 1000, "test", rows=1000)
    assert reader.compiled == compiled
    cells = reader.read("SELECT * FROM t WHERE rowid > ?1 AND rowid <= ?2", (0, 1000), len(DECLARED))
    assert cells.rows == 300
    for j, declared in enumerate(DECLARED):
        kind = data_type(declared).arrow
        array, bad = to_arrow(cells, j, kind)
        array.validate(full=True)
        rows = db.execute(f"SELECT typeof(c{j}), c{j} FROM t").fetchall()
        assert cells.kind[j].tolist() == [CLASSES[name] for name, _ in rows]
        for row, (_, value) in enumerate(rows):
            assert _same(kind, cells, j, row, array, bad, value), (declared, value, array[row])
    reader.close()
    db.close()


def test_text_that_is_no_utf8_is_kept_as_a_literal(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "values.db", isolation_level=None)
    db.execute("CREATE TABLE t (c TEXT)")
    db.execute("INSERT INTO t VALUES (CAST(X'C328' AS TEXT)), ('fine')")
    reader = CellReader(str(tmp_path / "values.db"), 1000, "test", rows=10)
    cells = reader.read("SELECT c FROM t WHERE rowid > ?1 AND rowid <= ?2", (0, 10), 1)
    array, bad = to_arrow(cells, 0, pa.string())
    assert array.to_pylist() == [None, "fine"]
    assert bad is not None
    assert bad.tolist() == [True, False]
    assert odd_text(cells, 0, 0) == "CAST(X'C328' AS TEXT)"
    reader.close()
    db.close()


def test_a_value_that_is_larger_than_the_buffer_makes_it_grow_and_a_read_ends_at_its_limits(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "values.db", isolation_level=None)
    db.execute("CREATE TABLE t (c BLOB)")
    sizes = [10, 3_000_000, 20, 40_000, 0, 7]
    db.executemany("INSERT INTO t VALUES (zeroblob(?))", [(size,) for size in sizes])
    reader = CellReader(str(tmp_path / "values.db"), 1000, "test", rows=3, limit_bytes=10_000_000)
    sql = "SELECT rowid, c FROM t WHERE rowid > ?1 AND rowid <= ?2 ORDER BY rowid"
    found = [reader.read(sql, (first, 100), 2).size[1].tolist() for first in (0, 3)]
    assert found == [sizes[:3], sizes[3:]]
    small = CellReader(str(tmp_path / "values.db"), 1000, "test", rows=10, limit_bytes=100)
    assert small.read(sql, (0, 100), 2).size[1].tolist() == sizes[:2]
    reader.close()
    small.close()
    db.close()


def test_sqlite_is_reached_through_the_library_of_python_itself() -> None:
    assert load_library() is not None, "on Debian's and pyenv's Python it can be reached"


def _varint(value: int) -> bytes:
    if value >= 1 << 56:
        head = value >> 8
        return bytes([*(0x80 | (head >> shift) & 0x7F for shift in range(49, -1, -7)), value & 0xFF])
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(0x80 | value & 0x7F)
    return bytes(reversed(groups))


def record(values: list[Any]) -> bytes:
    """As SQLite writes it, with the shortest forms or longer ones: both are right."""
    types, body = b"", b""
    for value in values:
        match value:
            case None:
                types += _varint(0)
            case 0 | 1 if isinstance(value, int):
                types += _varint(8 + value)
            case int():
                for serial, size in ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 8)):
                    if -(1 << (8 * size - 1)) <= value < 1 << (8 * size - 1):
                        types, body = types + _varint(serial), body + value.to_bytes(size, "big", signed=True)
                        break
            case float():
                types, body = types + _varint(7), body + struct.pack(">d", value)
            case str():
                data = value.encode()
                types, body = types + _varint(13 + 2 * len(data)), body + data
            case bytes():
                types, body = types + _varint(12 + 2 * len(value)), body + value
    size = len(types) + 1
    if size > 127:
        size += 1
    return _varint(size) + types + body


def _read_back(cells: SqliteCells, j: int, row: int) -> Any:
    match int(cells.kind[j, row]):
        case 1:
            return int(cells.number[j, row])
        case 2:
            return float(cells.number[j, row : row + 1].view(np.float64)[0])
        case 3:
            return cells.bytes_of(j, row).decode()
        case 4:
            return cells.bytes_of(j, row)
    return None


def test_records_are_read_as_they_were_written_also_shorter_ones(tmp_path: Path) -> None:
    dice = Random(f"records {run_seed()}")
    rows = [[_value(dice) for _ in range(dice.choice((6, 6, 4)))] for _ in range(500)]
    cells = read_records(JoinedRecords.of([record(row) if i % 7 else None for i, row in enumerate(rows)]), 6)
    for i, row in enumerate(rows):
        expected = row + [None] * (6 - len(row)) if i % 7 else [None] * 6
        found = [_read_back(cells, j, i) for j in range(6)]
        assert list(map(repr, found)) == list(map(repr, expected))


GOLDEN = [
    # pyturso 0.8.3: INSERT INTO t VALUES (1, 'x', x'00ff', 1.5) of t (a integer primary key, b text, c blob, d real)
    ("insert", "05090f1007" + "78" + "00ff" + "3ff8000000000000", [1, "x", b"\0\xff", 1.5]),
    # ... VALUES (2, 'y', null, 2.0)
    ("null", "05010f0007" + "02" + "79" + "4000000000000000", [2, "y", None, 2.0]),
]


@pytest.mark.parametrize(("name", "data", "expected"), GOLDEN, ids=[name for name, *_ in GOLDEN])
def test_golden_records(name: str, data: str, expected: list[Any]) -> None:
    cells = read_records(JoinedRecords.of([bytes.fromhex(data)]), 4)
    assert [_read_back(cells, j, 0) for j in range(4)] == expected


def test_cut_and_flipped_records_are_decode_errors_and_nothing_else() -> None:
    dice = Random(f"fuzz {run_seed()}")
    refused = 0
    for _ in range(3000):
        data = bytearray(record([_value(dice) for _ in range(dice.randint(0, 5))])[:400])
        for _ in range(dice.randint(0, 3)):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        if dice.random() < 0.3:
            data = data[: dice.randint(0, len(data))]
        try:
            cells = read_records(
                JoinedRecords.of([b"\x00", bytes(data)]) if dice.random() < 0.1 else JoinedRecords.of([bytes(data)]), 5
            )
        except DecodeError:
            refused += 1
            continue
        for j in range(5):
            to_arrow(cells, j, dice.choice((pa.string(), pa.int64(), pa.float64(), pa.binary(), pa.bool_())))
    assert refused > 500
