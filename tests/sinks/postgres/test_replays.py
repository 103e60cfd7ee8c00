"""What comes again, comes late or side by side leaves each event once."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.sinks.postgres.support import Make, delivery_of, types, write
from tests.support.blocks import make_block, make_table
from tests.support.deliveries import make_deliveries, make_events
from tests.support.origin import rows
from tidemill.errors import Refused, is_retryable
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery, Epoch
from tidemill.model.table import Table


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
    assert "added_in_2" in types(target)
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
