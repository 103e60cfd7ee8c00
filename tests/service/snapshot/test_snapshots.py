"""A snapshot from its beginning to its end: real source, log, state and capture loop. Tasks run in this process: what
Spark does with them is shown by the crash tests."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.sources.support import execute, query
from tests.support.blocks import make_table
from tests.support.copying import PATIENCE, Copying, copying
from tidemill.capture import portions
from tidemill.capture.snapshot import ChunkAdopter
from tidemill.contracts import Capabilities, ChunkCopy, TableCopy
from tidemill.errors import ConfigError, LifecycleError, Poisoned
from tidemill.lab.servers.postgres import Postgres
from tidemill.log.copying import EVERY, find_excused, write_copying
from tidemill.log.delivered import acknowledge
from tidemill.model.block import Op
from tidemill.model.delivery import Delivery, Receipt
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotState, SnapshotTable, TableState
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.plan import ADDED, NEVER_RAN, pack
from tidemill.stream.batch.plan import Lane, LaneResult, Plan
from tidemill.stream.lane.deliver import deliver
from tidemill.stream.lane.pool import Tools

_names = itertools.count(1)


@pytest.fixture
def database(postgres18: Postgres) -> Iterator[str]:
    """What differs between servers is the reader's, and tested with it."""
    with postgres18.database(f"snapshots_{next(_names)}") as dsn:
        yield dsn


def test_rows_that_were_there_come_as_reads_and_changes_after_them(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 1000) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", chunk_rows=300) as copy:
        copy.until_done()
        execute(database, "UPDATE t SET v = 'new' WHERE id = 7", "DELETE FROM t WHERE id = 8")
        copy.until(lambda: copy.equals("t"))
        table = copy.tables()["public.t"]
    assert (table.state, table.rows, table.chunks, table.adopted) == (TableState.READY, 1000, 4, 4)


def test_copied_rows_do_not_pile_up_before_changes_that_come(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "_UNNOTICED_BYTES", 0)
    monkeypatch.setattr(portions, "_LEAST_BYTES", 0)
    monkeypatch.setattr(portions, "_MOST_BYTES", 0)
    monkeypatch.setattr(portions, "QUIET_SECONDS", PATIENCE)
    looks: list[None] = []
    adopt_all = ChunkAdopter._adopt_all

    def look(adopter: ChunkAdopter, *rest: Any) -> int:
        looks.append(None)
        return adopt_all(adopter, *rest)

    monkeypatch.setattr(ChunkAdopter, "_adopt_all", look)
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 1000) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", mode="never", chunk_rows=300) as copy:
        execute(database, "INSERT INTO t VALUES (0, 'a change')")
        copy.until(lambda: copy.log.tail().offset == 1)
        snapshot_requests.start(copy.pipeline, ["public.t"], "")
        copy.until(lambda: copy.log.tail().offset > 1, "the first chunk waits for nobody")
        first = copy.log.tail()
        with closing(copy.pipeline.build_state()) as state:
            copy.until(lambda: state.snapshots.chunks("copied", 1, ChunkState.STAGED, 10), "no other chunk was read")
        due = len(looks) + 3
        copy.until(lambda: len(looks) >= due, "capture did not look for chunks")
        assert copy.log.tail() == first, "changes would be delivered after it"

        def deliver_all() -> bool:
            acknowledge(copy.pipeline.log_uri, copy.log.tail())
            return copy.state() is SnapshotState.DONE

        copy.until(deliver_all)
        assert copy.equals("t")


def test_a_pipeline_that_is_stopped_in_the_middle_goes_on_and_copies_nothing_twice(
    database: str, tmp_path: Path
) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'v' || n FROM generate_series(1, 3000) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", chunk_rows=100, max_connections=1, max_rows_per_second=1000) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted >= 3)
    assert copy.state() is SnapshotState.RUNNING
    with copying(database, tmp_path, "public.t", chunk_rows=100) as copy:
        copy.until_done()
        assert copy.equals("t")
        assert copy.log.tail().offset == 3000


def test_a_row_that_moves_with_a_hole_into_a_range_that_was_read_is_read_again(database: str, tmp_path: Path) -> None:
    """Its old key is in no chunk that is read after the move, its new key in one that was read before."""
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(10, 400) i",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", chunk_rows=20, max_connections=1, max_rows_per_second=150) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted >= 2)
        execute(database, "UPDATE t SET id = 1, n = 5 WHERE id = 399", "UPDATE t SET n = 6 WHERE id = 398")
        copy.until_done()
        copy.until(lambda: copy.equals("t"), "a row has a hole or is missing")
    assert copy.rows("t")[1]["big"].startswith(query(database, "SELECT md5('399')")[0][0])


def test_a_row_that_moves_with_a_hole_is_read_where_it_is_also_beside_open_transactions(
    database: str, tmp_path: Path
) -> None:
    """The read of its new key counts when it is proven to see the move: in a window with the move it is left out."""
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int, big text)", "CREATE TABLE other (id int)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(101, 200) i",
    )  # fmt: skip
    with (
        copying(database, tmp_path, "public.t", chunk_rows=20, max_connections=1, max_rows_per_second=100) as copy,
        psycopg.connect(database) as writer,
    ):
        copy.until(lambda: copy.log.tail().offset >= 20)
        writer.execute("INSERT INTO other VALUES (1)")
        execute(database, "UPDATE t SET id = 5 WHERE id = 190")
        copy.until(lambda: copy.tables()["public.t"].chunks == 6, "the key is not planned to be read again")
        copy.until(lambda: copy.tables()["public.t"].adopted == 5)
        time.sleep(1)
        assert copy.state() is SnapshotState.RUNNING, "nothing is proven while the transaction is open"
        writer.rollback()
        copy.until_done()
        assert copy.equals("t")


@pytest.mark.parametrize(
    ("kind", "make", "new"),
    [
        ("int[]", "ARRAY[i]", "ARRAY[9999]"),
        ("timestamp", "'2024-01-01'::timestamp + i * interval '1 h'", "'-infinity'"),
    ],
)
def test_a_row_that_moves_with_a_hole_to_an_odd_key_is_read_again(
    database: str, tmp_path: Path, kind: str, make: str, new: str
) -> None:
    execute(
        database, f"CREATE TABLE t (k {kind} PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        f"INSERT INTO t SELECT {make}, i, repeat(md5(i::text), 200) FROM generate_series(1, 60) i",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", chunk_rows=20, max_connections=1, max_rows_per_second=60) as copy:
        copy.until(lambda: copy.log.tail().offset >= 10)
        execute(database, f"UPDATE t SET k = {new} WHERE n = 59")
        copy.until_done()
        refs = copy.log.refs(0, copy.log.tail().offset)
        rows = [row for ref in refs for row in copy.log.read(ref).batch.to_pylist() if row["after"]["n"] == 59]
    assert rows[0]["unchanged"]
    assert rows[-1]["after"]["big"].startswith(query(database, "SELECT md5('59')")[0][0])


def test_a_table_without_a_key_and_many_small_ones_are_copied(database: str, tmp_path: Path) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("CREATE TABLE keyless (a int, b text)")
        db.execute("INSERT INTO keyless SELECT n, 'b' FROM generate_series(1, 500) n")
        for number in range(60):
            db.execute(f"CREATE TABLE small_{number} (id int PRIMARY KEY)".encode())
            db.execute(f"INSERT INTO small_{number} SELECT generate_series(1, {number % 3})".encode())
    with copying(database, tmp_path) as copy:
        copy.until_done()
        tables = copy.tables()
        assert len(tables) == 61
        assert {table.state for table in tables.values()} == {TableState.READY}
        assert sum(table.rows for table in tables.values()) == 500 + 60
        assert copy.log.tail().offset == 560


def test_a_transaction_that_stays_open_does_not_keep_the_first_copy_waiting(database: str, tmp_path: Path) -> None:
    """No read proves anything, but the log has the stream from its first event on."""
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT n, 'x' FROM generate_series(1, 50) n",
    )
    with copying(database, tmp_path, "public.t", chunk_rows=10) as copy, psycopg.connect(database) as writer:
        copy.until(lambda: copy.log.tail().position)
        writer.execute("UPDATE t SET v = 'late' WHERE id <= 25")
        copy.until_done()
        writer.commit()
        copy.until(lambda: copy.equals("t"))


def test_an_unproven_read_is_no_way_for_tables_without_a_key_or_with_an_older_structure_in_the_log(
    database: str, tmp_path: Path
) -> None:
    """Their window would be the whole log, whose events cannot be told from their rows: they wait for a proof."""
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int)", "CREATE TABLE k (a text)",
        "CREATE TABLE other (id int)", "INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i",
    )  # fmt: skip
    with copying(database, tmp_path, "public.*", mode="never") as copy, psycopg.connect(database) as writer:
        copy.until(lambda: copy.log.tail().position)
        execute(
            database, "INSERT INTO k VALUES ('only row')", "UPDATE t SET n = 1 WHERE id = 1",
            "ALTER TABLE t ADD COLUMN c int", "UPDATE t SET n = 2 WHERE id = 2",
        )  # fmt: skip
        copy.until(lambda: copy.log.tail().offset >= 3)
        writer.execute("INSERT INTO other VALUES (1)")
        snapshot_requests.start(copy.pipeline, ["public.k", "public.t"], "")
        copy.until(lambda: copy.tables() and all(table.chunks for table in copy.tables().values()))
        time.sleep(1)
        with closing(copy.pipeline.build_state()) as state:
            chunks = [c for s in ChunkState for c in state.snapshots.chunks("copied", 1, s)]
        assert [(c.state, c.tries) for c in chunks] == [(ChunkState.PLANNED, 0)] * 2
        writer.rollback()
        copy.until_done()
        assert copy.equals("t")


def test_columns_that_come_and_go_meanwhile_are_followed(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, v text, gone int)",
        "INSERT INTO t SELECT n, 'x', n FROM generate_series(1, 400) n",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", chunk_rows=20, max_connections=1, max_rows_per_second=150) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted >= 2)
        execute(database, "ALTER TABLE t ADD added int DEFAULT 5", "ALTER TABLE t DROP gone")
        copy.until_done()
        assert copy.equals("t"), "rows that were read before are read again with the new structure"
        assert copy.tables()["public.t"].structure.table.version > 1


def test_a_table_that_is_dropped_fails_alone(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a SELECT generate_series(1, 300)", "INSERT INTO b SELECT generate_series(1, 300)",
    )  # fmt: skip
    with copying(database, tmp_path, "public.*", chunk_rows=10, max_connections=1, max_rows_per_second=200) as copy:
        copy.until(lambda: copy.tables() and copy.tables()["public.a"].adopted >= 1)
        execute(database, "DROP TABLE b")
        copy.until(lambda: copy.state() is SnapshotState.FAILED)
        tables = copy.tables()
    assert tables["public.a"].state is TableState.READY
    assert (tables["public.b"].state, tables["public.b"].error) == (
        TableState.FAILED, "public.b is not there any more, or not captured",
    )  # fmt: skip


def test_a_table_that_is_added_is_copied_alone(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1)", "INSERT INTO b VALUES (2)",
    )  # fmt: skip
    with copying(database, tmp_path, "public.a") as copy:
        copy.until_done()
    with copying(database, tmp_path, "public.a") as copy:
        time.sleep(1)
        assert set(copy.tables()) == {"public.a"}, "nothing is copied twice"
    with copying(database, tmp_path, "public.a", "public.b") as copy:
        copy.until(lambda: set(copy.tables()) == {"public.b"})
        copy.until_done()
        with closing(copy.pipeline.build_state()) as state:
            assert [each.why for each in state.snapshots.records("copied")] == [ADDED, NEVER_RAN]
        assert copy.log.tail().offset == 2


def marked(copy: Copying) -> list[str]:
    """What capture says of its tables, as `run` shows it."""
    return [notice.subject for notice in copy.source.notices() if notice.code == "table-incomplete"]


def test_the_mark_of_a_table_that_was_added_with_rows_goes_when_it_is_copied(database: str, tmp_path: Path) -> None:
    execute(
        database, "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO b VALUES (2)", "INSERT INTO c VALUES (3)",
    )  # fmt: skip
    with copying(database, tmp_path, "public.a") as copy:
        copy.until_done()
    with copying(database, tmp_path, "public.a", "public.b", "public.c", tables=["public.a", "public.b"]) as copy:
        copy.until(lambda: set(copy.tables()) == {"public.b"})
        copy.until_done()
        copy.until(lambda: marked(copy) == ["public.c"], "the mark stays, or the other one goes")
    with copying(database, tmp_path, "public.a", "public.b", "public.c", tables=["public.a", "public.b"]) as copy:
        copy.until(lambda: marked(copy) == ["public.c"], "the mark stays, or the other one goes")


def test_a_name_that_no_table_has_is_refused_or_fails(database: str, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE orders (id int PRIMARY KEY)")
    with copying(database, tmp_path, "public.orders", mode="never") as copy:
        snapshot_requests.check_names(copy.pipeline, ["public.orders", "orders", "public.*"])
        with pytest.raises(ConfigError, match=r'no captured table is called "public\.ordrs"') as refused:
            snapshot_requests.check_names(copy.pipeline, ["public.ordrs"])
        assert refused.value.fix == 'Did you mean "public.orders"? Captured are public.orders.'
        snapshot_requests.start(copy.pipeline, ["public.ordrs"], "")
        copy.until(lambda: copy.state() is SnapshotState.FAILED)
        assert copy.tables() == {}


def _rests(copy: Copying) -> bool:
    before = copy.tables()["public.t"].adopted
    time.sleep(1)
    return copy.tables()["public.t"].adopted == before


def test_a_snapshot_that_is_asked_for_is_paused_resumed_and_cancelled(database: str, tmp_path: Path) -> None:
    execute(
        database,
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT n, n FROM generate_series(1, 500) n",
    )
    with copying(database, tmp_path, "public.t", mode="never", chunk_rows=10, max_rows_per_second=100) as copy:
        with pytest.raises(LifecycleError, match="no snapshot"):
            snapshot_requests.pause(copy.pipeline)
        with pytest.raises(ConfigError, match="--where needs --table"):
            snapshot_requests.start(copy.pipeline, [], "v > 5")
        snapshot_requests.start(copy.pipeline, ["public.t"], "v <= 5000")
        copy.until(lambda: copy.tables() and copy.tables()["public.t"].adopted)
        assert snapshot_requests.pause(copy.pipeline).state == "paused"
        copy.until(lambda: _rests(copy), "it goes on")  # a chunk that was read meanwhile is still adopted
        paused = copy.tables()["public.t"].adopted
        assert paused < 50, "it went on to its end"
        snapshot_requests.resume(copy.pipeline)
        copy.until(lambda: copy.tables()["public.t"].adopted > paused)
        assert snapshot_requests.cancel(copy.pipeline).state == "cancelled"
        (shown,) = snapshot_requests.status(copy.pipeline)
        assert shown.tables[0].rows < 5000
    with copying(database, tmp_path, "public.t", mode="never") as copy:
        snapshot_requests.start(copy.pipeline, ["public.t"], "v <= 400 AND v > 350")
        copy.until_done()
        assert copy.tables()["public.t"].rows == 50


def test_what_a_sink_refuses_while_a_table_is_copied_is_excused_until_it_is_ready(
    database: str, tmp_path: Path
) -> None:
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
        "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(1, 40) i",
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", mode="never") as copy:
        copy.until(lambda: copy.log.tail().position)
        execute(
            database,
            "UPDATE t SET n = 1 WHERE id = 5",
            "UPDATE t SET n = 2 WHERE id = 5",
            "UPDATE t SET n = 1 WHERE id = 6",
        )
        copy.until(lambda: copy.log.tail().offset == 3)
        blocks = [copy.log.read(ref) for ref in copy.log.refs(0, 3)]
        assert find_excused(copy.log.read_copying(), blocks, {1}) == set(), "nobody copies it"
        snapshot_requests.start(copy.pipeline, [], "")
        copy.until_done()
        copy.until(lambda: None not in copy.log.read_copying().values())
        assert find_excused(copy.log.read_copying(), blocks, {1}) == {0, 1}, "also the earlier one of the same row"
        apart = [block.take([row]) for block in blocks for row in range(block.rows)]
        assert find_excused(copy.log.read_copying(), apart, {1}) == {0, 1}, "wherever the blocks end"
        end = copy.log.tail().offset
        execute(database, "UPDATE t SET n = 9 WHERE id = 5")
        copy.until(lambda: copy.log.tail().offset > end)
        late = [copy.log.read(ref) for ref in copy.log.refs(end, end + 1)]
        assert find_excused(copy.log.read_copying(), late, {end}) == set(), "the row is there by now"


class RefusingSink:
    """A stand-in: refuses updates, for a reason that a copy makes good or for another."""

    capabilities = Capabilities()

    def __init__(self, *, lacking: bool) -> None:
        self.lacking = lacking

    def write(self, delivery: Delivery) -> Receipt:
        rows = [row for block in delivery for row in block.batch.select(["op", "offset"]).to_pylist()]
        if bad := {row["offset"]: "refused" for row in rows if row["op"] == int(Op.UPDATE)}:
            raise Poisoned(bad, lacking=bad if self.lacking else ())
        return Receipt("s", delivery.lane, events=len(rows))


def _delivered(copy: Copying, monkeypatch: pytest.MonkeyPatch, *, lacking: bool) -> LaneResult:
    monkeypatch.setattr(Tools, "sink", lambda *_: RefusingSink(lacking=lacking))
    uri = copy.pipeline.log_uri
    plan = Plan("copied", "src", uri, uri, "run", (("http", {"id": "s"}),), dead_letters=True, retry_seconds=0)
    (result,) = deliver(plan, Lane(0, copy.log.tail().offset, 0, 1, "key"))
    return result


_TOAST = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, big text)",
    "ALTER TABLE t ALTER big SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT i, 0, repeat(md5(i::text), 200) FROM generate_series(1, 40) i",
)


def test_only_what_a_sink_lacks_a_row_for_is_excused_while_a_table_is_copied(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(database, *_TOAST)
    with copying(database, tmp_path, "public.t", mode="never") as copy:
        copy.until(lambda: copy.log.tail().position)
        execute(database, "UPDATE t SET n = 1 WHERE id = 5")
        copy.until(lambda: copy.log.tail().offset == 1)
        assert _delivered(copy, monkeypatch, lacking=True).dead_letters, "nobody copies the table"
        snapshot_requests.start(copy.pipeline, [], "")
        copy.until_done()
        copy.until(lambda: list(copy.log.read_copying()) == ["public.t"])
        excused_one = _delivered(copy, monkeypatch, lacking=True)
        assert (excused_one.receipt.ok, excused_one.receipt.events) == (True, 40)
        poisoned = _delivered(copy, monkeypatch, lacking=False)
        assert (poisoned.receipt.ok, bool(poisoned.dead_letters)) == (False, True)


def test_updates_of_tables_outside_of_the_snapshot_and_of_filtered_ones_are_not_excused(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(
        database, *_TOAST, "CREATE TABLE whole (id int PRIMARY KEY)", "INSERT INTO whole VALUES (1)",
        "CREATE TABLE other (id int PRIMARY KEY)",
    )  # fmt: skip
    with copying(
        database, tmp_path, "public.*", tables=["public.t", "public.whole"], filters={"public.t": "id <= 20"}
    ) as copy:
        copy.until_done()
        copy.until(lambda: None not in copy.log.read_copying().values())
        assert list(copy.log.read_copying()) == ["public.whole"]
        write_copying(copy.writer.store, {EVERY: None})
        execute(database, "UPDATE t SET n = 1 WHERE id = 25")
        copy.until(lambda: copy.log.tail().offset == 22)
        waiting = _delivered(copy, monkeypatch, lacking=True)
        assert (waiting.receipt.ok, waiting.receipt.retryable, waiting.dead_letters) == (False, True, b"")


def test_a_snapshot_after_the_state_was_lost_is_not_taken_for_the_old_one(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number begins anew, and chunks of the same numbers are in the log."""
    warned: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("tidemill.capture.snapshot.events.warn", lambda name, **facts: warned.append((name, facts)))
    execute(
        database, "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT generate_series(1, 100), 0"
    )  # fmt: skip
    with copying(database, tmp_path, "public.t", chunk_rows=20, max_connections=1, max_rows_per_second=80) as copy:
        copy.until(lambda: copy.log.tail().offset >= 40)
    with closing(copy.pipeline.build_state()) as state:
        known = state.confirmed("copied")
    for file in (tmp_path / "state").glob("state.sqlite*"):
        file.unlink()
    if known is not None:  # a quiet stream was confirmed beyond the log's end: not what this is about
        with closing(copy.pipeline.build_state()) as state:
            state.confirm("copied", known.position, known.offset)
    with copying(database, tmp_path, "public.t", chunk_rows=20) as copy:
        assert [(name, facts["tables"]) for name, facts in warned] == [("snapshot.state_lost", "public.t")]
        assert "tidemill snapshot start" in warned[0][1]["fix"]
        assert copy.log.read_copying() == {}, "no row is to come"
        snapshot_requests.start(copy.pipeline, [], "")
        copy.until_done()
        assert copy.tables()["public.t"].rows == 100
        assert copy.equals("t")
        refs = copy.log.refs(0, copy.log.tail().offset)
        reads = [row for ref in refs for row in copy.log.read(ref).batch.to_pylist()]
        assert len({(row["position"], row["ordinal"]) for row in reads}) == len(reads) >= 140


def test_a_reader_is_given_one_chunk_of_a_large_table_or_many_small_tables_at_a_time() -> None:
    table = TableCopy("public.t", 1, TableState.COPYING, SnapshotTable(make_table(), ("id",), 5_000_000, Position("")))
    small = TableCopy("public.s", 2, TableState.COPYING, SnapshotTable(make_table(), ("id",), 10, Position("")))
    tables = {1: table, 2: small}
    large = [ChunkCopy(1, Chunk("public.t", number)) for number in range(20)]
    assert [len(given) for given in pack(large, tables, 6, 50_000)] == [1] * 6
    assert [len(given) for given in pack(large[:1], tables, 6, 50_000)] == [1]
    assert pack([], tables, 6, 50_000) == []
    many = [ChunkCopy(2, Chunk("public.s", number)) for number in range(300)]
    assert [len(given) for given in pack(many, tables, 2, 50_000)] == [50, 50]
    assert [len(given) for given in pack(many[:60], tables, 2, 50_000)] == [50, 10]
