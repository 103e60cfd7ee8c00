"""PostgreSQL tables read in chunks: which rows, under which structure, and what a read proves about the stream."""

from __future__ import annotations

import pickle
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.decoders.pgoutput import kinds
from tests.sources.support import config, execute, opened, query
from tests.support.capturing import capturing, eventually
from tests.support.seed import dice
from tidemill.contracts import Outcome
from tidemill.errors import SetupError, StructureChanged
from tidemill.log import LogReader
from tidemill.model.block import Block, Op
from tidemill.model.position import Position
from tidemill.model.rowkeys import key_strings
from tidemill.model.snapshot import Bound, Chunk, SnapshotTable
from tidemill.sources.postgres import PostgresSource
from tidemill.sources.postgres.snapshot import PostgresSnapshotReader
from tidemill.sources.postgres.snapshot.observation import Observation, prove

NOWHERE = Position("0/0")


def reader_of(dsn: str, *tables: str, **options: Any) -> PostgresSnapshotReader:
    settings = config(dsn, *tables, **options)
    with opened(settings) as source:
        source.setup()
        return pickle.loads(pickle.dumps(source.snapshot_reader()))


def test_tables_with_rows_are_known_before_the_first_start(database: str) -> None:
    """By who captures and may not read them: `doctor` warns that nobody copies their rows."""
    execute(
        database,
        "CREATE TABLE full_1 (id int PRIMARY KEY)", "INSERT INTO full_1 VALUES (1)",
        "CREATE TABLE never (id int PRIMARY KEY)",
        "CREATE TABLE gone (id int PRIMARY KEY)", "INSERT INTO gone VALUES (1)", "DELETE FROM gone", "VACUUM gone",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_0 PARTITION OF parts FOR VALUES FROM (0) TO (10)", "INSERT INTO parts VALUES (5)",
    )  # fmt: skip
    with opened(config(database, "public.*")) as source:
        reader = source.snapshot_reader()
        assert reader.names_with_rows() == ["public.full_1", "public.parts"]
        source.setup()
        assert reader.names_with_rows() == ["public.full_1", "public.parts"]
        reader.close()


def described(reader: PostgresSnapshotReader, name: str) -> SnapshotTable:
    (table,) = reader.tables([name])
    return replace(table, table=replace(table.table, version=1, sequence=1).with_fingerprint())


def walk(reader: PostgresSnapshotReader, table: SnapshotTable, rows: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    for part in table.parts:
        lower: Bound | None = None
        while True:
            upper = reader.plan(table, part, lower, rows)
            chunks.append(Chunk(table.name, len(chunks), part, lower, upper))
            if upper is None:
                break
            lower = upper
    return chunks


def copy(reader: PostgresSnapshotReader, table: SnapshotTable, *chunks: Chunk) -> list[list[dict[str, Any]]]:
    found = []
    for chunk in chunks:
        with reader.read(chunk, table, []) as reading:
            found.append([row["after"] for block in reading.blocks() for row in block.batch.to_pylist()])
    return found


@pytest.mark.parametrize(
    ("key", "make"),
    [
        ("bigint", "n"),
        ("text", "md5(n::text)"),
        ('text COLLATE "C"', "chr(60 + n % 40) || '\\''  || n"),
        ("uuid", "md5(n::text)::uuid"),
        ("numeric", "n / 7.0"),
        ("timestamptz", "to_timestamp(n * 1e5)"),
        ("char(9)", "n::text"),
        ("bytea", "decode(md5(n::text), 'hex')"),
        ("public.ltree", "('a.b' || n)::public.ltree"),
        ("double precision", "CASE n WHEN 5 THEN 'NaN' WHEN 6 THEN '-Infinity' ELSE n * 1e-300 END"),
    ],
)
def test_chunks_by_a_key_of_any_type_have_every_row_once(database: str, key: str, make: str) -> None:
    execute(
        database, "CREATE EXTENSION ltree SCHEMA public", f"CREATE TABLE t (k {key} PRIMARY KEY, n int)",
        f"INSERT INTO t SELECT {make.replace(chr(92) + chr(39), chr(39) * 2)}, n FROM generate_series(1, 205) n",
    )  # fmt: skip
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    chunks = walk(reader, table, 50)
    found = copy(reader, table, *chunks)
    reader.close()
    assert [len(rows) for rows in found] == [50, 50, 50, 50, 5]
    assert sorted(row["n"] for rows in found for row in rows) == list(range(1, 206))


def test_an_integer_key_with_few_gaps_is_cut_into_ranges_without_a_walk_over_its_index(database: str) -> None:
    """No range has more rows than a chunk may have; where most values have no row, the index tells where chunks end."""
    execute(
        database, "CREATE TABLE dense (k int PRIMARY KEY)", "CREATE TABLE sparse (k bigint PRIMARY KEY)",
        "INSERT INTO dense SELECT n FROM generate_series(-100, 104) n WHERE n NOT BETWEEN 20 AND 60",
        "INSERT INTO sparse SELECT n * 1000 FROM generate_series(1, 205) n", "ANALYZE",
    )  # fmt: skip
    reader = reader_of(database, "public.dense", "public.sparse")
    dense, sparse = described(reader, "public.dense"), described(reader, "public.sparse")
    chunks = walk(reader, dense, 50)
    execute(database, "INSERT INTO dense VALUES (-101), (105), (2147483647)")
    found = [[row["k"] for row in rows] for rows in copy(reader, dense, *chunks)]
    assert [chunk.upper for chunk in chunks] == [("-51",), ("-1",), ("49",), ("99",), None]
    assert [len(rows) for rows in found] == [51, 50, 20, 39, 7]
    assert sorted(key for rows in found for key in rows) == [*range(-101, 20), *range(61, 106), 2147483647]
    assert [len(rows) for rows in copy(reader, sparse, *walk(reader, sparse, 50))] == [50, 50, 50, 50, 5]
    reader.close()


def test_chunks_by_a_composite_key_go_by_its_index_and_end_though_the_table_grows(database: str) -> None:
    execute(
        database, "CREATE TABLE t (a int, b text, n int, PRIMARY KEY (b, a))",
        "INSERT INTO t SELECT n % 7, 'it''s ' || n / 7, n FROM generate_series(0, 99) n",
    )  # fmt: skip
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    assert table.key == ("b", "a")
    first = reader.plan(table, "", None, 30)
    execute(database, "INSERT INTO t SELECT n, 'zzz', n FROM generate_series(1000, 1099) n")
    chunks, lower = [Chunk(table.name, 0, "", None, first)], first
    while lower is not None:
        upper = reader.plan(table, "", lower, 30)
        chunks.append(Chunk(table.name, len(chunks), "", lower, upper))
        lower = upper
    assert len(chunks) == 4, "rows that came later come by the stream"
    found = copy(reader, table, *chunks)
    reader.close()
    assert sorted(row["n"] for rows in found for row in rows) == [*range(100), *range(1000, 1100)]


def test_points_are_read_by_their_keys(database: str) -> None:
    execute(
        database, "CREATE TABLE t (a bytea, b timestamptz, n int, PRIMARY KEY (a, b))",
        "INSERT INTO t SELECT decode(md5(n::text), 'hex'), to_timestamp(n), n FROM generate_series(1, 9) n",
    )  # fmt: skip
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    points = (("c81e728d9d4c2f636f067f89cc14862c", "1970-01-01 00:00:02Z"), ("00", "1970-01-01 00:00:03Z"))
    assert [[row["n"] for row in rows] for rows in copy(reader, table, Chunk(table.name, 0, points=points))] == [[2]]
    reader.close()


def test_every_row_is_found_again_by_its_key_whatever_its_type(database: str) -> None:
    """By the text that verify, and rows that moved, are looked up with: years before Christ were an error, midnight at
    the end of a day no text, and the operators of an extension's type not found."""
    execute(database, *kinds.SETUP)
    pick, missed, tables = dice("points"), {}, 0
    for n, kind in enumerate(kinds.KINDS):
        if kind.type == "xml" or kind.since > 18:
            continue
        try:
            execute(database, f"CREATE TABLE t{n} (id int, k {kind.type}, PRIMARY KEY (id, k))")
        except psycopg.errors.UndefinedObject:
            continue  # no order, no key
        texts = pick.sample(found := [*kind.values(pick)], min(20, len(found)))
        with psycopg.connect(database, autocommit=True) as db:
            for number, value in enumerate(texts):
                with suppress(psycopg.errors.DataError):  # an older server
                    db.execute(f"INSERT INTO t{n} VALUES (%s, %s::text::{kind.type})".encode(), [number, value])
    reader = reader_of(database, "public.t%")
    for table in reader.tables():
        with reader.read(Chunk(table.name, 0), table, []) as reading:
            points = [point for block in reading.blocks() for point in key_strings(block, range(block.rows))]
        if () in points:
            continue
        tables += 1
        with reader.read(Chunk(table.name, 0, points=tuple(points)), table, []) as reading:
            images = [block.struct("after") for block in reading.blocks()]
        there = {id for image in images if image is not None for id in image["id"].to_pylist()}
        if len(there) != len(points):
            missed[table.table.columns[1].type.native] = [point for point in points if int(point[0]) not in there]
    reader.close()
    assert missed == {}
    assert tables > 30


def test_tables_of_no_row_of_one_row_and_without_a_key_are_one_chunk(database: str) -> None:
    execute(
        database, "CREATE TABLE none (id int PRIMARY KEY)", "CREATE TABLE one (id int PRIMARY KEY)",
        "INSERT INTO one VALUES (7)", "CREATE TABLE keyless (a text)",
        "INSERT INTO keyless VALUES (NULL), (E'a\\tb\\\\N'), (''), (E'\\\\N'), (E'\\n\\r\\b\\f' || chr(11))",
    )  # fmt: skip
    reader = reader_of(database)
    found = {}
    for name in ("none", "one", "keyless"):
        table = described(reader, f"public.{name}")
        chunks = walk(reader, table, 2)
        found[name] = copy(reader, table, *chunks)
    reader.close()
    assert found["none"] == [[]]
    assert found["one"] == [[{"id": 7}]]
    assert [row["a"] for row in found["keyless"][0]] == [None, "a\tb\\N", "", "\\N", "\n\r\b\f\v"]


def test_a_large_table_without_a_key_is_read_in_ranges_of_its_pages(database: str) -> None:
    execute(
        database, "CREATE TABLE keyless (n int, pad text)",
        "INSERT INTO keyless SELECT n, repeat('x', 200) FROM generate_series(1, 3000) n", "ANALYZE keyless",
    )  # fmt: skip
    reader = reader_of(database, "public.keyless")
    table = described(reader, "public.keyless")
    chunks = walk(reader, table, 500)
    found = copy(reader, table, *chunks)
    assert 5 <= len(chunks) <= 7
    assert max(map(len, found)) < 1000
    assert [row["n"] for rows in found for row in rows] == list(range(1, 3001))
    (plan,) = query(database, "EXPLAIN SELECT n FROM ONLY keyless WHERE ctid >= '(1,0)' AND ctid < '(2,0)'")[0]
    assert "Tid Range Scan" in plan
    execute(database, "DELETE FROM keyless WHERE n % 2 = 0", "VACUUM FULL keyless")
    with pytest.raises(StructureChanged, match="written anew"):
        copy(reader, table, chunks[1])
    other = pickle.loads(pickle.dumps(reader))
    with pytest.raises(StructureChanged, match="written anew"):
        other.plan(table, "", chunks[1].upper, 500)
    other.close()
    assert sum(map(len, copy(reader, table, *walk(reader, table, 500)))) == 1500
    reader.close()


def test_pages_of_a_table_whose_updates_are_not_published_are_not_divided(database: str) -> None:
    """A row that moves without an event would be in no chunk."""
    execute(
        database, "CREATE TABLE keyless (n int, pad text)",
        "INSERT INTO keyless SELECT n, repeat('x', 200) FROM generate_series(1, 1000) n", "ANALYZE keyless",
        "CREATE PUBLICATION inserts FOR TABLE keyless WITH (publish = 'insert')",
    )  # fmt: skip
    reader = reader_of(database, "public.keyless", publication="inserts")
    assert len(walk(reader, described(reader, "public.keyless"), 100)) == 1
    reader.close()


def test_row_filters_column_lists_and_conditions_hold_for_the_copy(database: str) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, secret text, shown text)",
        "INSERT INTO t SELECT n, 'secret', 'x' || n FROM generate_series(1, 20) n",
        "CREATE PUBLICATION only_some FOR TABLE t (id, shown) WHERE (id > 10)",
    )  # fmt: skip
    reader = reader_of(database, "public.t", publication="only_some")
    table = described(reader, "public.t")
    (rows,) = copy(reader, table, Chunk(table.name, 0, where="shown <> 'x12'"))
    reader.close()
    assert rows == [{"id": n, "shown": f"x{n}"} for n in range(11, 21) if n != 12]


def test_partitions_are_parts_of_their_root(database: str) -> None:
    execute(
        database, "CREATE TABLE t (id int, r text, PRIMARY KEY (id, r)) PARTITION BY LIST (r)",
        'CREATE TABLE "t-a" PARTITION OF t FOR VALUES IN (\'a\')', "CREATE TABLE t_b PARTITION OF t DEFAULT",
        "INSERT INTO t SELECT n, (ARRAY['a', 'b'])[1 + n % 2] FROM generate_series(1, 10) n",
    )  # fmt: skip
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    assert len(table.parts) == 2
    assert table.name == "public.t"
    found = copy(reader, table, *walk(reader, table, 3))
    reader.close()
    assert sorted(row["id"] for rows in found for row in rows) == list(range(1, 11))


def test_columns_that_a_key_only_includes_are_not_part_of_it(database: str) -> None:
    """A row comparison with a NULL among them would leave rows out."""
    execute(
        database, "CREATE TABLE t (id int, pay text, n int, PRIMARY KEY (id) INCLUDE (pay))",
        "INSERT INTO t SELECT n, NULL, n FROM generate_series(1, 105) n",
        "CREATE TABLE u (id int NOT NULL, pay text, n int)", "CREATE UNIQUE INDEX ui ON u (id) INCLUDE (pay)",
        "ALTER TABLE u REPLICA IDENTITY USING INDEX ui", "INSERT INTO u SELECT * FROM t",
        "CREATE TABLE f (id int, pay text, n int, PRIMARY KEY (id) INCLUDE (pay))",
        "ALTER TABLE f REPLICA IDENTITY FULL", "INSERT INTO f SELECT * FROM t",
    )  # fmt: skip
    reader = reader_of(database, "public.*")
    for name in ("public.t", "public.u", "public.f"):
        table = described(reader, name)
        assert table.key == table.table.key == ("id",)
        found = copy(reader, table, *walk(reader, table, 20))
        assert sorted(row["n"] for rows in found for row in rows) == list(range(1, 106))
    reader.close()


def test_a_policy_that_hides_rows_is_an_error_and_not_a_copy_without_them(database: str) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, tenant text)",
        "INSERT INTO t SELECT n, 't' || n % 3 FROM generate_series(1, 30) n", "ALTER TABLE t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY p ON t USING (tenant = 't0')", "CREATE PUBLICATION pub FOR TABLE t",
        "DROP ROLE IF EXISTS hidden_rows", "CREATE ROLE hidden_rows LOGIN REPLICATION",
        "GRANT SELECT ON t TO hidden_rows",
    )  # fmt: skip
    settings = config(make_conninfo(database, user="hidden_rows"), "public.t", publication="pub", snapshot={})
    reader = PostgresSnapshotReader(settings)
    table = described(reader, "public.t")
    with pytest.raises(SetupError, match="row-level security") as caught:
        reader.plan(table, "", None, 50)
    assert "BYPASSRLS" in caught.value.fix
    with pytest.raises(SetupError, match="row-level security") as caught:
        copy(reader, table, Chunk(table.name, 0))
    assert "BYPASSRLS" in caught.value.fix
    (check,) = [check for check in PostgresSource(settings).doctor() if check.name == "row level security"]
    assert (check.outcome, "public.t" in check.detail) == (Outcome.FAIL, True)
    execute(database, "ALTER ROLE hidden_rows BYPASSRLS")
    reader.close()
    assert len(copy(reader, table, Chunk(table.name, 0))[0]) == 30
    assert all(check.name != "row level security" for check in PostgresSource(settings).doctor())
    reader.close()
    execute(database, "DROP OWNED BY hidden_rows", "DROP ROLE hidden_rows")


def test_a_partition_that_is_gone_is_a_change_of_the_structure(database: str) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    )  # fmt: skip
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    execute(database, "DROP TABLE t1")
    with pytest.raises(StructureChanged), reader.read(Chunk(table.name, 0, table.parts[1]), table, []):
        pass
    assert described(reader, "public.t").parts == table.parts[:1]
    reader.close()


def test_a_table_that_changed_is_not_read_under_its_old_structure(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'x')")
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    for statement in ("ALTER TABLE t ADD b int", "ALTER TABLE t RENAME b TO c", "DROP TABLE t"):
        execute(database, statement)
        with pytest.raises(StructureChanged), reader.read(Chunk(table.name, 0), table, []):
            pass
        found = reader.tables(["public.t"])
        table = found[0] if found else table
    assert found == []
    reader.close()


def test_a_read_holds_off_who_would_write_the_table_anew_and_nobody_else(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    with reader.read(Chunk(table.name, 0), table, []) as reading, psycopg.connect(database, autocommit=True) as db:
        db.execute("UPDATE t SET a = 'new'")
        db.execute("SET lock_timeout = '100ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            db.execute("ALTER TABLE t ADD b int DEFAULT random() * 9")
        rows = [row["after"]["a"] for block in reading.blocks() for row in block.batch.to_pylist()]
    assert rows == ["x", "y"]
    reader.close()


def test_a_read_proves_only_what_all_open_transactions_of_then_have_left(database: str) -> None:
    """A transaction that writes is open at the first observation, and stays so: its commit may be in the log any time,
    and no read proves that it would see it."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    chunk = Chunk(table.name, 0)
    before = reader.observe(NOWHERE)
    with psycopg.connect(database) as writer:
        writer.execute("INSERT INTO t VALUES (2)")
        during = reader.observe(NOWHERE)
        with reader.read(chunk, table, [before, during]) as reading:
            assert reading.observation == 0
        with reader.read(chunk, table, [during]) as reading:
            assert reading.observation is None
        writer.commit()
    after = reader.observe(NOWHERE)
    with reader.read(chunk, table, [before, during, after]) as reading:
        assert reading.observation == 2
    with reader.read(chunk, table, [before, during]) as reading:
        assert reading.observation == 1, "it has ended by now"
    reader.close()


def test_a_commit_that_waits_for_a_standby_is_not_taken_for_ended(postgres18: Any) -> None:
    """Its record is in the WAL, the stream has sent it, and nobody sees it yet."""
    with postgres18.database("waits_for_standby") as database:
        execute(database, "CREATE TABLE t (id int PRIMARY KEY)")
        reader = reader_of(database, "public.t")
        table = described(reader, "public.t")
        postgres18.config(synchronous_standby_names="nobody")
        try:
            execute(database, "SELECT pg_reload_conf()")
            with psycopg.connect(database) as writer:
                pid = writer.info.backend_pid
                writer.execute("INSERT INTO t VALUES (1)")
                thread = threading.Thread(target=writer.commit)
                thread.start()
                with psycopg.connect(database, autocommit=True) as db:
                    waiting = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
                    deadline = time.monotonic() + 120
                    while not db.execute(waiting, [pid]).fetchall():
                        assert time.monotonic() < deadline
                        time.sleep(0.02)
                observation = reader.observe(NOWHERE)
                with reader.read(Chunk(table.name, 0), table, [observation]) as reading:
                    assert reading.observation is None
                    assert [block.rows for block in reading.blocks()] == []
                postgres18.config(synchronous_standby_names="")
                execute(database, "SELECT pg_reload_conf()")
                thread.join(120)
            with reader.read(Chunk(table.name, 0), table, [observation]) as reading:
                assert reading.observation == 0
                assert [block.rows for block in reading.blocks()] == [1]
        finally:
            postgres18.config(synchronous_standby_names="")
            execute(database, "SELECT pg_reload_conf()")
            reader.close()


@pytest.mark.parametrize(
    ("snapshot", "locked", "proven"),
    [
        ("10:20:12,15", [], True),
        ("10:20:12,15", [5, 9], True),
        ("10:20:12,15", [13], True),
        ("10:20:12,15", [15], False),
        ("10:20:12,15", [20], False),
        ("4294967300:4294967310:", [4294967295, 2, 3], True),  # before and after the numbers begin anew
        ("4294967300:4294967310:", [6], True),
        ("4294967300:4294967310:", [15], False),
        ("4294967290:4294967290:", [3], False),
    ],
)
def test_numbers_of_transactions_are_compared_across_their_wrap(snapshot: str, locked: list[int], proven: bool) -> None:
    assert (prove(snapshot, None, [Observation("0/1", tuple(locked))]) == 0) is proven


@pytest.mark.parametrize("may_write", [True, False])
def test_an_idle_stream_comes_to_a_chunk_with_a_message_or_without(
    database: str, tmp_path: Path, may_write: bool
) -> None:
    """Where nothing may be written the server says in keepalives how far it has sent."""
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    source = PostgresSource(config(database, "public.t", heartbeat_seconds=10 if may_write else 0))
    wanted: list[Position] = []
    came: list[Position] = []

    def ask() -> int:
        if wanted and not came:
            if source.reached(wanted[0], LogReader(str(tmp_path / "log")).tail().position):
                came.append(wanted[0])
            else:
                source.hasten(wanted[0])
        return 0

    with capturing(source, tmp_path, adopt=ask) as running:
        eventually(lambda: running.log.tail().position, running)
        with psycopg.connect(database, autocommit=True) as db:
            db.execute("CREATE TABLE unpublished AS SELECT 1")
            ((high,),) = db.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        wanted.append(Position(high))
        eventually(lambda: came, running)
    assert running.events == 0


def test_a_block_says_that_its_rows_were_read_and_counts_them(database: str) -> None:
    execute(database, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 70000)")
    reader = reader_of(database, "public.t")
    table = described(reader, "public.t")
    with reader.read(Chunk(table.name, 0), table, []) as reading:
        blocks: list[Block] = list(reading.blocks())
    reader.close()
    assert len(blocks) > 1
    assert [o for block in blocks for o in block.batch.column("offset").to_pylist()] == list(range(70000))
    assert {op for block in blocks for op in block.batch.column("op").to_pylist()} == {int(Op.READ)}
    assert "position" not in blocks[0].batch.schema.names
