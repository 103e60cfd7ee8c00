"""How much of a copy comes into the log at a time while changes come."""

from __future__ import annotations

from tidemill.capture.portions import QUIET_SECONDS, Portions

KILO, MEGA = 1 << 10, 1 << 20


class Clocked:
    """Portions under a clock of the test's own, with a stream that brings changes all the time. The sink takes
    `fixed` seconds for a delivery and `per_mega` more for each megabyte of copied rows."""

    def __init__(self, fixed: float, per_mega: float) -> None:
        self.portions, self.now, self.end = Portions(), 100.0, 0
        self._fixed, self._per_mega = fixed, per_mega
        self.under_way = 0.0  # of a delivery that had begun when the portion came

    def adopt(self, chunk: int, *, alone: bool = True) -> int:
        """A change alone, then one portion of chunks of so many bytes, each with its delivery; the portion's bytes."""
        if alone:
            self.change()
        else:
            self.portions.note_change(self.end, self.now, just_now=False)
        ready = 0
        while not self.portions.is_full(ready, self.now):
            ready += chunk
        self.end += ready
        self.portions.note_adopted(self.end, ready, self.now)
        assert ready <= 128 * KILO or self.portions.must_wait(self.now)
        self.now += self.under_way + self._fixed + self._per_mega * ready / MEGA
        self.portions.note_delivered(self.end, self.now)
        return ready

    def change(self) -> None:
        self.end += 1
        self.portions.note_change(self.end, self.now)
        self.now += self._fixed
        self.portions.note_delivered(self.end, self.now)

    def rest(self) -> float:
        """Until the next portion may come."""
        began = self.now
        while self.portions.must_wait(self.now):
            self.change()
        return self.now - began


def test_without_changes_nothing_is_held_back() -> None:
    portions = Portions()
    assert not portions.is_full(1 << 40, QUIET_SECONDS)
    portions.note_adopted(10, 64 * MEGA, QUIET_SECONDS)
    assert not portions.must_wait(QUIET_SECONDS)
    portions.note_change(11, QUIET_SECONDS + 1)
    assert portions.must_wait(QUIET_SECONDS + 1)
    assert not portions.must_wait(2 * QUIET_SECONDS + 1)


def test_the_next_portion_comes_when_the_last_is_delivered_and_changes_had_the_lanes_for_longer() -> None:
    copy = Clocked(fixed=0.004, per_mega=0.006)
    size = copy.adopt(800 * KILO)
    assert size
    assert copy.rest() >= 0.004 + 0.006 * size / MEGA
    assert not copy.portions.is_full(0, copy.now)


def test_changes_have_the_lanes_for_most_of_the_time_where_deliveries_are_quick_else_for_half_of_it() -> None:
    shares = []
    for fixed in (0.01, 0.1, 0.5):
        copy = Clocked(fixed=fixed, per_mega=0.0)
        copy.adopt(800 * KILO)
        shares.append(copy.rest() / fixed)
    assert shares[0] >= 6
    assert 2 < shares[1] < 4
    assert 1 < shares[2] <= 2


def test_where_a_delivery_takes_milliseconds_portions_stay_small() -> None:
    copy = Clocked(fixed=0.004, per_mega=0.006)
    sizes = []
    for _ in range(60):
        sizes.append(copy.adopt(64 * KILO))
        copy.rest()
    assert max(sizes[20:]) <= 3 * MEGA, "a change waits for as long as it takes without a copy, or little longer"


def test_where_a_delivery_takes_long_anyway_portions_are_large() -> None:
    copy = Clocked(fixed=0.15, per_mega=0.006)
    for _ in range(20):
        size = copy.adopt(800 * KILO)
        copy.rest()
    assert size >= 8 * MEGA


def test_a_slow_sink_for_which_no_change_is_ever_alone_does_not_starve_the_copy() -> None:
    copy = Clocked(fixed=3.0, per_mega=0.006)
    for _ in range(10):
        size = copy.adopt(800 * KILO, alone=False)
        copy.now += 1.0  # the longest pause
    assert size >= 8 * MEGA


def test_a_portion_that_waits_for_a_delivery_under_way_is_not_taken_for_large() -> None:
    copy = Clocked(fixed=0.9, per_mega=0.006)
    copy.under_way = 0.9
    for _ in range(20):
        size = copy.adopt(800 * KILO)
        copy.rest()
    assert size >= 8 * MEGA


def test_a_sink_that_becomes_slow_gets_smaller_portions() -> None:
    copy = Clocked(fixed=0.15, per_mega=0.006)
    for _ in range(20):
        copy.adopt(64 * KILO)
        copy.rest()
    copy._per_mega = 1.0
    for _ in range(20):
        size = copy.adopt(64 * KILO)
        copy.rest()
    assert size < MEGA


def test_a_few_rows_wait_for_nobody() -> None:
    """A repair, while another sink is away."""
    portions = Portions()
    portions.note_change(1, 100.0)
    portions.note_adopted(10, 64 * KILO, 100.0)
    assert not portions.must_wait(100.0)
