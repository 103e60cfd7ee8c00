"""Chunks of a Turso table: each row once, with the values that the stream gives, and where they stand in it."""

from __future__ import annotations

import pickle
from contextlib import closing
from pathlib import Path

import pytest

from tests.sources.sqlite_support import exact, read_chunks
from tests.sources.test_turso import captured, caught_up, writer
from tidemill.errors import StructureChanged
from tidemill.model.change import Committed
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk
from tidemill.schema.registry import SchemaRegistry
from tidemill.sources.turso import TursoConfig, TursoSource
from tidemill.sources.turso.client import TursoFile
from tidemill.sources.turso.snapshot import TursoSnapshotReader

TABLES = (
    "CREATE TABLE a (id INTEGER PRIMARY KEY, r REAL, s TEXT, b BLOB, x)",
    'CREATE TABLE b (k TEXT NOT NULL COLLATE NOCASE, "l m" REAL NOT NULL, x BLOB, PRIMARY KEY (k, "l m"))',
    "CREATE TABLE c (x)",
    "CREATE TABLE d (k TEXT PRIMARY KEY)",  # may be NULL
)


def _reader(path: Path) -> TursoSnapshotReader:
    found: TursoSnapshotReader = pickle.loads(
        pickle.dumps(TursoSource(TursoConfig(id="shop", path=path)).snapshot_reader())
    )
    return found


def test_chunks_have_every_row_once_with_the_values_that_the_stream_gives(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    values = (None, 1, -(1 << 63), (1 << 63) - 1, 1.5, -0.0, float("inf"), "", "ä😀", "n\0ul", b"", b"\0\xff", "1e3")
    with writer(path, *TABLES) as db:
        with captured(path, tmp_path) as running:
            for i in range(57):
                here = [values[(i * step + step) % len(values)] for step in (1, 2, 3, 4)]
                db.execute("INSERT INTO a VALUES (?, ?, ?, ?, ?)", (i * 3 - 20, *here))
                key = (("a", "B", "it's", "ä", "n\0")[i % 5] + str(i % 9), (float("-inf"), i / 7, 1e300)[i % 3])
                db.execute("INSERT OR REPLACE INTO b VALUES (?, ?, ?)", (*key, bytes([i])))
                db.execute("INSERT INTO c VALUES (?)", (i % 3,))
                db.execute("INSERT INTO d VALUES (?)", (None if i % 5 else str(i),))
            events = caught_up(db, running)
        counts = {name: db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in "abcd"}
        with closing(_reader(path)) as reader:
            described = {table.table.name: table for table in reader.tables()}
            assert [described[name].key for name in "abcd"] == [("id",), ("k", "l m"), (), ()]
            assert [table.table.name for table in reader.tables(("main.b",))] == ["b"]
            for name, table in described.items():
                chunks = read_chunks(reader, table, 10)
                assert (len(chunks) > 3) == bool(table.key)
                rows = [str(exact(row["after"], 2, row)) for chunk in chunks for row in chunk]
                assert len(rows) == counts[name]
                told = [str(exact(e["after"], 2, e)) for e in events if e["table"] == f"main.{name}" and e["after"]]
                assert set(rows) <= set(told)
                assert name == "b" or sorted(rows) == sorted(told)  # b has rows that others took the place of


def test_a_range_of_keys_is_searched_and_not_scanned(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, *TABLES), closing(_reader(path)) as reader:
        asked: list[str] = []
        for table in reader.tables(("a", "b")):
            bounds = [("5",), ("9",)] if table.table.name == "a" else [("'a'", "1.0"), ("'b'", "2.0")]
            with reader.read(Chunk(table.name, 0, "", *bounds), table, []) as reading:
                asked.append(reading._query)
        with closing(TursoFile(path, "multiprocess_wal", "here")) as file:
            for query in asked:
                plan = str(file.rows(f"EXPLAIN QUERY PLAN {query}"))
                assert "SEARCH" in plan, plan


def test_a_chunk_stands_where_its_read_saw_the_change_table_and_refuses_another_structure(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, "CREATE TABLE t (id INTEGER PRIMARY KEY)") as db, closing(_reader(path)) as reader:
        db.execute("INSERT INTO t VALUES (1), (2)")
        [table] = reader.tables()
        assert reader.observe(Position("")) == ""
        with reader.read(Chunk(table.name, 0), table, []) as reading:
            last = db.execute("SELECT max(change_id) FROM turso_cdc").fetchone()[0]
            db.execute("INSERT INTO t VALUES (3)")  # after the read began
            assert reading.high.startswith(f"{last}@")
            assert reading.observation is None
            assert sum(block.rows for block in reading.blocks()) == 2
        points = Chunk(table.name, 1, points=(("3",), ("1",)))
        with reader.read(points, table, []) as reading:
            assert [row["after"]["id"] for block in reading.blocks() for row in block.batch.to_pylist()] == [1, 3]
        db.execute("ALTER TABLE t ADD COLUMN x")
        with pytest.raises(StructureChanged), reader.read(Chunk(table.name, 2), table, []):
            pass


def test_a_chunk_waits_until_the_stream_has_looked_at_a_schema_that_no_record_tells(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with writer(path, "CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT)") as db:
        source = TursoSource(TursoConfig(id="shop", path=path))
        registry = SchemaRegistry(tmp_path / "registry.sqlite")
        with closing(registry), closing(source), closing(_reader(path)) as reader:
            source.open(None, registry)
            list(source.changes(0))
            db.execute("ALTER TABLE t RENAME COLUMN x TO y")
            [table] = reader.tables()
            assert not source.reached(table.high, source.began)
            [renamed] = source.changes(1)
            assert source.reached(table.high, source.began)
            (numbered,) = source.register([table.table], registry, source.began)
            assert isinstance(renamed, Committed)
            assert [block.table.version for block in renamed.blocks] == [numbered.version]
            db.execute("INSERT INTO t VALUES (1, 'a')")
            with reader.read(Chunk(table.name, 0), table, []) as reading:
                assert not source.reached(reading.high, source.began)
                list(source.changes(1))
                assert source.reached(reading.high, source.began)
