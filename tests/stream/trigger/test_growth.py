"""How many lanes stand, by what there is to deliver."""

from __future__ import annotations

from tidemill.stream.trigger.growth import Lanes


def test_where_somebody_asked_there_are_as_many_lanes_whatever_the_backlog() -> None:
    lanes = Lanes.of(3, 8, standing=True, ample=True)
    lanes.begin(10**9)
    assert lanes.count == 3
    assert not lanes.are_too_few(10**9, 1, 10.0)


def test_one_lane_stands_until_a_backlog_is_worth_another_epoch_and_again_once_it_is_gone() -> None:
    lanes = Lanes.of(None, 4, standing=True, ample=True)
    assert lanes.count == 1
    assert not lanes.are_too_few(99_999, 1, 10.0), "few events"
    assert not lanes.are_too_few(300_000, 200_000, 1.0), "one lane has them in a moment"
    assert lanes.are_too_few(500_000, 200_000, 1.0)
    lanes.begin(500_000)
    assert lanes.rule() == {"count": 4, "asked": True}
    assert not lanes.are_too_few(10**9, 1, 10.0), "no more than cores"
    lanes.begin(10)
    assert lanes.count == 1


def test_where_slots_are_counted_no_lane_takes_one_that_nobody_gave_it() -> None:
    lanes = Lanes.of(None, 4, standing=True, ample=False)
    lanes.begin(10**9)
    assert lanes.count == 1


def test_a_micro_batch_may_have_a_lane_for_each_core() -> None:
    assert Lanes.of(None, 4, standing=False, ample=True).count == 4
