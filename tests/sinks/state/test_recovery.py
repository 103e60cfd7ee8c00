"""State sinks in a recovery: what no event since its beginning has written is removed, and nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.state.support import (
    DELETE,
    ID,
    INSERT,
    UPDATE,
    Destination,
    T,
    postgres_destination,
    row,
)
from tests.support.changes import changes, column, delivery, structure
from tests.support.origin import session
from tidemill.errors import Refused
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import Op
from tidemill.sinks.clickhouse import ClickHouseSink
from tidemill.sinks.starrocks import StarRocksSink

SINCE = 10


def filled(there: Destination) -> None:
    """Five rows from before the gap."""
    there.write(changes(T, *[(INSERT, None, row(n, "old")) for n in range(1, 6)]))


def test_rows_that_the_copy_did_not_bring_again_are_removed(there: Destination) -> None:
    filled(there)
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    late = changes(T, (UPDATE, None, row(5, "late")), first=SINCE - 1)
    there.write(late, start=SINCE - 1, sink=sink)  # captured before the gap, delivered after
    copied = [(Op.READ, None, row(n, "new")) for n in (1, 2, 7)]
    moved = [(DELETE, row(2), None), (INSERT, None, row(3, "since"))]
    there.write(changes(T, *copied, *moved, first=SINCE), start=SINCE, sink=sink)
    assert len(there.rows()) == 5, "nothing goes before the end"
    assert sink.end_recovery(T, "orders", SINCE, remove=True) == 2
    wanted = [(1, "new", "n"), (3, "since", "n"), (7, "new", "n")]
    assert there.rows() == wanted
    assert sink.end_recovery(T, "orders", SINCE, remove=True) == 0, "a second time it is over"
    assert there.rows() == wanted


def test_a_table_that_is_empty_now_is_emptied_and_one_that_is_not_there_is_no_error(there: Destination) -> None:
    filled(there)
    sink, other = there.sink(), structure("nowhere", *T.columns)
    sink.begin_recovery([T, other], "orders", SINCE)
    assert [sink.end_recovery(table, "orders", SINCE, remove=True) for table in (T, other)] == [5, 0]
    assert there.rows() == []


def test_rows_captured_before_the_gap_go_also_if_none_was_delivered_when_the_recovery_began(there: Destination) -> None:
    """The table is made after it. Its rows stayed for good, and a row that moved onto the key of one was refused."""
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    filled(there)
    if not isinstance(sink, StarRocksSink):  # it refuses a key that changes with columns left out
        moving = changes(T, (UPDATE, {"id": 1}, row(2, "moved", None)), first=SINCE, unchanged={0: ["note"]})
        there.write(moving, start=SINCE, sink=sink)
    copied = [(Op.READ, None, row(n, "new")) for n in (2, 3)]
    there.write(changes(T, *copied, first=SINCE + 1), start=SINCE + 1, sink=sink)
    sink.end_recovery(T, "orders", SINCE, remove=True)
    assert there.rows() == [(2, "new", "n"), (3, "new", "n")]


def test_a_table_made_since_of_which_nothing_came_since_is_emptied(there: Destination) -> None:
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    filled(there)
    assert sink.end_recovery(T, "orders", SINCE, remove=True) == 5
    assert there.rows() == []


def test_a_recovery_that_is_given_up_removes_nothing(there: Destination) -> None:
    filled(there)
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    assert sink.end_recovery(T, "orders", SINCE, remove=False) == 0
    assert len(there.rows()) == 5


@pytest.fixture
def postgres_there(postgres18: Postgres) -> Iterator[tuple[Destination, str, psycopg.Connection[Any]]]:
    with postgres18.database("recovering") as dsn, session(dsn) as db:
        made = postgres_destination(dsn, db)
        yield made, dsn, db
        made.close()


PostgresThere = tuple[Destination, str, psycopg.Connection[Any]]


def test_a_second_recovery_begins_with_nothing_written(postgres_there: PostgresThere) -> None:
    there, _, db = postgres_there
    filled(there)
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    there.write(changes(T, (Op.READ, None, row(1, "first")), first=SINCE), start=SINCE, sink=sink)
    sink.begin_recovery([T], "orders", SINCE + 10)
    there.write(changes(T, (Op.READ, None, row(2, "second")), first=SINCE + 10), start=SINCE + 10, sink=sink)
    assert sink.end_recovery(T, "orders", SINCE + 10, remove=True) == 4
    assert there.rows() == [(2, "second", "n")]
    left = db.execute("SELECT relname FROM pg_class WHERE relname LIKE 'tidemill_keys%'").fetchall()
    assert left == []


def test_keys_are_equal_as_the_target_compares_them(postgres_there: PostgresThere) -> None:
    """1.0 and 1.00 are one row of the target, which keeps the spelling that it has."""
    there, _, db = postgres_there
    table = structure("t", column("id", "numeric", pa.string(), nullable=False), *T.columns[1:])
    db.execute("CREATE TABLE t (id numeric PRIMARY KEY, name text, note text)")
    db.execute("INSERT INTO t VALUES (1.0, 'a', 'n'), (2.0, 'b', 'n')")
    sink = there.sink()
    sink.begin_recovery([table], "orders", SINCE)
    read = (Op.READ, None, {"id": "1.00", "name": "new", "note": "n"})
    there.write(changes(table, read, first=SINCE), start=SINCE, sink=sink)
    assert sink.end_recovery(table, "orders", SINCE, remove=True) == 1
    assert db.execute("SELECT name FROM t").fetchall() == [("new",)]


def test_a_key_that_changes_with_columns_left_out_is_noted(postgres_there: PostgresThere) -> None:
    there, _, _ = postgres_there
    filled(there)
    sink = there.sink()
    sink.begin_recovery([T], "orders", SINCE)
    moving = changes(T, (UPDATE, {"id": 1}, row(9, "moved", None)), first=SINCE, unchanged={0: ["note"]})
    there.write(moving, start=SINCE, sink=sink)
    assert sink.end_recovery(T, "orders", SINCE, remove=True) == 4
    assert there.rows() == [(9, "moved", "n")]


_WIDENED = {
    "numeric(5,2) to numeric(8,4)": ("numeric(5,2)", "numeric(8,4)", pa.string(), pa.string(), "2.50", "7.1234"),
    "varchar(3) to varchar(9)": ("character varying(3)", "character varying(9)", pa.string(), pa.string(), "b", "long"),
    "integer to bigint": ("integer", "bigint", pa.int32(), pa.int64(), 2, 5_000_000_000),
    "integer to text": ("integer", "text", pa.int32(), pa.string(), 2, "two"),
    "timestamp(0) to timestamp(6)": (
        "timestamp(0) without time zone", "timestamp(6) without time zone", pa.timestamp("us"), pa.timestamp("us"),
        1_000_000, 1_750_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("widened", _WIDENED)
def test_keys_that_become_wider_in_a_recovery_are_noted_as_they_are_written(
    postgres_there: PostgresThere, widened: str
) -> None:
    """Numbers and times were rounded as the old type has it, so that living rows were removed; of other types keys
    could not be noted, and their events became dead letters or stopped the sink."""
    there, _, db = postgres_there
    before, after, held, holds, kept, late = _WIDENED[widened]
    narrow, wide = (
        structure("t", column("id", kind, arrow, nullable=False), *T.columns[1:], version=version)
        for version, (kind, arrow) in enumerate([(before, held), (after, holds)], 1)
    )
    gone = "a" if held == pa.string() and kept == "b" else "1.25" if held == pa.string() else 1
    there.write(changes(narrow, *[(INSERT, None, {"id": id, "name": "old", "note": "n"}) for id in (gone, kept)]))
    there.sink().begin_recovery([narrow], "orders", SINCE)
    for at, (table, id) in enumerate([(narrow, kept), (wide, late)]):
        read = changes(table, (Op.READ, None, {"id": id, "name": f"new {at}", "note": "n"}), first=SINCE + at)
        there.write(read, start=SINCE + at)
    assert there.sink().end_recovery(wide, "orders", SINCE, remove=True) == 1
    assert db.execute("SELECT name FROM t ORDER BY name").fetchall() == [("new 0",), ("new 1",)]


def test_a_key_whose_new_type_does_not_take_what_was_noted_ends_the_recovery_and_says_so(
    postgres_there: PostgresThere,
) -> None:
    there, _, db = postgres_there
    old = structure("t", column("id", "text", pa.string(), nullable=False), *T.columns[1:])
    there.write(changes(old, (INSERT, None, {"id": "one", "name": "old", "note": "n"})))
    there.sink().begin_recovery([old], "orders", SINCE)
    read = (Op.READ, None, {"id": "two", "name": "new", "note": "n"})
    there.write(changes(old, read, first=SINCE), start=SINCE)
    db.execute("ALTER TABLE t ALTER COLUMN id TYPE bigint USING length(id) + length(name) * 10 + ascii(id)")
    wide = structure("t", ID, *T.columns[1:], version=2)
    there.write(changes(wide, (Op.READ, None, row(7, "new")), first=SINCE + 1), start=SINCE + 1)
    with pytest.raises(Refused, match="whose key changed"):
        there.sink().end_recovery(wide, "orders", SINCE, remove=True)
    assert len(there.rows()) == 3


@pytest.mark.parametrize("when", ["before the recovery", "in the recovery"])
def test_a_target_whose_key_changed_is_not_said_to_have_nothing_left_over(
    postgres_there: PostgresThere, when: str
) -> None:
    """What was noted by the old key says nothing of rows by the new one. All of them stayed, and it was done."""
    there, _, db = postgres_there
    filled(there)
    other = structure("t", *T.columns[:1], replace(T.columns[1], nullable=False), *T.columns[2:], key=("id", "name"))
    rekey = "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, name)"
    if when == "before the recovery":  # and the target lacks a column of it
        db.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, DROP COLUMN name")
        there.sink().begin_recovery([other], "orders", SINCE)
        db.execute("ALTER TABLE t ADD COLUMN name text DEFAULT 'old'")
        db.execute("ALTER TABLE t ADD PRIMARY KEY (id, name)")
    else:
        there.sink().begin_recovery([T], "orders", SINCE)
        db.execute(rekey)
    for at in range(2):
        there.write(changes(other, (Op.READ, None, row(at, "new")), first=SINCE + at), start=SINCE + at)
    with pytest.raises(Refused, match="whose key changed"):
        there.sink().end_recovery(other, "orders", SINCE, remove=True)
    assert len(there.rows()) == 7
    assert db.execute("SELECT count(*) FROM tidemill_recoveries").fetchall() == [(0,)]
    assert db.execute("SELECT relname FROM pg_class WHERE relname LIKE 'tidemill_keys%'").fetchall() == []
    assert there.sink().end_recovery(other, "orders", SINCE, remove=True) == 0, "a second time it is over"


def test_a_writer_under_way_is_waited_for_before_anything_is_removed(postgres_there: PostgresThere) -> None:
    there, dsn, db = postgres_there
    filled(there)
    there.sink().begin_recovery([T], "orders", SINCE)
    removed: list[int] = []
    remover = threading.Thread(
        target=lambda: removed.append(there.sink().end_recovery(T, "orders", SINCE, remove=True))
    )
    with session(dsn) as writer, writer.transaction():  # does what a delivery does, and has not committed
        (keys,) = writer.execute("SELECT keys_name FROM tidemill_recoveries FOR SHARE").fetchone() or ("",)
        writer.execute("UPDATE t SET name = 'since' WHERE id = 3")
        writer.execute(f"INSERT INTO {keys} VALUES (3)".encode())
        remover.start()
        deadline = time.monotonic() + 60
        while not db.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'").fetchone():
            assert time.monotonic() < deadline, "nobody waits for the writer"
            time.sleep(0.05)
    remover.join(60)
    assert removed == [4]
    assert there.rows() == [(3, "since", "n")]


def test_lanes_that_meet_a_table_made_since_at_the_same_time_note_their_keys_together(
    postgres_there: PostgresThere,
) -> None:
    there, dsn, _ = postgres_there
    there.sink().begin_recovery([T], "orders", SINCE)
    there.run("CREATE TABLE t (id bigint PRIMARY KEY, name text, note text)")
    there.run("INSERT INTO t VALUES (1, 'old', 'n'), (2, 'old', 'n'), (3, 'old', 'n')")
    failures: list[BaseException] = []

    def write(lane: int) -> None:
        try:
            events = changes(T, (UPDATE, None, row(lane + 1, "new")), first=SINCE + lane)
            there.sink().write(delivery(events, start=SINCE, end=SINCE + 2, lane=lane, lanes=2))
        except BaseException as error:  # noqa: BLE001  looked at below
            failures.append(error)

    lanes = [threading.Thread(target=write, args=(lane,)) for lane in range(2)]
    with session(dsn) as first, first.transaction():  # as a lane that has made them, and has not committed
        (keys,) = first.execute("SELECT keys_name FROM tidemill_recoveries FOR SHARE").fetchone() or ("",)
        first.execute(f"CREATE TABLE {keys} AS SELECT id FROM t WITH NO DATA".encode())
        for lane in lanes:
            lane.start()
        time.sleep(0.5)
    for lane in lanes:
        lane.join(60)
    assert not failures
    assert there.sink().end_recovery(T, "orders", SINCE, remove=True) == 1
    assert there.rows() == [(1, "new", "n"), (2, "new", "n")]


@pytest.mark.parametrize("other", ["of the same source", "of another pipeline"])
def test_rows_of_another_table_in_the_same_target_are_neither_removed_nor_called_extra(
    there: Destination, other: str
) -> None:
    """Whose a row is, is not known: those of the other table were removed, since this recovery did not write them."""
    theirs = structure("u", *T.columns)
    settings: dict[str, Any] = {"table": "t"}
    if isinstance(there.sink(), ClickHouseSink):
        settings["shared_tables"] = True
    sink = there.sink(**settings)
    there.write(changes(T, (INSERT, None, row(1))), sink=sink)
    second = sink if other == "of the same source" else there.sink(id="second", **settings)
    source = "orders" if second is sink else "shop"
    events = changes(theirs if second is sink else T, (INSERT, None, row(2)), first=1)
    second.write(replace(delivery(events, start=1, pipeline="shop" if second is sink else "other"), source=source))
    sink.begin_recovery([T], "orders", SINCE)
    with pytest.raises(Refused):
        sink.end_recovery(T, "orders", SINCE, remove=True)
    assert there.rows() == [(1, "a", "n"), (2, "a", "n")]
    with pytest.raises(Refused):
        sink.audit(T, "orders")
