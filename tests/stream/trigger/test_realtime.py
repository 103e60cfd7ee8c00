"""Standing lanes with real Spark: the same deliveries as in micro-batches, and what is lost costs an epoch, no event.

The others of tests/stream run over standing lanes too; `TIDEMILL_TEST_TRIGGER=micro_batch` runs them without.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.delivery.proxy import Proxy
from tests.stream.conftest import Mill
from tests.stream.test_restart import checkpoint, drive
from tests.support.blocks import make_change, make_table
from tests.support.seed import run_seed
from tests.support.waiting import until
from tidemill.config.spec import Batch, Trigger
from tidemill.dlq import DeadLetters
from tidemill.errors import TidemillError
from tidemill.stream import loop as loop_module
from tidemill.stream.batch.admission import ROWS_PER_LANE
from tidemill.stream.lane.standing import StandingPlace
from tidemill.stream.trigger import growth, realtime, standing

REAL_TIME = Trigger(mode="real_time")
SECONDS = 180.0
"""Deadline of a wait: workers that are killed start anew, which takes long on a busy machine."""


def test_over_changing_epochs_retries_poison_and_barriers_every_event_arrives_once_and_in_order(mill: Mill) -> None:
    dice = Random(run_seed())
    tables = [make_table("orders"), make_table("notes", key=())]
    mill.poison("b", 17, 23)
    fault = mill.fail("b", 0)
    dead_letters = DeadLetters(mill.directory / "dlq.sqlite")
    loop = mill.loop(
        mill.sink("a"), mill.sink("b"), lanes=2, dead_letters=dead_letters, batch=Batch(max_events=ROWS_PER_LANE * 4),
        trigger=Trigger(mode="real_time", epoch_seconds=1.5),
        on_retry=lambda errors: fault.unlink(missing_ok=True),
    )  # fmt: skip
    loop.start()
    try:
        for number in range(1, 31):
            rows = dice.choice((1, 10, ROWS_PER_LANE * 3))
            barrier = dice.random() < 0.2
            mill.log.append(make_change(rows, tables=tables[:1] if barrier else tables, number=number, barrier=barrier))
            time.sleep(dice.choice((0.0, 0.1, 0.3)))
        mill.wait(loop, lambda: loop.checkpoint.offset >= mill.log.tail.offset, SECONDS)
    finally:
        loop.stop()
    events = mill.log.tail.offset
    assert mill.offsets("a") == list(range(events))
    assert mill.offsets("b") == [offset for offset in range(events) if offset not in (17, 23)]
    assert [kept.offset for kept in dead_letters.dead_letters()] == [17, 23]
    assert mill.log.acknowledged() == mill.log.tail
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    for note in mill.notes("a"):
        for table, key, offset, _ in note["rows"]:
            seen[table, key].append(offset)
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    dead_letters.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_standing_worker_that_dies_or_freezes_in_a_write_costs_an_epoch_and_its_batch_comes_again(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    """One that is stopped still has its connection: only its silence shows it."""
    monkeypatch.setattr(standing, "DEAD_SECONDS", 5.0)
    monkeypatch.setattr(realtime, "_RETURN_SECONDS", 1.0)
    problems: list[TidemillError] = []
    loop = mill.loop(trigger=REAL_TIME, on_error=problems.append)
    loop.start()
    try:
        mill.log.append(make_change(5))
        mill.wait(loop, lambda: loop.checkpoint.offset == 5, SECONDS)
        hold = mill.directory / "s.hold"
        hold.touch()
        mill.log.append(make_change(5, number=2))
        mill.wait(loop, hold.with_suffix(".held").exists, SECONDS)
        mill.log.append(make_change(5, number=3))
        os.kill(mill.notes()[0]["pid"], how)
        mill.wait(loop, lambda: bool(problems), SECONDS)
        hold.unlink()
        mill.wait(loop, lambda: loop.checkpoint.offset == 15, SECONDS)
    finally:
        loop.stop()
    assert [(note["start"], note["end"]) for note in mill.notes()] == [(0, 5), (5, 10), (10, 15)]
    assert len({note["pid"] for note in mill.notes()}) == 2
    assert mill.offsets() == list(range(15))


def test_no_lane_of_a_lost_epoch_still_writes_when_those_of_the_next_one_stand(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's job ends with the first of its tasks that fails. The others are told to, and may be in a write."""
    rows = ROWS_PER_LANE * 2
    loop = mill.loop(trigger=REAL_TIME, lanes=2)
    hold = mill.directory / "s.hold"
    pids: dict[int, int] = {}
    still_there: list[bool] = []

    def emit(event: str, **fields: object) -> None:
        if event == "stream.lanes_standing" and pids:
            still_there.append(Path(f"/proc/{pids[1]}").exists())
            hold.unlink(missing_ok=True)

    monkeypatch.setattr(realtime, "emit", emit)
    loop.start()
    try:
        mill.log.append(make_change(rows))
        mill.wait(loop, lambda: loop.checkpoint.offset == rows, SECONDS)
        hold.touch()
        mill.log.append(make_change(rows, number=2))
        mill.wait(loop, hold.with_suffix(".held").exists, SECONDS)
        pids.update((note["lane"], note["pid"]) for note in mill.notes())
        os.kill(pids[0], signal.SIGKILL)
        mill.wait(loop, lambda: loop.checkpoint.offset == rows * 2, SECONDS)
    finally:
        loop.stop()
    assert still_there == [False]
    assert mill.offsets() == list(range(rows * 2))


@pytest.mark.parametrize(("killed", "resumed"), [("real_time", "micro_batch"), ("micro_batch", "real_time")])
def test_a_batch_under_way_is_the_same_one_after_the_mode_was_changed(mill: Mill, killed: str, resumed: str) -> None:
    rows = append_three(mill)
    drive(mill, lanes=2, crash="stream.delivered:2", more=("local[3]", killed))
    assert checkpoint(mill) == rows
    mill.run(lanes=1, batch=Batch(max_events=rows * 10), trigger=Trigger.model_validate({"mode": resumed}))
    under_way = [(rows, rows * 2, lane, 2) for lane in range(2)]
    assert Counter((note["start"], note["end"], note["lane"], note["lanes"]) for note in mill.notes()) == Counter(
        [(0, rows, 0, 2), (0, rows, 1, 2), *under_way, *under_way, (rows * 2, rows * 3, 0, 1)]
    )


def test_killed_between_pin_and_delivery_the_pinned_batch_comes_although_more_would_fit(mill: Mill) -> None:
    rows = append_three(mill)
    drive(mill, lanes=1, crash="stream.pinned:2", more=("local[2]", "real_time"))
    assert checkpoint(mill) == rows
    mill.run(lanes=1, batch=Batch(max_events=rows * 10), trigger=REAL_TIME)
    bounds = [(note["start"], note["end"]) for note in mill.notes()]
    assert bounds == [(0, rows), (rows, rows * 2), (rows * 2, rows * 3)]
    assert mill.offsets() == list(range(rows * 3))


def test_a_worker_killed_between_delivery_and_receipt_gets_the_same_batch_in_the_next_epoch(mill: Mill) -> None:
    rows = append_three(mill)
    drive(mill, lanes=1, crash="worker.delivered:2", more=("local[2]", "real_time"), dies=False)
    bounds = Counter((note["start"], note["end"]) for note in mill.notes())
    assert bounds == {(0, rows): 1, (rows, rows * 2): 2, (rows * 2, rows * 3): 1}
    assert checkpoint(mill) == rows * 3


def append_three(mill: Mill) -> int:
    """Transactions that are a batch each, of so many events."""
    rows = ROWS_PER_LANE * 2
    for number in range(3):
        mill.log.append(make_change(rows, number=number + 1))
    return rows


def test_over_a_backlog_more_lanes_stand_in_another_epoch_and_each_key_stays_in_order(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = ROWS_PER_LANE * 2
    monkeypatch.setattr(loop_module, "has_ample_slots", lambda spark: True)
    monkeypatch.setattr(growth, "_EVENTS", rows)
    monkeypatch.setattr(growth, "_SECONDS", 0.0)
    loop = mill.loop(trigger=REAL_TIME, batch=Batch(max_events=rows))
    loop.start()
    try:
        mill.log.append(make_change(1))
        mill.wait(loop, lambda: loop.checkpoint.offset == 1, SECONDS)
        hold = mill.directory / "s.hold"
        hold.touch()
        for number in range(2, 6):
            mill.log.append(make_change(rows, number=number))
        mill.wait(loop, hold.with_suffix(".held").exists, SECONDS)
        hold.unlink()
        mill.wait(loop, lambda: loop.checkpoint.offset >= mill.log.tail.offset, SECONDS)
    finally:
        loop.stop()
    assert [report.lanes for report in mill.reports] == [1, 1, 2, 2, 2]
    assert mill.offsets() == list(range(1 + rows * 4))
    seen: dict[int, list[int]] = defaultdict(list)
    for note in sorted(mill.notes(), key=lambda note: note["start"]):
        for _, key, offset, _ in note["rows"]:
            seen[key].append(offset)
    assert all(offsets == sorted(offsets) for offsets in seen.values())


@pytest.mark.parametrize("fault", ["cut", "delayed", "half open"])
def test_a_connection_to_a_lane_that_fails_in_a_write_costs_at_most_an_epoch(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Between driver and lanes stands a network that ends connections, holds up what it carries, or swallows it."""
    monkeypatch.setattr(standing, "DEAD_SECONDS", 5.0)
    monkeypatch.setattr(realtime, "_RETURN_SECONDS", 1.0)
    with ExitStack() as stack:
        proxies: list[Proxy] = []
        place = standing.LaneServer.place

        def place_behind_proxy(server: standing.LaneServer, lanes: int) -> StandingPlace:
            at = place(server, lanes)
            if not proxies:
                proxies.append(stack.enter_context(Proxy(at.port)))
            return replace(at, port=proxies[0].port)

        monkeypatch.setattr(standing.LaneServer, "place", place_behind_proxy)
        problems: list[TidemillError] = []
        loop = mill.loop(trigger=REAL_TIME, on_error=problems.append)
        loop.start()
        try:
            mill.log.append(make_change(5))
            mill.wait(loop, lambda: loop.checkpoint.offset == 5, SECONDS)
            hold = mill.directory / "s.hold"
            hold.touch()
            mill.log.append(make_change(5, number=2))
            mill.wait(loop, hold.with_suffix(".held").exists, SECONDS)
            mill.log.append(make_change(5, number=3))
            if fault == "cut":
                proxies[0].cut()
            else:
                proxies[0].hold()
            if fault == "delayed":
                hold.unlink()  # the lane's receipt is on its way, and late
                time.sleep(2.0)
            else:
                mill.wait(loop, lambda: bool(problems), SECONDS)
                hold.unlink()
            proxies[0].release()
            mill.wait(loop, lambda: loop.checkpoint.offset == 15, SECONDS)
        finally:
            loop.stop()
    assert bool(problems) == (fault != "delayed")
    assert sorted(set(mill.offsets())) == list(range(15))  # the write that was under way may have come to its end
    assert list(dict.fromkeys((note["start"], note["end"]) for note in mill.notes())) == [(0, 5), (5, 10), (10, 15)]


@pytest.mark.parametrize("mode", ["real_time", "micro_batch"])
def test_nothing_of_a_query_stays_when_it_has_ended(mill: Mill, mode: str) -> None:
    """A server restarts pipelines for months: of each run a thread, a connection and mapped segments stayed."""

    def deliver(number: int) -> weakref.ref[object]:
        loop = mill.loop(trigger=Trigger.model_validate({"mode": mode}))
        loop.start()
        try:
            mill.log.append(make_change(5, number=number))
            mill.wait(loop, lambda: loop.checkpoint.offset >= mill.log.tail.offset, SECONDS)
        finally:
            loop.stop()
        return weakref.ref(loop)

    deliver(1)
    before = threading.active_count()
    ended = [deliver(number) for number in range(2, 6)]
    until(lambda: threading.active_count() <= before, SECONDS)
    gc.collect()
    assert not [run for run in ended if run() is not None]
