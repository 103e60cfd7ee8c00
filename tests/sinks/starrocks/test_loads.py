"""Loads that come again, are lost or fail: labels."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.sinks.benches import INSERT, T, row
from tests.sinks.starrocks.support import Bench
from tests.support.changes import changes, delivery
from tests.support.deliveries import by_table, make_deliveries, make_events
from tidemill.errors import DeliveryError, Refused


def test_a_replay_is_met_by_its_labels_and_changes_nothing(bench: Bench) -> None:
    batch = make_deliveries(make_events(100), 0, 100)
    sink = bench.sink()
    for each in batch:
        sink.write(each)
    bench.server.query(f"DELETE FROM `{bench.database}`.`orders` WHERE `id` = 4")  # a second load would bring it back
    for again in (sink, bench.sink()):
        for each in batch:
            again.write(each)
    assert len(bench.rows("id", "orders")) == 49


def test_a_batch_that_is_cut_and_dealt_anew_gives_the_same_rows(bench: Bench) -> None:
    events = make_events(100)
    bench.write(*make_deliveries(events, 0, 60))
    bench.write(*make_deliveries(events, 0, 30, lanes=3), *make_deliveries(events, 30, 100, deal=by_table))
    assert len(bench.rows("id", "orders")) == 50


def test_a_dead_letter_that_comes_again_is_loaded_once(bench: Bench) -> None:
    events: list[Any] = [(INSERT, None, row(1)), (INSERT, None, row(2)), (INSERT, None, row(3))]
    bench.write(delivery(changes(T, *events)).without([1]))
    dead_letter = dataclasses.replace(delivery(changes(T, events[1], first=1), start=1), redelivered=True)
    for _ in range(2):  # also when the first answer got lost
        assert bench.sink().write(dead_letter).events == 1
    assert bench.rows() == [row(1), row(2), row(3)]


def test_another_log_with_the_same_batch_numbers_is_loaded(bench: Bench) -> None:
    bench.write(delivery(changes(T, (INSERT, None, row(1, "old")))))
    bench.write(delivery(changes(T, (INSERT, None, row(1, "new")))))
    assert bench.rows() == [row(1, "new")]


def test_a_load_whose_answer_got_lost_is_found_by_its_label(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1))))
    bench.server.script(drop=True)
    with pytest.raises(DeliveryError) as caught:
        bench.write(batch)
    assert not isinstance(caught.value, Refused)
    bench.write(batch)
    assert bench.rows() == [row(1)]


def test_an_existing_label_is_success_only_when_its_load_is_visible(bench: Bench) -> None:
    batch = delivery(changes(T, (INSERT, None, row(1))))
    bench.server.script(hold=3.0)  # the connection breaks, the load goes on
    with pytest.raises(DeliveryError):
        bench.write(batch)
    with pytest.raises(DeliveryError, match="is prepare"):
        bench.write(batch, request_timeout_seconds=1)
    assert bench.rows() == []
    bench.write(batch)  # waits for the load that is under way
    assert bench.rows() == [row(1)]


def test_a_load_that_is_committed_but_not_yet_visible_is_waited_for(bench: Bench) -> None:
    bench.server.script(answer="Publish Timeout")
    bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    assert bench.rows() == [row(1)]


def test_a_load_that_fails_for_reasons_of_the_cluster_is_tried_again(bench: Bench) -> None:
    bench.server.script(fail="too many tablet versions, secret value 4711")
    with pytest.raises(DeliveryError) as caught:
        bench.write(delivery(changes(T, (INSERT, None, row(1)))))
    assert not isinstance(caught.value, Refused)
    assert "4711" not in str(caught.value)


def test_after_kill_9_of_the_server_the_batch_is_loaded(bench: Bench) -> None:
    sink = bench.sink()
    sink.write(delivery(changes(T, (INSERT, None, row(1)))))
    bench.server.kill()
    later = delivery(changes(T, (INSERT, None, row(2)), first=1), start=1)
    with pytest.raises(DeliveryError) as caught:
        sink.write(later)
    assert not isinstance(caught.value, Refused)
    bench.server.start()
    bench.write(later)
    assert bench.rows() == [row(1), row(2)]
