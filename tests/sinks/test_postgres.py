"""The postgres sink against real servers: a source database, its stream, and what the target holds in the end."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.decoders.pgoutput.kinds import KINDS, SETUP
from tests.support.blocks import make_block, make_table
from tests.support.changes import changes, column, structure
from tests.support.deliveries import make_deliveries, make_events
from tests.support.origin import Origin, deal, origin, rows, session
from tests.support.seed import run_seed
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Poisoned, Refused, is_retryable
from tidemill.lab.servers.postgres import Postgres
from tidemill.model.block import ODD, Block, Op, Side
from tidemill.model.delivery import Delivery, Epoch
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm
from tidemill.sinks.postgres import PostgresSink, PostgresSinkConfig
from tidemill.sinks.postgres import copy_text as text
from tidemill.sinks.postgres.exact import comparison_type
from tidemill.sinks.postgres.types import target_type, widens
from tidemill.sinks.postgres.write import Applier

_names = itertools.count(1)
Make = Callable[..., PostgresSink]
ID = column("id", "bigint", pa.int64(), nullable=False)
NAME, NOTE = (column(name, "text", pa.string()) for name in ("name", "note"))
T = structure("t", ID, NAME, NOTE)


@pytest.fixture
def source(postgres: Postgres) -> Iterator[Origin]:
    with origin(postgres, f"origin_{next(_names)}") as made:
        yield made


@pytest.fixture
def target(database: str) -> Iterator[psycopg.Connection[Any]]:
    with session(database) as db:
        yield db


@pytest.fixture
def make(database: str) -> Iterator[Make]:
    made: list[PostgresSink] = []

    def build(**options: Any) -> PostgresSink:
        made.append(PostgresSink(PostgresSinkConfig(**{"id": "s", "dsn": database} | options)))
        return made[-1]

    yield build
    for sink in made:
        sink.close()


def write(sink: PostgresSink, *deliveries: Delivery) -> int:
    return sum(sink.write(d).events for d in deliveries)


def delivery_of(*blocks: Block, start: int = 0, end: int | None = None) -> Delivery:
    last = max(int(b.offsets()[-1]) for b in blocks) + 1
    return Delivery("shop", "orders", start, last if end is None else end, 0, 1, lambda: iter(blocks))


def test_every_type_arrives_as_it_was_stored(source: Origin, target: psycopg.Connection[Any], make: Make) -> None:
    seed = run_seed()
    source.run(*SETUP)
    version = source.db.info.server_version // 10000
    tried = [kind for kind in KINDS if kind.since <= version]
    for number, kind in enumerate(tried):
        try:
            source.run(f"CREATE TABLE t{number} (id int PRIMARY KEY, v {kind.type})")
            values = [*kind.values(random.Random(seed)), None]
            source.db.execute(
                f"INSERT INTO t{number} SELECT n, x::{kind.type} "
                "FROM unnest(%s::text[]) WITH ORDINALITY AS given(x, n)".encode(),
                [values],
            )
        except psycopg.errors.FeatureNotSupported:
            assert kind.type == "xml"  # a server built without libxml
            source.run(f"DROP TABLE t{number}", f"CREATE TABLE t{number} AS SELECT 1 AS id")
    sink = make(keyless="append")
    write(sink, *source.deliveries())
    assert not any(to.doubts or to.domains for to in sink._targets.values()), "what the sink makes holds every value"
    for db in (source.db, target):
        db.execute("SET search_path = ''")  # names of types are printed with their schema
    for number, kind in enumerate(tried):
        name, columns = f"public.t{number}", "id, format('%s', v) AS v" if kind.type != "xml" else "id"
        assert rows(target, name, columns) == source.rows(name, columns), f"{kind.type}, seed {seed}"


def test_a_random_workload_with_replays_cut_in_other_ways_ends_in_the_state_of_the_source(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    seed = run_seed()
    pick = random.Random(seed)
    source.run(
        "CREATE TABLE a (id int PRIMARY KEY, n numeric(12,2), note text, big text)",
        "ALTER TABLE a ALTER big SET STORAGE EXTERNAL",
        "CREATE TABLE b (x int, y text, v int, PRIMARY KEY (x, y))",
    )
    bounds = [0]
    for _ in range(6):
        for _ in range(40):
            with contextlib.suppress(psycopg.errors.UniqueViolation):
                source.run(_random_statement(pick))
        source.blocks()
        bounds.append(source.end)
    if pick.random() < 0.5:
        source.run("TRUNCATE a", "INSERT INTO a VALUES (1, 1, 'after', 'all')")
    blocks = source.blocks()
    bounds.append(source.end)
    sink = make()
    for start, end in itertools.pairwise(bounds):
        lanes = pick.choice((1, 2, 3))
        attempts = pick.choice((0, 1, 2))
        for _ in range(attempts):  # given up somewhere, with another plan
            other, shorter = pick.choice((1, 2, 4)), pick.randint(start, end)
            for lane in pick.sample(range(other), pick.randint(0, other)):
                if shorter > start and not _splits_a_barrier(blocks, start, shorter):
                    make().write(deal(blocks, start, shorter, lane, other))
        for lane in range(lanes):
            sink.write(deal(blocks, start, end, lane, lanes))
    for table in ("a", "b"):
        assert rows(target, table) == source.rows(table), f"seed {seed}"


def _splits_a_barrier(blocks: list[Block], start: int, end: int) -> bool:
    """Rows that depend on more than their own key come in a batch of their own; these tests do not cut there."""
    return any((b.slice(start, end).batch.column("op").to_numpy() == Op.TRUNCATE).any() for b in blocks)


def _random_statement(pick: random.Random) -> str:
    i, j = pick.randint(1, 25), pick.randint(1, 25)
    return pick.choice(
        (
            f"INSERT INTO a VALUES ({i}, {j}.5, 'n{j}', repeat('x{j}', 2000)) ON CONFLICT DO NOTHING",
            f"INSERT INTO a SELECT g, g, 'many', repeat('m', 3000) FROM generate_series({i}, {i + 5}) g "
            "ON CONFLICT DO NOTHING",
            f"UPDATE a SET note = 'u{j}', n = n + 1 WHERE id % 5 = {i % 5}",
            f"UPDATE a SET big = repeat('y{j}', 2500) WHERE id = {i}",
            f"UPDATE a SET big = NULL, note = NULL WHERE id = {i}",
            f"DELETE FROM a WHERE id = {i}",
            f"INSERT INTO b VALUES ({i % 7}, 'k{j % 7}', {j}) ON CONFLICT (x, y) DO UPDATE SET v = b.v + 1",
            f"UPDATE b SET y = y || '!' WHERE x = {i % 7} AND length(y) < 4",
            f"DELETE FROM b WHERE v % 7 = {j % 7}",
        )
    )


def test_columns_that_were_not_sent_keep_their_value_row_by_row(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, c int)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('a' || i, 2000), repeat('b' || i, 2000), 0 FROM generate_series(1, 5) i",
    )
    sink = make()
    write(sink, *source.deliveries())
    start = source.end
    source.run(
        "UPDATE t SET c = 1 WHERE id = 1",
        "UPDATE t SET a = 'short', c = 2 WHERE id = 2",
        "UPDATE t SET c = 3 WHERE id = 2",  # completed by the one before
        "UPDATE t SET b = NULL WHERE id = 3",
        "UPDATE t SET c = 4 WHERE id = 3",
        "UPDATE t SET a = 'x', b = 'y' WHERE id = 4",
        "DELETE FROM t WHERE id = 5",
        "INSERT INTO t VALUES (5, repeat('new', 1000), NULL, 5)",
        "UPDATE t SET c = 6 WHERE id = 5",
    )
    write(sink, *source.deliveries(start))
    assert rows(target, "t") == source.rows("t")


def test_a_key_that_changes_takes_the_values_that_were_not_sent_along(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, c int)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('a' || i, 2000), 0 FROM generate_series(1, 3) i",
    )
    sink = make()
    write(sink, *source.deliveries())
    start = source.end
    source.run("UPDATE t SET id = id + 10, c = 1 WHERE id > 1", "UPDATE t SET c = 2 WHERE id = 12")
    write(sink, *source.deliveries(start))
    assert rows(target, "t") == source.rows("t")
    assert {r for (r,) in target.execute("SELECT length(a) FROM t")} == {4000}


@pytest.mark.parametrize("full", [True, False])
def test_a_whole_row_that_changes_its_key_in_one_piece_leaves_nothing_behind(
    target: psycopg.Connection[Any], make: Make, full: bool
) -> None:
    """Decoders send it in two pieces; a processor may make it one."""
    rows_ = [{"id": i, "name": f"n{i}", "note": "x"} for i in range(1, 6)]
    sink = make()
    write(sink, delivery_of(changes(T, *[(Op.INSERT, None, row) for row in rows_])))

    def moved(old: int, new: int) -> tuple[Op, dict[str, Any], dict[str, Any]]:
        return Op.UPDATE, rows_[old - 1] if full else {"id": old}, {"id": new, "name": f"was {old}", "note": "y"}

    mixed = [
        moved(1, 11),
        (Op.UPDATE, rows_[1], {"id": 2, "name": "same key", "note": "z"}),
        moved(3, 1),
        moved(4, 3),
        (Op.DELETE, {"id": 5}, None),
    ]
    write(sink, delivery_of(changes(T, *mixed, first=5), start=5))
    found = target.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert found == [(1, "was 3", "y"), (2, "same key", "z"), (3, "was 4", "y"), (11, "was 1", "y")]
    beside = (Op.UPDATE, {"id": 3}, {"id": 33, "name": "not whole"})
    write(sink, delivery_of(changes(T, moved(2, 22), beside, moved(1, 2), first=10, unchanged={1: ["note"]}), start=10))
    found = target.execute("SELECT * FROM t ORDER BY id").fetchall()
    assert found == [(2, "was 1", "y"), (11, "was 1", "y"), (22, "was 2", "y"), (33, "not whole", "y")]


@pytest.mark.parametrize(("kind", "old", "new"), [("numeric", "1.0", "1.00"), ("interval", "1 day", "24:00:00")])
def test_a_key_that_is_written_anew_in_another_way_is_there(
    target: psycopg.Connection[Any], make: Make, kind: str, old: str, new: str
) -> None:
    """The source deletes one and inserts the other; for PostgreSQL they are the same."""
    table = structure("t", column("id", kind, pa.string(), nullable=False), NAME)
    others = [(Op.INSERT, None, {"id": f"{i} days" if kind == "interval" else str(i)}) for i in range(2, 80)]
    own = [(Op.INSERT, None, {"id": old}), (Op.DELETE, {"id": old}, None), (Op.INSERT, None, {"id": new, "name": "b"})]
    write(make(), delivery_of(changes(table, *own, *others)))
    assert target.execute("SELECT name FROM t WHERE name IS NOT NULL").fetchall() == [("b",)]
    assert target.execute("SELECT count(*) FROM t").fetchone() == (79,)


def test_keys_that_are_one_at_the_target_are_refused_and_not_tried_again(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id numeric PRIMARY KEY, name text)")
    table = structure("t", column("id", "text", pa.string(), nullable=False), NAME)
    both = changes(table, *[(Op.INSERT, None, {"id": text_, "name": text_}) for text_ in ("1.0", "1.00")])
    with pytest.raises(Refused, match="cardinality violation") as caught:
        make().write(delivery_of(both))
    assert "Two keys of the source may be one at the target" in caught.value.fix
    assert rows(target, "t") == []


def test_a_change_without_its_key_is_poison_and_not_nothing(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute("CREATE TABLE t (id bigint, name text, note text, UNIQUE (id))")
    sink = make()
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 1, "name": "a"}))))
    odd = [(Op.DELETE, {"name": "a"}, None), (Op.UPDATE, None, {"name": "b"}), (Op.UPDATE, {"id": 1}, {"name": "c"})]
    block = changes(T, *odd, first=1, unchanged={2: ["id", "note"]})
    with pytest.raises(Poisoned, match="the key has no value") as caught:
        sink.write(delivery_of(block, start=1))
    assert set(caught.value.reasons) == {1, 2}
    write(sink, delivery_of(block, start=1).without([1, 2]))
    assert rows(target, "t", "id, name") == [("(1,c)",)]


def test_an_incomplete_change_of_a_row_that_is_not_there_is_poison_and_not_a_row_with_nulls(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run(
        "CREATE TABLE t (id int PRIMARY KEY, a text, c int)",
        "ALTER TABLE t ALTER a SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT i, repeat('secret', 2000), 0 FROM generate_series(1, 3) i",
    )
    source.blocks()
    start = source.end  # the rows themselves are not delivered
    source.run("UPDATE t SET c = 1 WHERE id = 2", "UPDATE t SET a = 'whole' WHERE id = 3")
    (delivery,) = source.deliveries(start)
    with pytest.raises(Poisoned) as caught:
        make().write(delivery)
    assert list(caught.value.reasons) == [start]
    assert "does not bring all of its columns" in str(caught.value)
    write(make(), delivery.without(caught.value.reasons))
    assert rows(target, "t", "id, a") == [("(3,whole)",)]


def test_truncate_empties_the_table_at_its_place_among_the_changes(
    source: Origin, target: psycopg.Connection[Any], make: Make
) -> None:
    source.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)", "TRUNCATE t")
    source.run("INSERT INTO t VALUES (2), (3)", "SELECT pg_logical_emit_message(true, 'not', 'a row')")
    assert write(make(), *source.deliveries()) == 6
    assert rows(target, "t") == [("(2)",), ("(3)",)]


def test_a_replay_changes_nothing_and_says_what_it_skipped(target: psycopg.Connection[Any], make: Make) -> None:
    batch = make_deliveries(make_events(40), 0, 40)
    write(make(), *batch)
    before = target.execute("SELECT ctid, xmin, * FROM orders ORDER BY id").fetchall()
    receipts = [make().write(d) for d in batch]
    assert [(r.events, r.skipped) for r in receipts] == [(0, 20), (0, 20)]
    assert target.execute("SELECT ctid, xmin, * FROM orders ORDER BY id").fetchall() == before


def test_a_batch_that_is_cut_anew_brings_each_event_once(target: psycopg.Connection[Any], make: Make) -> None:
    """Counted in a table without a key, which would show a second copy."""
    events = make_events(60, [make_table(key=())])
    write(make(keyless="append"), make_deliveries(events, 0, 40, lanes=4)[1])
    write(make(keyless="append"), *make_deliveries(events, 0, 30, lanes=2)[:1])
    write(make(keyless="append"), *make_deliveries(events, 0, 50, lanes=3))
    write(make(keyless="append"), *make_deliveries(events, 50, 60, lanes=1))
    assert [i for (i,) in target.execute("SELECT id FROM orders ORDER BY id")] == list(range(60))


def test_the_same_offsets_with_other_events_are_not_taken_for_a_replay(
    target: psycopg.Connection[Any], make: Make
) -> None:
    table = make_table()
    write(make(), delivery_of(make_block(5, table=table, positions="0/100")))
    write(make(), delivery_of(make_block(5, table=table, positions="0/900", first_id=100)))
    assert [i for (i,) in target.execute("SELECT id FROM orders ORDER BY id")] == [*range(5), *range(100, 105)]


def test_a_worker_that_wakes_up_late_is_refused(target: psycopg.Connection[Any], make: Make) -> None:
    table, late = make_table(), make()
    old = make_block(5, table=table, ops=Op.UPDATE)
    write(late, delivery_of(make_block(5, table=table)))
    write(make(), delivery_of(make_block(5, table=table, ops=Op.DELETE, offsets=range(10, 15)), start=10))
    with pytest.raises(Refused, match="events come again from offset 0") as caught:
        late.write(delivery_of(old))
    assert not is_retryable(caught.value)
    assert rows(target, "orders") == []


def test_a_worker_under_way_is_waited_for_and_what_it_brought_is_not_brought_again(
    target: psycopg.Connection[Any], make: Make
) -> None:
    events = make_events(20, [make_table(key=())])
    (share,) = make_deliveries(events, 0, 10, lanes=1)
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[Block]:
        begun.set()
        assert go_on.wait(120)
        yield from share

    slow, quick = make(keyless="append"), make(keyless="append")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(slow.write, Delivery("shop", "orders", 0, 10, 0, 1, slowly))
        assert begun.wait(120)
        second = threads.submit(lambda: write(quick, *make_deliveries(events, 0, 20, lanes=2)))
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        go_on.set()
        assert first.result(120).events == 10
        assert second.result(120) == 10
    assert [i for (i,) in target.execute("SELECT id FROM orders ORDER BY id")] == list(range(20))


def test_lanes_of_one_plan_do_not_wait_for_each_other(make: Make) -> None:
    first, second = make_deliveries(make_events(20), 0, 20)
    write(make(), *make_deliveries(make_events(20), 0, 20, lanes=1))  # the tables are there, with another plan
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[Block]:
        begun.set()
        assert go_on.wait(120)
        yield from first

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(make().write, dataclasses.replace(first, blocks=slowly))
        assert begun.wait(120)
        assert make(lock_timeout_seconds=5).write(second).skipped == 10
        go_on.set()
        assert slow.result(120).skipped == 10


def test_a_statement_that_changes_a_table_is_followed_before_its_first_row(
    target: psycopg.Connection[Any], make: Make
) -> None:
    def ddl(table: Table, offset: int) -> Delivery:
        batch = make_block(1, ops=Op.DDL, offsets=[offset]).batch.drop_columns(["after"])
        batch = batch.append_column("ddl", pa.array(['{"text": "ALTER TABLE"}']))
        return delivery_of(Block(table, batch), start=offset)

    sink = make()
    assert write(sink, ddl(make_table(), 0)) == 1
    assert rows(target, "orders") == []
    write(sink, ddl(make_table(version=2), 1), ddl(make_table("no_key", key=()), 2))
    assert "added_in_2" in _types(target)
    assert target.execute("SELECT to_regclass('no_key')").fetchone() == (None,)


def test_with_rewind_apply_older_events_come_again(target: psycopg.Connection[Any], make: Make) -> None:
    table = make_table()
    first = delivery_of(make_block(5, table=table))
    second = delivery_of(make_block(5, table=table, ops=Op.DELETE, offsets=range(5, 10)), start=5)
    write(make(), first, second)
    assert write(make(rewind="apply"), first) == 5
    assert len(rows(target, "orders")) == 5
    assert write(make(), second) == 5
    assert rows(target, "orders") == []


def test_with_rewind_apply_a_worker_of_an_earlier_run_is_still_refused(
    target: psycopg.Connection[Any], make: Make
) -> None:
    """An operator who moves the checkpoint back starts a later run; a worker that wakes up is of an earlier one."""
    table = make_table()
    old, new, asked = Epoch(3, "2026-01-01T00:00"), Epoch(3, "2026-01-01T00:01"), Epoch(9, "2026-01-01T00:02")
    first = delivery_of(make_block(5, table=table))
    second = delivery_of(make_block(5, table=table, ops=Op.UPDATE, offsets=range(5, 10)), start=5)
    for each in (first, second):
        make(rewind="apply").write(dataclasses.replace(each, epoch=new))
    for late in (
        dataclasses.replace(first, epoch=old),
        dataclasses.replace(first, epoch=new),
        dataclasses.replace(first, epoch=old, lane=3, lanes=4),
    ):
        with pytest.raises(Refused, match="comes too late"):
            make(rewind="apply").write(late)
    assert make(rewind="apply").write(dataclasses.replace(first, epoch=asked)).events == 5


def test_the_last_batch_alone_is_a_replay_also_with_rewind_apply(target: psycopg.Connection[Any], make: Make) -> None:
    table = make_table()
    first = delivery_of(make_block(5, table=table))
    second = delivery_of(make_block(5, table=table, first_id=5, offsets=range(5, 10)), start=5)
    write(make(), first, second)
    target.execute("DELETE FROM orders")
    assert make(rewind="apply").write(second).skipped == 5
    target.execute("DELETE FROM tidemill_positions WHERE pipeline = 'shop' AND sink = 's'")
    assert write(make(), second) == 5
    assert write(make(rewind="apply"), first, second) == 10
    assert len(rows(target, "orders")) == 10


def test_a_dead_letter_that_is_sent_again_is_taken_and_moves_no_position(
    target: psycopg.Connection[Any], make: Make
) -> None:
    sink = make()
    write(sink, delivery_of(make_block(5)), delivery_of(make_block(5, first_id=5, offsets=range(5, 10)), start=5))
    before = target.execute("SELECT * FROM tidemill_positions ORDER BY lane").fetchall()
    dead_letter = dataclasses.replace(delivery_of(make_block(1, first_id=99, offsets=[2]), start=2), redelivered=True)
    assert write(sink, dead_letter) == 1
    assert rows(target, "orders", "id")[-1] == ("(99)",)
    assert target.execute("SELECT * FROM tidemill_positions ORDER BY lane").fetchall() == before


def test_lanes_that_meet_a_new_table_at_once_make_it_once(target: psycopg.Connection[Any], make: Make) -> None:
    batch = make_deliveries(make_events(80), 0, 80, lanes=4)
    sinks = [make() for _ in batch]
    with ThreadPoolExecutor(4) as threads:
        receipts = list(threads.map(lambda pair: pair[0].write(pair[1]), zip(sinks, batch, strict=True)))
    assert sum(r.events for r in receipts) == 80
    assert target.execute("SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM customers)").fetchone() == (
        40,
        40,
    )


@pytest.mark.parametrize("size", [1, 300])
def test_rows_that_a_constraint_refuses_are_named_by_offset_and_never_quoted(
    target: psycopg.Connection[Any], make: Make, size: int
) -> None:
    table = make_table()
    write(make(), delivery_of(make_block(1, table=table, first_id=10_000)))
    target.execute("ALTER TABLE orders ADD CONSTRAINT few CHECK (quantity <> 7)")
    target.execute("CREATE UNIQUE INDEX one_customer ON orders (customer) WHERE id % 50 = 49")
    block = make_block(size, table=table, first_id=7, offsets=range(10, 10 + size))
    delivery = delivery_of(block, start=10)
    with pytest.raises(Poisoned) as caught:
        make().write(delivery)
    sevens = {10 + i - 7 for i in range(7, 7 + size) if i % 13 == 7}
    assert set(caught.value.reasons) == sevens
    assert "few" in caught.value.reasons[min(sevens)]
    assert "check violation (SQLSTATE 23514)" in str(caught.value)
    assert "Zürich" not in repr(caught.value.reasons) + str(caught.value)
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    write(make(), delivery.without(caught.value.reasons))
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (1 + size - len(sevens),)


@pytest.mark.parametrize("there", [True, False])
def test_a_sink_that_refused_rows_goes_on_with_others(target: psycopg.Connection[Any], make: Make, there: bool) -> None:
    """Tables and temporary tables of the transaction that was taken back are not there any more."""
    if there:
        target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text CHECK (name <> 'bad'), note text)")
    sink, bad = make(), "bad" if there else "nul \0"
    delivery = delivery_of(
        changes(T, *[(Op.UPDATE, None, {"id": i, "name": bad if i == 7 else "ok"}) for i in range(20)])
    )
    for _ in range(2):
        with pytest.raises(Poisoned) as caught:
            sink.write(delivery)
        assert list(caught.value.reasons) == [7]
    assert write(sink, delivery.without([7])) == 19
    dead_letter = changes(T, (Op.UPDATE, None, {"id": 7, "name": bad}), first=7)
    with pytest.raises(Poisoned):
        sink.write(dataclasses.replace(delivery_of(dead_letter, start=7), redelivered=True))
    assert write(sink, delivery_of(changes(T, (Op.UPDATE, None, {"id": 20, "name": "ok"}), first=20), start=20)) == 1
    assert len(rows(target, "t")) == 20


def test_values_that_rows_swap_need_a_deferred_constraint_and_the_refusal_says_so(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text CONSTRAINT one_name UNIQUE, note text)")
    sink = make()
    write(
        sink,
        delivery_of(changes(T, (Op.INSERT, None, {"id": 1, "name": "a"}), (Op.INSERT, None, {"id": 2, "name": "b"}))),
    )
    swapped = changes(
        T, (Op.UPDATE, None, {"id": 1, "name": "tmp"}), (Op.UPDATE, None, {"id": 2, "name": "a"}),
        (Op.UPDATE, None, {"id": 1, "name": "b"}), first=2,
    )  # fmt: skip
    with pytest.raises(Poisoned, match=r"one_name; .* unless the constraint is DEFERRABLE INITIALLY DEFERRED"):
        sink.write(delivery_of(swapped, start=2))
    target.execute(
        "ALTER TABLE t DROP CONSTRAINT one_name, ADD CONSTRAINT one_name UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
    )
    write(sink, delivery_of(swapped, start=2))
    assert rows(target, "t", "id, name") == [("(1,b)",), ("(2,a)",)]
    twice = changes(T, (Op.INSERT, None, {"id": 3, "name": "a"}), first=5)
    with pytest.raises(DeliveryError, match=r"a unique constraint of the target is not kept.*one_name"):
        sink.write(delivery_of(twice, start=5))


def test_values_that_the_targets_type_refuses_are_poison(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute(
        "CREATE TABLE orders (id smallint PRIMARY KEY, customer varchar(11), quantity int, price numeric, paid bool, "
        "weight float8, note text, placed_at timestamptz)"
    )
    block = make_block(3, table=make_table(), first_id=32766)
    with pytest.raises(Poisoned) as caught:
        make().write(delivery_of(block))
    assert set(caught.value.reasons) == {0, 1, 2}
    assert "column customer" in caught.value.reasons[0]
    assert "column id" in caught.value.reasons[2]
    assert "32768" not in str(caught.value.reasons)


def _kinds(*pairs: tuple[str, pa.DataType]) -> Table:
    return structure("t", ID, *(column(f"c{n}", native, arrow) for n, (native, arrow) in enumerate(pairs)))


_MICROS = pa.timestamp("us")
_LOSSY: list[tuple[str, pa.DataType, str, Any, Any]] = [
    ("numeric", pa.string(), "numeric(10,2)", "1.500", "1.505"),
    ("numeric(12,4)", pa.decimal128(12, 4), "numeric(10,2)", Decimal("7.2500"), Decimal("7.2501")),
    ("numeric(12,4)[]", pa.list_(pa.decimal128(12, 4)), "numeric(10,2)[]", [None, Decimal(1)], [Decimal("0.0001")]),
    ("numeric(12,4)", pa.decimal128(12, 4), "money", Decimal("1000.25"), Decimal("0.0001")),
    ("numeric(12,4)", pa.decimal128(12, 4), "cents", Decimal("1.25"), Decimal("1.2501")),
    ("numeric", pa.string(), "double precision", "0.1", "0.12345678901234567890"),
    ("bigint", pa.int64(), "double precision", 10**15, 2**53 + 1),
    ("double precision", pa.float64(), "real", 0.5, 0.1 + 0.2),
    ("text", pa.string(), "varchar(3)", "ab ", "abc "),
    ("text", pa.string(), "char(3)", "ab", "ab "),
    ("text", pa.string(), "name", "ab", "x" * 64),
    ("text", pa.string(), "numeric(10,2)", "1.5", "1.505"),
    ("timestamp without time zone", _MICROS, "timestamp(0)", datetime(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6)),
    ("timestamp without time zone", _MICROS, "timestamptz(3)", datetime(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 6)),
    ("timestamp without time zone", _MICROS, "date", datetime(2026, 1, 2), datetime(2026, 1, 2, 3)),
    ("time", pa.string(), "time(0)", "12:00:00", "12:00:00.6"),
    ("time with time zone", pa.string(), "time", "12:00:00+00", "12:00:00+02"),
    ("interval", pa.string(), "interval hour to minute", "02:03:00", "02:03:04"),
]  # fmt: skip


@pytest.mark.parametrize("keyless", [False, True])
def test_a_value_that_the_targets_type_would_change_is_poison(
    target: psycopg.Connection[Any], make: Make, keyless: bool
) -> None:
    """PostgreSQL itself rounds and cuts without a word."""
    target.execute("CREATE DOMAIN penny AS numeric(10,2); CREATE DOMAIN cents AS penny CHECK (value > 0)")
    table = _kinds(*[(native, arrow) for native, arrow, *_ in _LOSSY])
    listed = ", ".join(f"c{n} {kind}" for n, (_, _, kind, *_) in enumerate(_LOSSY))
    target.execute(f"CREATE TABLE t (id bigint {'' if keyless else 'PRIMARY KEY'}, {listed})".encode())
    table = dataclasses.replace(table, key=() if keyless else ("id",)).with_fingerprint()
    good = {f"c{n}": each[3] for n, each in enumerate(_LOSSY)}
    bad = [good | {f"c{n}": each[4]} for n, each in enumerate(_LOSSY)]
    block = changes(table, *[(Op.INSERT, None, row | {"id": i}) for i, row in enumerate([*bad, good])])
    sink = make(keyless="append")
    with pytest.raises(Poisoned) as caught:
        sink.write(delivery_of(block))
    assert caught.value.reasons.keys() == set(range(len(_LOSSY)))
    for n, (_, _, kind, *_) in enumerate(_LOSSY):
        assert f"column c{n} is " in caught.value.reasons[n], kind
    write(sink, delivery_of(block).without(caught.value.reasons))
    assert rows(target, "t", "id") == [(f"({len(_LOSSY)})",)]
    if not keyless:
        tail = changes(
            table, (Op.UPDATE, None, good | {"id": 18, "c0": "2.0"}), (Op.DELETE, {"id": 18}, None), first=19
        )
        write(sink, delivery_of(tail, start=19))
        assert rows(target, "t", "id") == []


def test_a_text_that_only_loses_spaces_is_seen_among_rows_that_are_new(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name varchar(3), note text)")
    block = changes(T, *[(Op.INSERT, None, {"id": i, "name": "abc  " if i == 70 else "ab "}) for i in range(100)])
    sink = make()
    with pytest.raises(Poisoned, match=r"column name is character varying\(3\)") as caught:
        sink.write(delivery_of(block))
    assert list(caught.value.reasons) == [70]
    assert write(sink, delivery_of(block).without([70])) == 99


@pytest.mark.parametrize(
    ("wanted", "kind", "compared"),
    [
        ("integer", "smallint", ""), ("bigint", "numeric(10,2)", ""), ("numeric(12,2)", "numeric(5,2)", ""),
        ("numeric(12,2)", "integer", ""), ("smallint", "real", ""), ("integer", "double precision", ""),
        ("smallint", "boolean", ""), ("text", "uuid", ""), ("text", "mood", ""), ("text[]", "mood[]", ""),
        ("text", "character varying", ""), ("character varying(9)", "text", ""), ("json", "jsonb", ""),
        ("timestamp(3) with time zone", "timestamp(6) without time zone", ""),
        ("date", "timestamp(0) with time zone", ""), ("interval", "interval", ""),
        ("double precision", "numeric", ""), ("bytea", "text", ""), ("character(4)", "character(6)", ""),
        ("character(9)", "character varying(3)", "bpchar"), ("real", "numeric(4,1)", "numeric"),
    ],
)  # fmt: skip
def test_a_type_is_in_doubt_only_if_it_may_change_a_value(wanted: str, kind: str, compared: str) -> None:
    assert comparison_type(wanted, kind) == compared


def test_a_domain_that_wants_a_value_does_not_keep_rows_from_being_deleted(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE DOMAIN label AS text NOT NULL CHECK (length(value) < 9)")
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name label, note text)")
    sink = make()
    write(sink, delivery_of(changes(T, *[(Op.INSERT, None, {"id": i, "name": "a", "note": "n"}) for i in (1, 2)])))
    later = changes(
        T, (Op.DELETE, {"id": 1}, None), (Op.UPDATE, None, {"id": 2, "note": "m"}), first=2, unchanged={1: ["name"]}
    )
    write(sink, delivery_of(later, start=2))
    assert rows(target, "t") == [("(2,a,m)",)]
    with pytest.raises(Poisoned, match="check violation"):
        sink.write(delivery_of(changes(T, (Op.UPDATE, None, {"id": 2, "name": "too long a label"}), first=4), start=4))


def test_tables_that_would_hide_or_redirect_rows_are_refused(
    target: psycopg.Connection[Any], postgres: Postgres, make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text, note text)")
    block = changes(T, (Op.DELETE, {"id": 1}, None))
    target.execute("CREATE RULE never AS ON DELETE TO t DO INSTEAD NOTHING")
    with pytest.raises(Refused, match=r"public\.t has the rule never"):
        make().write(delivery_of(block))
    target.execute("DROP RULE never ON t")
    target.execute("CREATE VIEW v AS SELECT * FROM t")
    with pytest.raises(Refused, match=r"public\.v is no table"):
        make(table="v").write(delivery_of(block))
    role = f"limited_{next(_names)}"
    target.execute(
        f"CREATE ROLE {role} LOGIN; GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON t TO {role};"
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY few ON t USING (id > 9)".encode()
    )
    try:
        target.execute("INSERT INTO t VALUES (1)")
        limited = make(dsn=postgres.dsn(target.info.dbname, role))
        with pytest.raises(Refused, match="PostgreSQL does not allow it") as caught:
            limited.write(delivery_of(block))
        assert "BYPASSRLS" in caught.value.fix
        limited.close()
    finally:
        target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_names_that_must_be_quoted_and_columns_in_another_order_change_nothing(
    target: psycopg.Connection[Any], make: Make
) -> None:
    names = ("Id", "select", 'a "quoted" name', "a.b", "größe", "100%")
    table = structure("Order Lines", *(column(n, "text", pa.string(), nullable=n != "Id") for n in names), key=("Id",))
    reverse = ", ".join('"{}" text'.format(n.replace('"', '""')) for n in names[::-1])
    target.execute(f'CREATE TABLE "Order Lines" (own int DEFAULT 5, {reverse}, PRIMARY KEY ("Id"))'.encode())
    target.execute("""CREATE TYPE mood AS ENUM ('sad', 'Ok, "so"'); ALTER TABLE "Order Lines" ADD "Moods" mood[]""")
    table = dataclasses.replace(
        table, columns=(*table.columns, column("Moods", "public.mood[]", pa.list_(pa.string())))
    ).with_fingerprint()
    row = {n: f"{n} of 1" for n in names} | {"Moods": ["sad", None, 'Ok, "so"']}
    sink = make()
    write(sink, delivery_of(changes(table, (Op.INSERT, None, row), (Op.INSERT, None, row | {"Id": "2"}))))
    part = {"Id": "2", "select": "new"}
    rest = [n for n in (*names, "Moods") if n not in part]
    gone = (Op.DELETE, {"Id": row["Id"]}, None)
    write(sink, delivery_of(changes(table, gone, (Op.UPDATE, None, part), first=2, unchanged={1: rest}), start=2))
    listed = ", ".join('"{}"'.format(n.replace('"', '""')) for n in names)
    found = target.execute(f'SELECT own, "Moods"::text[], {listed} FROM "Order Lines"'.encode()).fetchone()
    assert found == (5, row["Moods"], "2", "new", *[row[n] for n in names[2:]])


def test_new_columns_are_added_and_renamed_ones_keep_their_values(target: psycopg.Connection[Any], make: Make) -> None:
    first, second = make_table(), make_table(version=2)
    sink = make()
    write(sink, delivery_of(make_block(2, table=first)))
    write(sink, delivery_of(make_block(2, table=second, first_id=2, offsets=(2, 3)), start=2))
    renamed = tuple(Column("remark", c.type) if c.name == "note" else c for c in second.columns)
    third = Table(
        "shop", "public", "orders", renamed, ("id",), version=3, sequence=3, renamed=(("note", "remark"),)
    ).with_fingerprint()
    write(sink, delivery_of(make_block(2, table=third, first_id=4, offsets=(4, 5)), start=4))
    assert target.execute("SELECT id, remark FROM orders ORDER BY id").fetchall() == [
        (0, None), (1, "note 1"), (2, "note 2"), (3, None), (4, None), (5, None),
    ]  # fmt: skip
    write(make(rewind="apply"), delivery_of(make_block(2, table=third, first_id=4, offsets=(4, 5)), start=4))


def _reshaped(table: Table, version: int, **columns: tuple[str, pa.DataType] | None) -> Table:
    """The table with columns of other types, or (None) without them."""
    kept = []
    for one in table.columns:
        change = columns.get(one.name, one)
        if isinstance(change, tuple):
            kept.append(Column(one.name, DataType(change[0], change[1], JsonForm.STRING), one.nullable))
        elif change is not None:
            kept.append(one)
    return Table("shop", "public", "orders", tuple(kept), ("id",), version=version, sequence=version).with_fingerprint()


def _types(db: psycopg.Connection[Any]) -> dict[str, str]:
    found = db.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'orders'::regclass AND attnum > 0 AND NOT attisdropped"
    )
    return dict(found.fetchall())


def test_types_are_widened_and_never_narrowed(target: psycopg.Connection[Any], make: Make) -> None:
    sink = make()
    write(sink, delivery_of(make_block(1)))
    wider = _reshaped(make_table(), 2, quantity=("bigint", pa.int64()), price=("numeric(14,4)", pa.decimal128(14, 4)))
    write(sink, delivery_of(make_block(1, table=wider, first_id=1, offsets=[1]), start=1))
    assert (_types(target)["quantity"], _types(target)["price"]) == ("bigint", "numeric(14,4)")
    narrower = _reshaped(make_table(), 3, quantity=("smallint", pa.int16()))
    write(sink, delivery_of(make_block(1, table=narrower, first_id=2, offsets=[2]), start=2))
    assert _types(target)["quantity"] == "bigint"
    other = _reshaped(make_table(), 4, paid=("date", pa.date32()))
    block = Block(other, make_block(1, table=make_table(), ops=Op.DELETE, offsets=[3]).batch)
    with pytest.raises(Refused, match=r"column paid of public\.orders is boolean and became date"):
        sink.write(delivery_of(block, start=3))


def test_a_dropped_column_stays_unless_destructive_changes_are_allowed(
    target: psycopg.Connection[Any], make: Make
) -> None:
    write(make(), delivery_of(make_block(1)))
    target.execute("ALTER TABLE orders ADD COLUMN mine int DEFAULT 5")
    fewer = _reshaped(make_table(), 2, customer=None)
    write(make(), delivery_of(make_block(1, table=fewer, first_id=1, offsets=[1]), start=1))
    assert target.execute("SELECT id, customer IS NULL FROM orders ORDER BY id").fetchall() == [(0, False), (1, True)]
    least = _reshaped(make_table(), 3, customer=None, note=None)
    sink = make(allow_destructive_ddl=True)
    write(sink, delivery_of(make_block(1, table=least, first_id=2, offsets=[2]), start=2))
    assert {"mine", "customer"} <= _types(target).keys()  # dropped before it was allowed, and never the source's
    assert "note" not in _types(target)


def test_tables_that_share_a_target_do_not_take_each_others_columns_away(
    target: psycopg.Connection[Any], make: Make
) -> None:
    id_, a, b = (column(n, "bigint", pa.int64(), nullable=n != "id") for n in ("id", "a", "b"))
    one, two = structure("one", id_, a), structure("two", id_, b, version=2)
    for turn in range(2):
        sink = make(table="merged", allow_destructive_ddl=True)
        first = 4 * turn
        blocks = [
            changes(one, (Op.INSERT, None, {"id": first, "a": 1}), first=first),
            changes(two, (Op.INSERT, None, {"id": first + 1, "b": 2}), first=first + 1),
        ]
        write(sink, delivery_of(*blocks, start=first))
    found = target.execute("SELECT id, a, b FROM merged ORDER BY id").fetchall()
    assert found == [(0, 1, None), (1, None, 2), (4, 1, None), (5, None, 2)]


def test_tables_are_not_made_when_that_is_not_wanted(target: psycopg.Connection[Any], make: Make) -> None:
    with pytest.raises(Refused, match=r"public\.orders does not exist"):
        make(create_tables=False).write(delivery_of(make_block(1)))
    target.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    with pytest.raises(Refused, match="lacks changes of the source"):
        make(create_tables=False).write(delivery_of(make_block(1)))
    write(make(), delivery_of(make_block(1)))
    assert len(_types(target)) == 8


def test_a_table_without_a_key_is_refused_or_only_grows(target: psycopg.Connection[Any], make: Make) -> None:
    table = make_table(key=(), identity="full")
    with pytest.raises(Refused, match="has no key"):
        make().write(delivery_of(make_block(2, table=table)))
    mixed = make_block(3, table=table, ops=[Op.INSERT, Op.UPDATE, Op.INSERT])
    with pytest.raises(Poisoned, match="cannot be found") as caught:
        make(keyless="append").write(delivery_of(mixed))
    assert list(caught.value.reasons) == [1]
    write(make(keyless="append"), delivery_of(mixed).without([1]))
    assert target.execute("SELECT id FROM orders ORDER BY id").fetchall() == [(0,), (2,)]


def test_a_key_without_a_unique_index_at_the_target_is_refused(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute("CREATE TABLE orders (id bigint)")
    with pytest.raises(Refused, match="no unique index on its key"):
        make().write(delivery_of(make_block(1)))


def test_a_unique_index_may_include_other_columns(target: psycopg.Connection[Any], make: Make) -> None:
    write(make(), delivery_of(make_block(1)))
    target.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    target.execute("CREATE UNIQUE INDEX ON orders (id) INCLUDE (customer)")
    assert write(make(), delivery_of(make_block(1, offsets=[1]), start=1)) == 1


def test_columns_that_the_target_generates_and_columns_of_its_own_are_left_alone(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, mine text DEFAULT 'x', "
        "weight float8 GENERATED ALWAYS AS (id * 2.0) STORED)"
    )
    sink = make()
    write(sink, delivery_of(make_block(2)), delivery_of(make_block(2, ops=Op.UPDATE, offsets=(2, 3)), start=2))
    assert target.execute("SELECT id, mine, weight FROM orders ORDER BY id").fetchall() == [(0, "x", 0), (1, "x", 2)]


def test_a_key_that_the_target_counts_by_itself_has_the_sources_values(
    target: psycopg.Connection[Any], make: Make
) -> None:
    """As in a target that is made from the source's own DDL."""
    target.execute("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text, note text)")
    sink = make()
    first = [(Op.INSERT, None, {"id": i, "name": "a", "note": "n"}) for i in (100, 200, 300)]
    write(sink, delivery_of(changes(T, *first)))
    second = [
        (Op.UPDATE, None, {"id": 100, "name": "b", "note": "n"}),
        (Op.DELETE, {"id": 200}, None),
        (Op.INSERT, None, {"id": 400, "name": "new", "note": None}),
        (Op.UPDATE, None, {"id": 300, "name": "c"}),
    ]
    write(sink, delivery_of(changes(T, *second, first=3, unchanged={3: ["note"]}), start=3))
    # All columns but the key unchanged: the row need only be there.
    write(
        sink, delivery_of(changes(T, (Op.UPDATE, None, {"id": 300}), first=7, unchanged={0: ["name", "note"]}), start=7)
    )
    found = target.execute("SELECT id, name, note FROM t ORDER BY id").fetchall()
    assert found == [(100, "b", "n"), (300, "c", "n"), (400, "new", None)]
    moved = changes(T, (Op.UPDATE, {"id": 300}, {"id": 301, "name": "d"}), first=8, unchanged={0: ["note"]})
    with pytest.raises(Poisoned, match="SET GENERATED BY DEFAULT"):
        sink.write(delivery_of(moved, start=8))


def test_a_column_that_the_target_counts_by_itself_is_refused_where_updates_could_not_set_it(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (id bigint PRIMARY KEY, n bigint GENERATED ALWAYS AS IDENTITY)")
    counted = structure("t", ID, column("n", "bigint", pa.int64()))
    with pytest.raises(Refused, match=r"column n of public\.t is GENERATED ALWAYS AS IDENTITY") as caught:
        make().write(delivery_of(changes(counted, (Op.INSERT, None, {"id": 1, "n": 77}))))
    target.execute(caught.value.fix.partition(";")[0].encode())
    write(make(), delivery_of(changes(counted, (Op.INSERT, None, {"id": 1, "n": 77}))))
    write(make(), delivery_of(changes(counted, (Op.UPDATE, None, {"id": 1, "n": 78}), first=1), start=1))
    assert rows(target, "t") == [("(1,78)",)]


def test_a_table_without_a_key_takes_the_sources_values_for_what_the_target_counts(
    target: psycopg.Connection[Any], make: Make
) -> None:
    target.execute("CREATE TABLE t (n bigint GENERATED ALWAYS AS IDENTITY, name text)")
    keyless = structure("t", column("n", "bigint", pa.int64()), NAME, key=())
    write(make(keyless="append"), delivery_of(changes(keyless, (Op.INSERT, None, {"n": 77, "name": "a"}))))
    assert rows(target, "t") == [("(77,a)",)]


def test_names_follow_the_template(target: psycopg.Connection[Any], make: Make) -> None:
    write(make(table="copy_${source.database}.${source.schema}_${source.table}"), delivery_of(make_block(1)))
    assert rows(target, "copy_shop.public_orders", "id") == [("(0)",)]
    write(make(id="other", table="mine"), delivery_of(make_block(1)))
    assert rows(target, "public.mine", "id") == [("(0)",)]
    with pytest.raises(ValueError, match="cannot depend on a row"):
        make(table="t_${after.id}")
    with pytest.raises(ValueError, match="has 3 parts"):
        make(table="a.b.c")
    with pytest.raises(Refused, match="cannot be a name"):
        make(id="long", table="x" * 64).write(delivery_of(make_block(1)))


def test_types_of_mysql_hold_every_value(target: psycopg.Connection[Any], make: Make) -> None:
    kinds = {
        "id": ("bigint unsigned", pa.uint64(), 2**64 - 1, "numeric(20,0)"),
        "tiny": ("tinyint unsigned", pa.uint8(), 255, "smallint"),
        "medium": ("int unsigned", pa.uint32(), 2**32 - 1, "bigint"),
        "small": ("tinyint", pa.int8(), -128, "smallint"),
        "label": ("enum('a','b')", pa.string(), "a", "text"),
        "doc": ("json", pa.string(), '{"a": 1.50}', "json"),
        "raw": ("varbinary(8)", pa.binary(), b"\x00\\\n\xff", "bytea"),
        "price": ("decimal(65,30)", pa.decimal256(65, 30), None, "numeric(65,30)"),
        "at": ("datetime(6)", pa.timestamp("us"), 5, "timestamp without time zone"),
        "stamp": ("timestamp(6)", pa.timestamp("us", "UTC"), 5, "timestamp with time zone"),
        "clock": ("time(1)", pa.string(), "-838:59:59.0", "interval"),
        "bits": ("bit(64)", pa.uint64(), 2**63, "numeric(20,0)"),
        "year": ("year", pa.uint16(), 2155, "integer"),
        "flag": ("bit(1)", pa.bool_(), True, "boolean"),
        "uid": ("uuid", pa.string(), "6ccd780c-baba-1026-9564-5b8c656024db", "uuid"),
        "near": ("vector(2)", pa.list_(pa.float32()), [0.5, -1.0], "real[]"),
        "place": ("point", pa.binary(), b"\x01", "bytea"),
    }
    columns = tuple(Column(name, DataType(k[0], k[1], JsonForm.STRING)) for name, k in kinds.items())
    table = Table("shop", "", "orders", columns, ("id",), version=1, sequence=1).with_fingerprint()
    row = pa.StructArray.from_arrays(
        [pa.array([k[2]], k[1]) for k in kinds.values()], fields=list(table.arrow_struct())
    )
    batch = make_block(1).batch
    batch = batch.set_column(batch.schema.get_field_index("after"), "after", row)
    write(make(), delivery_of(Block(table, batch)))
    target.execute("SET search_path = shop")
    assert _types(target) == {name: k[3] for name, k in kinds.items()}
    found = target.execute("SELECT id, raw, doc::text, clock::text, bits FROM orders").fetchone()
    assert found == (2**64 - 1, b"\x00\\\n\xff", '{"a": 1.50}', "PT-838H-59M-59S", 2**63)


def test_a_change_of_a_document_is_not_taken_for_the_document_and_a_zero_date_not_for_null(
    target: psycopg.Connection[Any], make: Make
) -> None:
    columns = (
        Column("id", DataType("bigint", pa.int64(), JsonForm.NUMBER), nullable=False),
        Column("doc", DataType("json", pa.string(), JsonForm.RAW)),
        Column("day", DataType("date", pa.date32(), JsonForm.STRING)),
    )
    table = Table("shop", "", "orders", columns, ("id",), version=1, sequence=1).with_fingerprint()
    row = pa.StructArray.from_arrays(
        [pa.array([1, 2, 3]), pa.array(["{}", None, "[]"]), pa.array([0, 1, None], pa.date32())],
        fields=list(table.arrow_struct()),
    )
    change = {"side": int(Side.AFTER), "column": 1, "text": '[{"op": "remove", "path": "$.a"}]'}
    zero = {"side": int(Side.AFTER), "column": 2, "text": "0000-00-00"}
    batch = make_block(3).batch
    batch = batch.set_column(batch.schema.get_field_index("after"), "after", row)
    batch = batch.append_column("odd", pa.array([None, [change], [zero]], ODD))
    with pytest.raises(Poisoned) as caught:
        make().write(delivery_of(Block(table, batch)))
    assert set(caught.value.reasons) == {1, 2}
    assert "only a change of a JSON document" in caught.value.reasons[1]
    assert "column day" in caught.value.reasons[2]


def test_a_type_of_the_users_choice_is_used(target: psycopg.Connection[Any], make: Make) -> None:
    write(make(types={"numeric(12,2)": "text"}), delivery_of(make_block(1)))
    assert _types(target)["price"] == "text"


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("smallint", "integer", True), ("bigint", "integer", False), ("integer", "numeric(10,0)", True),
        ("bigint", "numeric(12,2)", False), ("numeric(12,2)", "numeric(14,2)", True),
        ("numeric(12,2)", "numeric(13,4)", False), ("numeric(12,2)", "numeric", True),
        ("real", "double precision", True), ("double precision", "real", False),
        ("character varying(10)", "character varying(20)", True),
        ("character varying(20)", "character varying(10)", False),
        ("character varying", "character varying(9)", False),
        ("date", "text", True), ("bytea", "text", False), ("integer[]", "text", False), ("date", "boolean", False),
        ("timestamp(3) without time zone", "timestamp without time zone", True),
        ("timestamp(0) without time zone", "timestamp(3) without time zone", True),
    ],
)  # fmt: skip
def test_a_type_is_wider_only_if_it_holds_every_value(old: str, new: str, answer: bool) -> None:
    assert widens(old, new) is answer


def test_an_unknown_type_is_text() -> None:
    assert target_type(DataType("public.mood", pa.string(), JsonForm.STRING)) == "text"
    assert target_type(DataType("public.mood[]", pa.list_(pa.string()), JsonForm.ARRAY)) == "text[]"
    assert target_type(DataType("interval year to month", pa.string(), JsonForm.STRING)) == "interval year to month"


@pytest.mark.parametrize(
    "native", ["text(); DROP TABLE t; --)", "interval '1 day'); DROP TABLE t; --", "numeric(1);x(2)", "date\n;x"]
)
def test_a_type_of_another_database_is_no_statement(native: str) -> None:
    assert target_type(DataType(native, pa.string(), JsonForm.STRING)) == "text"


def test_text_for_copy_escapes_what_would_end_a_value() -> None:
    columns = [text.column(pa.array(["a\tb", "\\.", None, "\\N"])), text.column(pa.array([1, None, 3, 4]).slice(0, 4))]
    assert text.lines(columns).to_pybytes() == b"a\\tb\t1\n\\\\.\t\\N\n\\N\t3\n\\\\N\t4\n"


def test_settings_of_the_role_do_not_weaken_what_a_receipt_says(
    target: psycopg.Connection[Any], postgres: Postgres, make: Make
) -> None:
    role = f"lax_{next(_names)}"
    target.execute(
        f"CREATE ROLE {role} SUPERUSER LOGIN; ALTER ROLE {role} SET synchronous_commit = off;"
        f"ALTER ROLE {role} SET default_transaction_isolation = serializable;"
        f"ALTER ROLE {role} SET DateStyle = 'SQL'".encode()
    )
    try:
        sink = make(dsn=postgres.dsn(target.info.dbname, role))
        write(sink, delivery_of(make_block(1)))
        db = sink._connection()
        names = ("synchronous_commit", "transaction_isolation", "DateStyle")
        found = [db.execute("SELECT current_setting(%s)", [n]).fetchone()[0] for n in names]  # type: ignore[index]
        assert found == ["on", "read committed", "ISO, YMD"]
        assert "tcp_user_timeout" in db.info.get_parameters()
        sink.close()
    finally:
        target.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}".encode())


def test_rows_that_wait_for_their_window_are_bounded_by_bytes(
    target: psycopg.Connection[Any], make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[int] = []
    apply = Applier.apply

    def watched(self: Applier, to: Any, stretches: Any) -> None:
        applied.append(sum(stretch.all().nbytes for stretch in stretches))
        apply(self, to, stretches)

    monkeypatch.setattr(Applier, "apply", watched)
    monkeypatch.setattr("tidemill.sinks.postgres.windows._MOST_BYTES", 1 << 20)
    large = structure("t", column("id", "bigint", pa.int64(), nullable=False), column("v", "text", pa.string()))
    blocks = [changes(large, (Op.INSERT, None, {"id": i, "v": "x" * 300_000}), first=i) for i in range(12)]
    write(make(), delivery_of(*blocks))
    assert len(applied) == 3
    assert max(applied) < 2 << 20
    assert len(rows(target, "public.t", "id")) == 12


def test_a_server_that_is_away_is_worth_a_retry_and_a_wrong_login_is_not(postgres: Postgres, make: Make) -> None:
    with pytest.raises(DeliveryError, match="cannot be reached") as away:
        make(dsn="postgresql://u:hush@127.0.0.1:9/d", connect_timeout_seconds=2).write(delivery_of(make_block(1)))
    assert is_retryable(away.value)
    with pytest.raises(Refused, match="refused the login") as refused:
        make(dsn=postgres.dsn("postgres", "nobody", "hush")).write(delivery_of(make_block(1)))
    assert "hush" not in str(away.value) + str(refused.value)


def test_a_table_that_was_changed_by_somebody_is_looked_at_again(target: psycopg.Connection[Any], make: Make) -> None:
    sink = make()
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 1, "name": "a", "note": "n"}))))
    target.execute("ALTER TABLE t DROP COLUMN note")
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 2, "name": "b", "note": "n"}), first=1), start=1))
    assert target.execute("SELECT id, note FROM t ORDER BY id").fetchall() == [(1, None), (2, "n")]
    target.execute("DROP TABLE t")
    write(sink, delivery_of(changes(T, (Op.INSERT, None, {"id": 3, "name": "c", "note": "n"}), first=2), start=2))
    assert rows(target, "t", "id") == [("(3)",)]
    careful = make(create_tables=False)
    write(careful, delivery_of(changes(T, (Op.INSERT, None, {"id": 4}), first=3), start=3))
    target.execute("ALTER TABLE t DROP COLUMN note")
    with pytest.raises(Refused, match="lacks changes of the source"):
        careful.write(delivery_of(changes(T, (Op.INSERT, None, {"id": 5}), first=4), start=4))


def test_what_only_an_operator_can_mend_is_refused_with_its_name(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, note text);"
        "CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO gone VALUES (1); RETURN NEW; END';"
        "CREATE TRIGGER log BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION log()"
    )
    sink = make()
    for _ in range(2):
        with pytest.raises(Refused, match=r"undefined table \(SQLSTATE 42P01\)") as caught:
            sink.write(delivery_of(changes(T, (Op.INSERT, None, {"id": 1}))))
        assert not is_retryable(caught.value)
        assert "Triggers may name what is gone" in caught.value.fix


def test_a_server_that_takes_no_writes_for_a_while_is_worth_a_retry(
    target: psycopg.Connection[Any], make: Make
) -> None:
    block = delivery_of(changes(T, (Op.INSERT, None, {"id": 1})))
    target.execute(f"ALTER DATABASE {target.info.dbname} SET default_transaction_read_only = on".encode())
    sink = make()
    with pytest.raises(DeliveryError, match="the server takes no writes") as caught:
        sink.write(block)
    assert is_retryable(caught.value)
    target.execute(f"ALTER DATABASE {target.info.dbname} RESET default_transaction_read_only".encode())
    assert write(sink, block) == 1


def test_truncate_empties_a_table_that_foreign_keys_point_to(target: psycopg.Connection[Any], make: Make) -> None:
    target.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, name text, note text);"
        "CREATE TABLE c (id bigint PRIMARY KEY, t bigint REFERENCES t DEFERRABLE INITIALLY DEFERRED)"
    )
    child = structure("c", ID, column("t", "bigint", pa.int64()))
    sink = make()
    filled = changes(T, (Op.INSERT, None, {"id": 1}), (Op.INSERT, None, {"id": 2}))
    write(sink, delivery_of(filled, changes(child, (Op.INSERT, None, {"id": 1, "t": 2}), first=2)))
    emptied = changes(T, (Op.TRUNCATE, None, None), first=3)
    with pytest.raises(DeliveryError, match="foreign keys of the target are not kept") as caught:
        sink.write(delivery_of(emptied, start=3))
    assert is_retryable(caught.value)  # the other table may be emptied by another lane
    write(sink, delivery_of(emptied, changes(child, (Op.TRUNCATE, None, None), first=4), start=3))
    assert (rows(target, "t"), rows(target, "c")) == ([], [])


def test_a_connection_that_breaks_in_the_middle_leaves_nothing_behind(
    target: psycopg.Connection[Any], make: Make
) -> None:
    sink = make()
    write(sink, delivery_of(make_block(1)))

    def broken() -> Iterator[Block]:
        yield make_block(2, table=make_table(), first_id=5, offsets=(5, 6))
        target.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tidemill'")

    with pytest.raises(DeliveryError) as caught:
        sink.write(Delivery("shop", "orders", 5, 7, 0, 1, broken))
    assert is_retryable(caught.value)
    sink.close()
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    write(sink, delivery_of(make_block(2, first_id=5, offsets=(5, 6)), start=5, end=7))
    assert target.execute("SELECT count(*) FROM orders").fetchone() == (3,)


def test_doctor_names_what_is_missing(target: psycopg.Connection[Any], postgres: Postgres, make: Make) -> None:
    assert all(check.outcome is Outcome.PASS for check in make().doctor())
    write(make(), delivery_of(make_block(1)))
    assert [c.detail for c in make().doctor() if c.name == "known tables"] == ["1"]
    role = f"reader_{next(_names)}"
    target.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT ON tidemill_tables TO {role}".encode())
    try:
        poor = make(dsn=postgres.dsn(target.info.dbname, role))
        found = {check.name: check for check in poor.doctor()}
        assert (found["state"].outcome, found["public.orders"].outcome) == (Outcome.FAIL, Outcome.FAIL)
        with pytest.raises(Refused, match="PostgreSQL does not allow it"):
            poor.write(delivery_of(make_block(1, offsets=[1]), start=1))
        poor.close()
    finally:
        target.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    (away,) = make(dsn="postgresql://127.0.0.1:9/d").doctor()
    assert (away.name, away.outcome) == ("server", Outcome.FAIL)
