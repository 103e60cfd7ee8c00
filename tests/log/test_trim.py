"""What leaves the log, and what stays for replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.log.conftest import OpenStore
from tests.log.look import offsets
from tests.support.blocks import make_change, make_spill, position
from tidemill.errors import LogError
from tidemill.log import LogConfig, LogReader, LogWriter, Tail, trim
from tidemill.model.change import SpillCommitted

SMALL = LogConfig(segment_bytes=1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr("tidemill.log.writer.time.time", lambda: now[0])
    return now


def fill(place: OpenStore, clock: list[float], appends: int = 10) -> None:
    """One segment per append, ten seconds apart."""
    writer = LogWriter.open(place(), SMALL)
    for number in range(1, appends + 1):
        writer.append(make_change(10, number=number))
        clock[0] += 10
    writer.close()


def test_delivered_segments_go_and_undelivered_ones_stay(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock)
    reader = LogReader(place())
    assert reader.head() == 0
    assert trim(place(), 35, SMALL) > 0
    assert reader.head() == 30
    assert offsets(reader) == list(range(30, 100))
    assert trim(place(), 35, SMALL) == 0


def test_the_newest_segment_stays_because_it_says_where_the_log_ends(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock)
    trim(place(), 100, SMALL)
    assert LogReader(place()).head() == 90
    writer = LogWriter.open(place(), SMALL)
    assert writer.tail == Tail(100, position(10))
    writer.append(make_change(1, number=11))
    trim(place(), 101, SMALL)
    reader = LogReader(place())
    assert (reader.head(), offsets(reader), reader.position_at(100)) == (100, [100], position(10))
    writer.close()


def test_a_new_segment_that_is_not_whole_yet_does_not_let_the_one_before_it_go(
    place: OpenStore, clock: list[float]
) -> None:
    fill(place, clock, 2)
    place().write(f"{20:020d}.idx", 0, [b"0123abcd 70 {"])
    trim(place(), 20, SMALL)
    reader = LogReader(place())
    assert reader.head() == 10
    assert reader.tail() == Tail(20, position(2))


def test_retention_by_bytes_keeps_at_least_that_much(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock)
    size = trim(place(), 10, SMALL)
    config = LogConfig(segment_bytes=1, retention_bytes=3 * size)
    trim(place(), 100, config)
    # The newest segment is never counted: it may not be delivered yet.
    assert LogReader(place()).head() in (50, 60)
    assert trim(place(), 100, config) == 0


def test_retention_by_age_keeps_what_is_young(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock)
    trim(place(), 100, LogConfig(retention_seconds=45), now=clock[0])
    assert LogReader(place()).head() == 50
    trim(place(), 100, LogConfig(retention_seconds=45), now=clock[0] + 1000)
    assert LogReader(place()).head() == 90


def test_with_both_limits_the_one_reached_first_lets_a_segment_go(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock)
    trim(place(), 100, LogConfig(retention_seconds=1e9, retention_bytes=1), now=clock[0])
    assert LogReader(place()).head() == 80
    fill(place, clock)
    trim(place(), 200, LogConfig(retention_seconds=45, retention_bytes=1 << 40), now=clock[0])
    assert LogReader(place()).head() == 150


def test_replay_from_a_time_begins_with_what_was_logged_then(place: OpenStore, clock: list[float]) -> None:
    reader = LogReader(place())
    assert reader.offset_at(0) == 0
    fill(place, clock)
    assert reader.offset_at(0) == 0
    assert reader.offset_at(1_000_000) == 0
    assert reader.offset_at(1_000_001) == 10
    assert reader.offset_at(1_045_000) == 50
    assert reader.offset_at(9_000_000) == 100


def test_a_clock_that_goes_back_does_not_break_the_search_by_time(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock, 3)
    clock[0] -= 500
    fill(place, clock, 1)
    written = [entry.written_at for entry in LogReader(place()).entries()]
    assert written == sorted(written)


def test_a_trimmed_offset_is_an_error_for_a_reader_that_knew_it(place: OpenStore, clock: list[float]) -> None:
    fill(place, clock)
    reader = LogReader(place())
    [ref] = reader.refs(0, 10)
    trim(place(), 50, SMALL)
    fresh = LogReader(place())
    with pytest.raises(LogError, match=r"retention|begins at"):
        fresh.read(ref)
    with pytest.raises(LogError, match="begins at 50"):
        fresh.plan(0, max_events=1, max_bytes=1)
    with pytest.raises(LogError, match=r"retention|begins at"):
        reader.refs(0, 100)


def test_every_file_of_a_spilled_transaction_goes_with_it(place: OpenStore) -> None:
    writer = LogWriter.open(place(), SMALL)
    for start in (0, 5, 10):
        writer.spill(make_spill(7, 5, start=start))
    writer.commit_spill(SpillCommitted(7, position(1), 7, 0, position(1)))
    writer.append(make_change(1, number=2))
    trim(place(), 15, SMALL)
    assert [name for name in place().names() if name.startswith(f"{0:020d}")] == []
    assert offsets(LogReader(place())) == [15]
    writer.close()


def test_the_tail_that_a_reader_sees_never_goes_back_while_its_segments_are_trimmed(tmp_path: Path) -> None:
    config = LogConfig.model_validate({"segment_bytes": 1, "fsync": False})
    writer = LogWriter.open(str(tmp_path), config)
    writer.append(make_change(3))
    reader = LogReader(str(tmp_path))
    assert reader.tail().offset == 3
    for _ in range(3):
        writer.append(make_change(3))
    trim(str(tmp_path), 12, config)
    assert reader.tail().offset == 12
    writer.close()
