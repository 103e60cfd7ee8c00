"""`mode: changelog`: every event, once."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sinks.benches import DELETE, ID, INSERT, NAME, TRUNCATE, UPDATE, T, row
from tests.sinks.clickhouse.support import Bench
from tests.support.changes import changes, delivery, structure
from tests.support.deliveries import make_deliveries, make_events
from tidemill.errors import Refused


def test_a_changelog_has_every_event_with_both_images(bench: Bench) -> None:
    block = changes(
        T, (INSERT, None, row(1)), (UPDATE, row(1), row(1, "b", None)), (DELETE, {"id": 1}, None),
        (TRUNCATE, None, None), unchanged={1: ["note"]},
    )  # fmt: skip
    bench.write(delivery(block), mode="changelog")
    rows = bench.rows(
        "_offset, _op, _position, _ordinal, _unchanged, before_id, before_name, after_id, after_name",
        tail="ORDER BY _offset",
    )
    assert [tuple(r.values()) for r in rows] == [
        (0, "insert", "0/0", 0, [], None, None, 1, "a"),
        (1, "update", "0/1", 1, ["note"], 1, "a", 1, "b"),
        (2, "delete", "0/2", 2, [], 1, None, None, None),
        (3, "truncate", "0/3", 3, [], None, None, None, None),
    ]


def test_a_changelog_takes_tables_without_a_key_and_columns_that_come_later(bench: Bench) -> None:
    first, second = structure("t", ID, key=()), structure("t", ID, NAME, key=(), version=2)
    bench.write(delivery(changes(first, (INSERT, None, {"id": 1}))), mode="changelog")
    bench.write(delivery(changes(second, (INSERT, None, {"id": 1, "name": "x"}), first=1), start=1), mode="changelog")
    assert bench.rows("after_name", tail="ORDER BY _offset") == [{"after_name": None}, {"after_name": "x"}]


def test_a_changelog_has_each_event_once_however_the_batch_is_cut_again(bench: Bench) -> None:
    events = make_events(100)
    bench.write(*make_deliveries(events, 0, 60), mode="changelog")
    bench.write(*make_deliveries(events, 0, 30, lanes=3), *make_deliveries(events, 30, 100), mode="changelog")
    bench.write(*make_deliveries(events, 0, 100), mode="changelog")
    (found,) = bench.rows("count() AS n, uniqExact(_offset) AS offsets", "orders", "")
    assert found == {"n": 50, "offsets": 50}


def test_a_changelog_shows_each_event_once_although_a_late_worker_wrote_it_again(bench: Bench) -> None:
    """Lane 3 of 4 looked what is there, and stalled; the batch was dealt to one lane, and the next one delivered."""
    events = make_events(200)
    late = bench.sink(mode="changelog")
    stalled, go, done = threading.Event(), threading.Event(), []

    def blocks() -> Iterator[Any]:
        yield from four[3].blocks()
        stalled.set()
        assert go.wait(60)

    four = make_deliveries(events, 0, 100, lanes=4)
    thread = threading.Thread(target=lambda: done.append(late.write(dataclasses.replace(four[3], blocks=blocks))))
    thread.start()
    assert stalled.wait(60)
    bench.write(*make_deliveries(events, 0, 100, lanes=1), *make_deliveries(events, 100, 200), mode="changelog")
    go.set()
    thread.join()
    assert done[0].events == 25
    for table in ("orders", "customers"):
        (found,) = bench.rows("count() AS n, uniqExact(_offset) AS offsets", table, "FINAL")
        assert found == {"n": 100, "offsets": 100}


def test_a_changelog_that_several_logs_share_keeps_events_with_the_same_offset(bench: Bench) -> None:
    one, other = structure("one", ID), structure("other", ID)
    options = {"mode": "changelog", "table": "all", "shared_tables": True}
    bench.write(delivery(changes(one, (INSERT, None, {"id": 1}))), id="a", **options)
    bench.write(delivery(changes(other, (INSERT, None, {"id": 2}), position="9/")), id="b", **options)
    assert len(bench.rows("_offset", "all", "")) == 2
    bench.write(delivery(changes(T, (INSERT, None, row(1)))), mode="changelog")
    with pytest.raises(Refused, match="several logs have the same offsets"):
        bench.write(delivery(changes(T, (INSERT, None, row(1)))), mode="changelog", shared_tables=True)


def test_a_truncate_that_comes_late_leaves_what_came_after_it(bench: Bench) -> None:
    """A look whether there is anything newer, and then TRUNCATE TABLE, would take what came in between."""
    truncate = delivery(changes(T, (TRUNCATE, None, None), first=1), start=1)
    bench.write(delivery(changes(T, (INSERT, None, row(1)))), truncate)
    late = bench.sink()
    late.write(truncate)
    session = late._open()
    before = session.client.command

    def command(statement: str, **options: Any) -> Any:
        if "DELETE" in statement or "TRUNCATE" in statement:
            bench.write(delivery(changes(T, (INSERT, None, row(2)), first=2), start=2))
        return before(statement, **options)

    session.client.command = command
    late.write(truncate)
    assert bench.rows() == [row(2)]


def test_a_changelog_that_heeds_no_tokens_still_has_each_event_once(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1)), (INSERT, None, row(2))))
    bench.write(batch, mode="changelog")
    bench.server.query(f"ALTER TABLE {bench.database}.t RESET SETTING non_replicated_deduplication_window")
    again = bench.sink(mode="changelog")
    later = delivery(changes(T, (INSERT, None, row(3)), first=2), start=2)
    for each in (batch, later, later):
        again.write(each)
    assert len(bench.rows("_offset", tail="")) == 3
