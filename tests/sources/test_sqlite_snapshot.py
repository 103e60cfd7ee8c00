"""Chunks of a SQLite table: each row once, with the values that the stream gives, and where they stand in it."""

from __future__ import annotations

import os
import pickle
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.sources.sqlite_support import config_of, exact, read_chunks, shop
from tests.support.seed import run_seed
from tidemill.errors import StructureChanged
from tidemill.model.position import Position
from tidemill.model.rowkeys import key_strings
from tidemill.model.snapshot import Chunk
from tidemill.sources.sqlite import SqliteSource
from tidemill.sources.sqlite.snapshot import SqliteSnapshotReader


def test_chunks_that_end_at_an_infinite_key_have_every_row_once(tmp_path: Path) -> None:
    """SQLite prints such a number as what it does not read."""
    path = tmp_path / "shop.db"
    with shop(path, "CREATE TABLE t (k REAL NOT NULL PRIMARY KEY, n INT)") as db:
        keys = [float("-inf"), *(n * 1e300 for n in range(19)), float("inf")]
        db.executemany("INSERT INTO t VALUES (?, ?)", [(key, n) for n, key in enumerate(keys)])
        source = SqliteSource(config_of(path))
        source.setup()
        with closing(source.snapshot_reader()) as reader:
            (table,) = reader.tables()
            for rows in (1, 5, 21):
                found = [row["after"]["n"] for chunk in read_chunks(reader, table, rows) for row in chunk]
                assert sorted(found) == list(range(21))


@pytest.mark.parametrize(
    "table",
    [
        "CREATE TABLE t (id INTEGER PRIMARY KEY DESC, n INT)",  # no rowid, and NULL as often as one likes
        "CREATE TABLE t (rowid TEXT PRIMARY KEY, n INT)",  # the rowid has another name
        "CREATE TABLE t (rowid TEXT PRIMARY KEY, oid INT, _rowid_ INT) WITHOUT ROWID",
    ],
)
def test_a_table_is_copied_whole_though_its_key_only_looks_like_a_rowid(tmp_path: Path, table: str) -> None:
    path = tmp_path / "shop.db"
    with shop(path, table) as db:
        keys = [None, None, 3, 1, 2] if "DESC" in table else ["a", "b", "3", "1", "2"]
        names = ", ".join(row[1] for row in db.execute("PRAGMA table_info(t)").fetchall()[:2])
        db.executemany(f"INSERT INTO t ({names}) VALUES (?, ?)", [(key, n) for n, key in enumerate(keys)])
        source = SqliteSource(config_of(path))
        source.setup()
        with closing(source.snapshot_reader()) as reader:
            (described,) = reader.tables()
            rows = [tuple(row["after"].values())[:2] for chunk in read_chunks(reader, described, 2) for row in chunk]
    assert sorted(rows, key=repr) == sorted(((key, n) for n, key in enumerate(keys)), key=repr)


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le"])
def test_chunks_that_end_at_a_text_with_a_nul_or_of_no_encoding_have_every_row_once(
    tmp_path: Path, encoding: str
) -> None:
    path = tmp_path / "shop.db"
    with shop(path, f"PRAGMA encoding = '{encoding}'", "CREATE TABLE t (k NOT NULL PRIMARY KEY, n INT)") as db:
        keys: list[Any] = ["a", *(f"a\0 {n}" for n in range(8)), "b", "it's", 1, 2.5, 10, b"\0", b"a"]
        db.executemany("INSERT INTO t VALUES (?, ?)", [(key, n) for n, key in enumerate(keys)])
        db.execute("INSERT INTO t VALUES (CAST(X'C328' AS TEXT), ?)", [len(keys)])
        source = SqliteSource(config_of(path))
        source.setup()
        with closing(source.snapshot_reader()) as reader:
            (table,) = reader.tables()
            for rows in (1, 3, 50):
                found = [row["after"]["n"] for chunk in read_chunks(reader, table, rows) for row in chunk]
                assert sorted(found) == list(range(len(keys) + 1))


@pytest.mark.parametrize("declared", ["INT", "TEXT", "BLOB", ""])
def test_a_key_is_looked_up_as_the_value_that_it_is_and_never_as_sql(tmp_path: Path, declared: str) -> None:
    """Any writer may put any text into a column of any type."""
    path = tmp_path / "shop.db"
    hostile = "0) UNION SELECT 99, pw FROM secrets --"
    keys: list[Any] = [7, 1.5, hostile, "abc", "it's", "b", "00", "1; DROP TABLE t", "X'00", "a\0b", "true", "-inf"]
    statements = (f"CREATE TABLE t (k {declared} NOT NULL PRIMARY KEY, n INT)", "CREATE TABLE secrets (pw TEXT)")
    with shop(path, *statements) as db:
        db.executemany("INSERT INTO t VALUES (?, ?)", [(key, n) for n, key in enumerate(keys)])
        db.execute("INSERT INTO secrets VALUES ('hunter2')")
        source = SqliteSource(config_of(path, tables=["t"]))
        source.setup()
        with closing(source.snapshot_reader()) as reader:
            (table,) = reader.tables()
            points: dict[Any, tuple[str, ...]] = {}
            with reader.read(Chunk(table.name, 0), table, [""]) as reading:
                for block in reading.blocks():
                    rows = block.batch.to_pylist()
                    numbers = [row["after"]["n"] for row in rows]
                    points |= dict(zip(numbers, key_strings(block, range(len(rows))), strict=True))
            assert len(points) == len(keys)
            for n, point in points.items():
                with reader.read(Chunk(table.name, 0, points=(point,)), table, [""]) as reading:
                    found = [row["after"]["n"] for block in reading.blocks() for row in block.batch.to_pylist()]
                assert found == [n], keys[int(n)]


@pytest.mark.parametrize("compiled", [True, False])
def test_chunks_have_every_row_once_with_its_exact_values(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr("tidemill.sources.sqlite.native.load_library", lambda: None)
    dice = Random(f"chunks {run_seed()}")
    path = tmp_path / "shop.db"
    tables = (
        "CREATE TABLE a (id INTEGER PRIMARY KEY, x, g INT AS (id * 2) STORED)",
        'CREATE TABLE b (k TEXT COLLATE NOCASE, "l m" REAL, x BLOB, PRIMARY KEY (k, "l m")) WITHOUT ROWID',
        "CREATE TABLE c (x)",
        "CREATE TABLE d (k TEXT PRIMARY KEY)",  # may be NULL
    )
    with shop(path, *tables) as db:
        for i in range(57):
            db.execute("INSERT INTO a (id, x) VALUES (?, ?)", (i * 3 - 20, dice.choice((None, 1, 1.5, "t", b"\0"))))
            key = (dice.choice(("a", "B", "it's", "ä")) + str(i), dice.uniform(-1, 1))
            db.execute("INSERT INTO b VALUES (?, ?, ?)", (*key, dice.randbytes(5)))
            db.execute("INSERT INTO c VALUES (?)", (i % 3,))
            db.execute("INSERT INTO d VALUES (?)", (None if i % 5 else str(i),))
        SqliteSource(config_of(path)).setup()
        reader = pickle.loads(pickle.dumps(SqliteSource(config_of(path)).snapshot_reader()))
        described = {table.table.name: table for table in reader.tables()}
        assert [described[name].key for name in "abcd"] == [("id",), ("k", "l m"), (), ()]
        assert [table.table.name for table in reader.tables(("main.b",))] == ["b"]
        for name, table in described.items():
            chunks = read_chunks(reader, table, 10)
            assert (len(chunks) > 5) == bool(table.key)
            rows = [exact(row["after"], 2, row) for chunk in chunks for row in chunk]
            wanted = db.execute(f"SELECT * FROM {name}").fetchall()
            shown = [str(tuple(_as_event(name, i, value) for i, value in enumerate(row))) for row in wanted]
            assert sorted(map(str, rows)) == sorted(shown)
            assert all(row["op"] == 7 for chunk in chunks for row in chunk)
        reader.close()


def _as_event(table: str, column: int, value: Any) -> Any:
    """Columns without a type hold text; what is of another class is written as text."""
    if (
        table in ("a", "c")
        and column == (1 if table == "a" else 0)
        and value is not None
        and not isinstance(value, str)
    ):
        return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else str(value)
    return value


def test_a_chunk_stands_where_its_read_saw_the_change_table_and_refuses_another_structure(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with shop(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)") as db:
        source = SqliteSource(config_of(path))
        source.setup()
        db.execute("INSERT INTO t VALUES (1), (2)")
        reader = source.snapshot_reader()
        [table] = reader.tables()
        assert reader.observe(Position("")) == ""
        with reader.read(Chunk(table.name, 0), table, []) as reading:
            db.execute("INSERT INTO t VALUES (3)")  # after the read began
            assert reading.high.startswith("2/")
            assert reading.observation is None
            assert sum(block.rows for block in reading.blocks()) == 2
        points = Chunk(table.name, 1, points=(("3",), ("1",)))
        with reader.read(points, table, []) as reading:
            assert reading.high.startswith("3/")
            assert [row["after"]["id"] for block in reading.blocks() for row in block.batch.to_pylist()] == [1, 3]
        db.execute("ALTER TABLE t ADD COLUMN x")
        with pytest.raises(StructureChanged), reader.read(Chunk(table.name, 2), table, []):
            pass
        reader.close()


def test_a_read_has_the_identity_of_the_file_that_it_read_though_another_was_put_in_its_place(tmp_path: Path) -> None:
    path, other = tmp_path / "shop.db", tmp_path / "other.db"
    for file in (path, other):
        with shop(file, "CREATE TABLE t (id INTEGER PRIMARY KEY)", journal="delete"):
            SqliteSource(config_of(file)).setup()
    reader = SqliteSnapshotReader(config_of(path))
    [table] = reader.tables()
    os.replace(other, path)
    with reader.read(Chunk(table.name, 0, "", None, None), table, []) as reading:
        assert reading.high.partition("@")[2] != table.high.partition("@")[2]
    reader.close()


def test_tables_with_rows_are_known_before_the_first_start(tmp_path: Path) -> None:
    """`doctor` warns that nobody copies their rows."""
    path = tmp_path / "shop.db"
    made = "CREATE TABLE full_1 (id INTEGER PRIMARY KEY)", "CREATE TABLE never (id TEXT PRIMARY KEY) WITHOUT ROWID"
    with shop(path, *made, "INSERT INTO full_1 VALUES (1)"), closing(SqliteSource(config_of(path))) as source:
        reader = source.snapshot_reader()
        assert reader.names_with_rows() == ["main.full_1"]
        source.setup()
        assert reader.names_with_rows() == ["main.full_1"]
        reader.close()
