"""Poison events through real Spark: what becomes of them, of their batch, and of a crash in between."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.stream.conftest import Mill
from tests.stream.test_restart import checkpoint, drive
from tests.support.blocks import make_change
from tidemill.config.spec import Batch
from tidemill.dlq import DeadLetters, DlqConfig, Mark
from tidemill.errors import Refused
from tidemill.stream.batch.admission import ROWS_PER_LANE
from tidemill.stream.superseded import Follower


@pytest.fixture
def dead_letters(mill: Mill) -> DeadLetters:
    return DeadLetters(mill.directory / "dlq.sqlite", DlqConfig(max_letters=3))


def test_a_poison_event_does_not_hold_back_the_others_of_its_batch(mill: Mill, dead_letters: DeadLetters) -> None:
    rows = ROWS_PER_LANE * 2
    mill.log.append(make_change(rows))
    mill.poison("b", 3, 4)
    mill.run(mill.sink("a"), mill.sink("b"), lanes=2, dead_letters=dead_letters)
    assert mill.offsets("a") == list(range(rows))
    assert mill.offsets("b") == [offset for offset in range(rows) if offset not in (3, 4)]
    assert [(kept.sink, kept.offset) for kept in dead_letters.dead_letters()] == [("b", 3), ("b", 4)]
    assert [dead_letter.offset for dead_letter in mill.reports[0].dead_letters] in ([3, 4], [4, 3])
    kept = mill.store.load("mill")
    assert kept is not None
    assert kept.offset == rows
    dead_letters.close()


def test_without_dead_letters_poison_stops_the_pipeline(mill: Mill) -> None:
    mill.log.append(make_change(5))
    mill.poison("s", 3)
    loop = mill.loop()
    loop.start()
    with pytest.raises(Refused, match="event 3: unreadable"):
        loop.await_end(60)
    assert mill.store.load("mill") is None


def test_a_full_store_holds_the_batch_until_somebody_makes_room(mill: Mill, dead_letters: DeadLetters) -> None:
    mill.log.append(make_change(10))
    mill.poison("s", 1, 2)
    mill.run(dead_letters=dead_letters)
    mill.log.append(make_change(10, number=2))
    mill.poison("s", 11, 12)
    said = threading.Event()
    loop = mill.loop(
        dead_letters=dead_letters, on_retry=lambda errors: said.set() if "no room" in errors["s"] else None
    )
    loop.start()
    try:
        assert said.wait(60)
        assert loop.checkpoint.offset == 10
        dead_letters.remove([dead_letter.number for dead_letter in dead_letters.dead_letters()])
        mill.wait(loop, lambda: loop.checkpoint.offset == 20)
    finally:
        loop.stop()
    assert [dead_letter.offset for dead_letter in dead_letters.dead_letters()] == [11, 12]
    dead_letters.close()


def test_halt_stops_where_there_is_no_room(mill: Mill) -> None:
    dead_letters = DeadLetters(mill.directory / "dlq.sqlite", DlqConfig(max_letters=1, overflow="halt"))
    mill.log.append(make_change(5))
    mill.poison("s", 1, 2)
    loop = mill.loop(dead_letters=dead_letters)
    loop.start()
    with pytest.raises(Refused, match="no room for 2 more dead letters"):
        loop.await_end(60)
    assert mill.store.load("mill") is None
    dead_letters.close()


def test_where_the_oldest_may_go_they_go_and_are_counted(mill: Mill, caplog: pytest.LogCaptureFixture) -> None:
    dead_letters = DeadLetters(mill.directory / "dlq.sqlite", DlqConfig(max_letters=2, overflow="drop_oldest"))
    mill.log.append(make_change(5))
    mill.log.append(make_change(5, number=2))
    mill.poison("s", 1, 2, 7)
    mill.run(dead_letters=dead_letters, batch=Batch(max_events=5))
    assert [dead_letter.offset for dead_letter in dead_letters.dead_letters()] == [2, 7]
    assert [[dead_letter.offset for dead_letter in report.dropped] for report in mill.reports] == [[], [1]]
    assert "stream.dead_letter_dropped" in caplog.text
    dead_letters.close()


def test_a_sink_that_names_poison_bit_by_bit_gets_the_rest_once(mill: Mill, dead_letters: DeadLetters) -> None:
    mill.log.append(make_change(10))
    mill.poison("s", 1, 2, 7)
    mill.run(mill.sink(at_once=1), dead_letters=dead_letters)
    assert mill.offsets() == [0, 3, 4, 5, 6, 8, 9]
    assert [dead_letter.offset for dead_letter in dead_letters.dead_letters()] == [1, 2, 7]
    assert [dead_letter.offset for dead_letter in mill.reports[0].dead_letters] == [1, 2, 7]
    assert mill.reports[0].retries == 0, "nothing failed that could be tried again"
    dead_letters.close()


def test_letters_are_kept_before_the_rest_is_written_and_a_replay_keeps_the_same(mill: Mill) -> None:
    mill.log.append(make_change(50))
    mill.poison("s", 7, 8)
    drive(mill, lanes=1, crash="stream.dead_letters_kept:1")
    dead_letters = DeadLetters(mill.directory / "dlq.sqlite")
    before = dead_letters.dead_letters()
    assert [dead_letter.offset for dead_letter in before] == [7, 8]
    assert (checkpoint(mill), mill.notes()) == (0, [])
    mill.run(dead_letters=dead_letters)
    assert checkpoint(mill) == 50
    assert dead_letters.dead_letters() == before
    assert mill.offsets() == [offset for offset in range(50) if offset not in (7, 8)]
    dead_letters.close()


def test_letters_that_newer_events_supersede_are_marked_before_the_checkpoint_covers_these(
    mill: Mill, dead_letters: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    mill.log.append(make_change(10))
    mill.log.append(make_change(4, number=2))  # the rows 0 to 3 again
    mill.poison("s", 3, 7)
    marked: list[int] = []
    mark = dead_letters.mark

    def marking(marks: Sequence[Mark]) -> None:
        mark(marks)
        marked.append(checkpoint(mill))

    monkeypatch.setattr(dead_letters, "mark", marking)
    mill.run(dead_letters=dead_letters, follower=Follower(dead_letters, ("s",), "mill"), batch=Batch(max_events=10))
    assert [(kept.offset, kept.superseded, kept.superseded_by) for kept in dead_letters.dead_letters()] == [
        (3, "wholly", 13), (7, "", None)
    ]  # fmt: skip
    assert (marked, checkpoint(mill)) == ([10], 14)
    dead_letters.close()
