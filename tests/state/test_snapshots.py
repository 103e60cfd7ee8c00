"""What is remembered of snapshots: SQLite and PostgreSQL keep the same promises."""

from __future__ import annotations

from dataclasses import replace

from tests.state.conftest import Opener
from tests.support.blocks import make_table
from tidemill.contracts import ChunkCopy, SnapshotStore, TableCopy
from tidemill.model.position import Position
from tidemill.model.snapshot import Chunk, ChunkState, SnapshotState, SnapshotTable, TableState

AT = "2026-01-31T12:00:00+00:00"


def described(name: str) -> SnapshotTable:
    return SnapshotTable(make_table(name), ("id",), 1000, Position("0/100"), ('"a"."b"',), "a token")


def begun(store: SnapshotStore, *names: str) -> list[TableCopy]:
    store.begin("orders", "it never ran", (), "", AT)
    store.add_tables("orders", 1, [described(name) for name in names])
    return store.tables("orders", 1)


def test_a_pipeline_without_snapshots_has_none(opener: Opener) -> None:
    store = opener().snapshots
    assert store.active("orders") is None
    assert store.records("orders") == []
    assert store.known_tables("orders") == frozenset()


def test_snapshots_are_numbered_and_the_oldest_that_is_not_over_is_active(opener: Opener) -> None:
    store, other = opener().snapshots, opener().snapshots
    first = store.begin("orders", "it never ran", (), "", AT)
    second = store.begin("orders", "asked for", ("public.it's", "%s ?"), "a > 5 AND b LIKE '%x'", AT)
    assert [first.id, second.id] == [1, 2]
    assert store.begin("other", "it never ran", (), "", AT).id == 1
    assert other.active("orders") == first
    store.set_state("orders", 1, SnapshotState.PAUSED)
    active = other.active("orders")
    assert active is not None
    assert active.state is SnapshotState.PAUSED
    store.set_state("orders", 1, SnapshotState.DONE, AT)
    assert other.active("orders") == second
    assert [each.id for each in other.records("orders")] == [2, 1]
    assert other.records("orders")[1].ended == AT


def test_a_snapshot_that_is_over_stays_so_whoever_saw_it_before(opener: Opener) -> None:
    store, late = opener().snapshots, opener().snapshots
    for ended in (SnapshotState.DONE, SnapshotState.CANCELLED, SnapshotState.FAILED):
        record = store.begin("orders", "asked for", (), "", AT)
        assert store.set_state("orders", record.id, SnapshotState.PAUSED)
        assert store.set_state("orders", record.id, ended, AT)
        for state in SnapshotState:
            assert not late.set_state("orders", record.id, state)
        assert (store.records("orders")[0].state, store.records("orders")[0].ended) == (ended, AT)


def test_a_proven_observation_is_kept(opener: Opener) -> None:
    store = opener().snapshots
    record = store.begin("orders", "", (), "", AT)
    assert (record.since, record.observation) == (-1, "")
    store.save_observation("orders", 1, 2**40, "[1,2]")
    assert opener().snapshots.active("orders") == replace(record, since=2**40, observation="[1,2]")


def test_tables_keep_their_order_structure_and_state(opener: Opener) -> None:
    store = opener().snapshots
    orders, items = begun(store, "orders", "items")
    assert (orders.number, items.number) == (1, 2)
    assert orders.structure == described("orders")
    assert orders.state is TableState.PENDING
    store.add_tables("orders", 1, [described("orders"), described("late")])
    store.set_table_state("orders", 1, orders.name, TableState.FAILED, error="no right to read it", fix="GRANT SELECT")
    found = opener().snapshots.tables("orders", 1)
    assert [table.name for table in found] == ["public.orders", "public.items", "public.late"]
    assert (found[0].state, found[0].error, found[0].fix) == (TableState.FAILED, "no right to read it", "GRANT SELECT")


def test_planned_chunks_of_tables_that_failed_do_not_stand_before_those_of_others(opener: Opener) -> None:
    """A thousand of them filled every answer: chunks of other tables were never read."""
    store = opener().snapshots
    first, second = begun(store, "orders", "items")
    for table in (first, second):
        store.plan("orders", 1, [(replace(table, next=2), [Chunk(table.name, number) for number in range(2)])])
    staged, planned, *others = store.chunks("orders", 1, ChunkState.PLANNED)
    store.stage("orders", 1, [staged])
    store.set_table_state("orders", 1, first.name, TableState.FAILED, error="no right to read it")
    assert store.chunks("orders", 1, ChunkState.PLANNED) == others
    store.stage("orders", 1, [planned])  # it was being read
    assert [each.chunk for each in store.chunks("orders", 1, ChunkState.STAGED)] == [staged.chunk]


def test_a_chunk_goes_from_planned_to_staged_to_adopted_and_is_counted(opener: Opener) -> None:
    store = opener().snapshots
    (table,) = begun(store, "orders")
    chunks = [Chunk(table.name, 0, upper=("5", "it's")), Chunk(table.name, 1, '"a"."b"', ("5", "it's"), None, "x > 1")]
    store.plan("orders", 1, [(replace(table, planned=True, part=1, lower=("5", "it's"), next=2), chunks)])
    planned = store.chunks("orders", 1, ChunkState.PLANNED)
    assert [each.chunk for each in planned] == chunks
    staged = replace(
        planned[0], since=7, high=Position("0/200"), commit_time=5, fingerprint="f", rows=10, state=ChunkState.STAGED
    )
    store.stage("orders", 1, [staged])
    assert store.chunks("orders", 1, ChunkState.STAGED) == [staged]
    (now,) = store.tables("orders", 1)
    assert (now.chunks, now.adopted, now.rows, now.planned, now.part, now.next) == (2, 0, 0, True, 1, 2)
    assert now.lower == ("5", "it's")
    store.adopt("orders", 1, [(staged, 9)])
    (now,) = store.tables("orders", 1)
    assert (now.chunks, now.adopted, now.rows) == (2, 1, 9)


def test_a_chunk_that_is_read_again_is_another_try_and_an_old_try_changes_nothing(opener: Opener) -> None:
    store = opener().snapshots
    (table,) = begun(store, "orders")
    store.plan("orders", 1, [(table, [Chunk(table.name, 0)])])
    (first,) = store.chunks("orders", 1, ChunkState.PLANNED)
    store.stage("orders", 1, [first])
    store.read_again("orders", 1, first)
    (second,) = store.chunks("orders", 1, ChunkState.PLANNED)
    assert second.tries == 1
    assert second.staging_id("1") != first.staging_id("1")
    store.stage("orders", 1, [first])
    store.adopt("orders", 1, [(first, 1)])
    assert store.chunks("orders", 1, ChunkState.PLANNED) == [second]
    store.stage("orders", 1, [second])
    store.adopt("orders", 1, [(second, 1)])
    store.read_again("orders", 1, second)
    store.adopt("orders", 1, [(second, 1)])
    assert [store.chunks("orders", 1, state) for state in ChunkState] == [[], []]
    (now,) = store.tables("orders", 1)
    assert (now.chunks, now.adopted, now.rows) == (1, 1, 1)


def test_another_structure_forgets_chunks_that_are_not_adopted(opener: Opener) -> None:
    store = opener().snapshots
    table, other = begun(store, "orders", "items")
    three = [Chunk(table.name, n) for n in range(3)]
    store.plan("orders", 1, [(replace(table, planned=True, next=3), three), (other, [Chunk(other.name, 0)])])
    first: ChunkCopy = store.chunks("orders", 1, ChunkState.PLANNED)[0]
    store.stage("orders", 1, [first])
    store.adopt("orders", 1, [(first, 5)])
    store.forget_structure("orders", 1, table.name, described("orders"))
    left = store.chunks("orders", 1, ChunkState.PLANNED)
    assert [each.chunk.table for each in left] == ["public.items"]
    now = store.tables("orders", 1)[0]
    assert (now.registered, now.planned, now.lower, now.next, now.chunks) == (False, False, None, 3, 1)
    store.save_numbered("orders", 1, {table.name: described("orders")})
    assert store.tables("orders", 1)[0].registered


def test_points_are_added_once_with_the_place_up_to_which_the_log_was_searched(opener: Opener) -> None:
    store = opener().snapshots
    (table,) = begun(store, "orders")
    store.save_points("orders", 1, 40, {table.name: [("1", "a"), ("2", "b")], "public.other": [("9",)]})
    store.save_points("orders", 1, 50, {table.name: [("2", "b"), ("3", "c")]})
    record = store.active("orders")
    assert record is not None
    assert record.cursor == 50
    assert store.tables("orders", 1)[0].points == (("1", "a"), ("2", "b"), ("3", "c"))


def test_known_tables_are_those_of_every_start(opener: Opener) -> None:
    store = opener().snapshots
    store.add_known_tables("orders", ["public.a", "public.b"])
    store.add_known_tables("orders", ["public.b", "public.c"])
    assert opener().snapshots.known_tables("orders") == {"public.a", "public.b", "public.c"}


def test_what_is_forgotten_of_a_pipeline_includes_its_snapshots(opener: Opener) -> None:
    store = opener()
    begun(store.snapshots, "orders")
    store.forget("orders")
    assert store.snapshots.records("orders") == []
    assert store.snapshots.tables("orders", 1) == []
