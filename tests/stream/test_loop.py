"""The loop with real Spark, a real log and a sink that remembers."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections import defaultdict
from pathlib import Path
from typing import Literal

import pytest

from tests.stream.conftest import Mill
from tests.support.blocks import make_change, make_table, position
from tidemill.config.spec import Batch, Sharding, Trigger
from tidemill.errors import DeliveryError, LogCorrupt, Refused, SetupError, StreamError, TidemillError, is_retryable
from tidemill.log import LogReader
from tidemill.model.delivery import Checkpoint
from tidemill.retry import RetryPolicy
from tidemill.stream.batch.admission import ROWS_PER_LANE
from tidemill.stream.report import BatchReport


def test_every_event_arrives_once_and_each_key_in_order_over_all_lanes(mill: Mill) -> None:
    tables = [make_table("orders"), make_table("notes", key=())]
    rows = ROWS_PER_LANE * 3
    for number in range(3):
        mill.log.append(make_change(rows, tables=tables, number=number + 1))
    mill.run(batch=Batch(max_events=rows * 2), lanes=3)
    assert mill.offsets() == list(range(rows * 3))
    assert {report.lanes for report in mill.reports} == {3}
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    for note in sorted(mill.notes(), key=lambda note: note["start"]):
        lane_of = {(table, key): note["lane"] for table, key, _, _ in note["rows"]}
        assert all(lane == note["lane"] for lane in lane_of.values())
        for table, key, offset, _ in note["rows"]:
            seen[table, key].append(offset)
    assert all(offsets == sorted(offsets) for offsets in seen.values())
    for start in {note["start"] for note in mill.notes()}:
        keys = [(t, k) for n in mill.notes() if n["start"] == start for t, k in {(r[0], r[1]) for r in n["rows"]}]
        assert len(keys) == len(set(keys)), "a key was in two lanes of one batch"
        unkeyed = {n["lane"] for n in mill.notes() if n["start"] == start for r in n["rows"] if r[0] == "public.notes"}
        assert len(unkeyed) == 1


def test_the_checkpoint_the_acknowledgement_and_the_report_agree(mill: Mill) -> None:
    mill.log.append(make_change(5, 5))
    mill.run()
    kept = mill.store.load("mill")
    assert kept is not None
    assert (kept.offset, kept.position) == (10, position(2))
    assert mill.log.acknowledged() == mill.log.tail
    (report,) = mill.reports
    assert (report.events, report.lag_events, report.lanes, report.retries) == (10, 0, 1, 0)
    assert [(r.sink, r.events) for r in report.receipts] == [("s", 10)]


def test_a_batch_begins_where_the_last_run_stopped(mill: Mill) -> None:
    mill.log.append(make_change(5))
    mill.run()
    mill.log.append(make_change(7, number=2))
    mill.run()
    assert [(note["start"], note["end"]) for note in mill.notes()] == [(0, 5), (5, 12)]


def test_a_lost_spark_directory_restarts_from_the_checkpoint(mill: Mill) -> None:
    mill.log.append(make_change(5))
    mill.run()
    shutil.rmtree(mill.spark_dir)
    mill.log.append(make_change(5, number=2))
    mill.run()
    assert mill.offsets() == list(range(10))


def test_an_operator_who_moves_the_checkpoint_back_gets_a_replay(mill: Mill) -> None:
    mill.log.append(make_change(5, 5))
    mill.run(batch=Batch(max_events=5))
    kept = mill.store.load("mill")
    assert kept is not None
    mill.store.save("mill", Checkpoint(5, position(1)), expect=kept.version, force=True)
    mill.run()
    assert mill.offsets() == [*range(5), *(o for o in range(5, 10) for _ in range(2))]


def test_a_barrier_is_delivered_alone_and_in_one_lane(mill: Mill) -> None:
    rows = ROWS_PER_LANE * 2
    mill.log.append(make_change(rows))
    mill.log.append(make_change(rows, number=2, barrier=True))
    mill.log.append(make_change(rows, number=3))
    mill.run(batch=Batch(max_events=10**6), lanes=2)
    assert [(report.start, report.end) for report in mill.reports] == [(i * rows, (i + 1) * rows) for i in range(3)]
    sizes = [len(n["rows"]) for n in mill.notes() if n["start"] == rows]
    assert sorted(sizes) == [0, rows]
    assert mill.offsets() == list(range(rows * 3))


def test_only_the_failed_lane_of_the_failed_sink_is_written_again(mill: Mill) -> None:
    fault = mill.fail("b", 1)
    mill.log.append(make_change(ROWS_PER_LANE * 2))
    loop = mill.loop(mill.sink("a"), mill.sink("b"), lanes=2)
    loop.start()
    try:
        mill.wait(loop, lambda: len(mill.notes("a")) == 2 and len(mill.notes("b")) == 1)
        assert mill.store.load("mill") is None, "the checkpoint must wait for the failed lane"
        fault.unlink()
        mill.wait(loop, lambda: loop.checkpoint.offset > 0)
    finally:
        loop.stop()
    assert sorted(n["lane"] for n in mill.notes("a")) == sorted(n["lane"] for n in mill.notes("b")) == [0, 1]
    assert mill.offsets("a") == mill.offsets("b")
    assert mill.reports[0].retries >= 1


def test_a_sink_that_refuses_stops_the_pipeline_and_is_named(mill: Mill) -> None:
    mill.fail("b", 0, "refuse")
    mill.log.append(make_change(5))
    loop = mill.loop(mill.sink("a"), mill.sink("b"))
    loop.start()
    with pytest.raises(Refused, match='sink "b" refused the events 0 to 4') as raised:
        loop.await_end(180)
    assert "pen is broken" in raised.value.what
    assert raised.value.fix
    assert mill.store.load("mill") is None


@pytest.mark.parametrize(
    ("raised", "arrives", "code", "exit_code"),
    [
        ("tidemill.errors:Refused", Refused, "refused", 1),
        ("tidemill.errors:SetupError", SetupError, "source-not-ready", 3),
        ("pens:BrokenPen", Refused, "broken-pen", 1),  # of a package that only the worker has loaded
    ],
)
def test_what_a_sink_raises_in_a_worker_arrives_as_what_it_was(
    mill: Mill, raised: str, arrives: type[TidemillError], code: str, exit_code: int
) -> None:
    mill.fail("s", 0, raised)
    mill.log.append(make_change(5))
    loop = mill.loop()
    loop.start()
    with pytest.raises(TidemillError, match='sink "s" refused the events 0 to 4') as caught:
        loop.await_end(180)
    assert (type(caught.value), caught.value.code, caught.value.exit_code) == (arrives, code, exit_code)
    assert not is_retryable(caught.value)


def test_a_sink_that_never_comes_back_stops_the_pipeline_with_nothing_lost(mill: Mill) -> None:
    fault = mill.fail("s", 0)
    mill.log.append(make_change(5))
    loop = mill.loop(retry=RetryPolicy(seconds=1.0), lane_retry_seconds=0.2)
    loop.start()
    with pytest.raises(DeliveryError, match='sink "s" did not take'):
        loop.await_end(180)
    fault.unlink()
    mill.run()
    assert mill.offsets() == list(range(5))


def test_a_killed_worker_costs_a_retry_and_nothing_else(mill: Mill) -> None:
    mill.log.append(make_change(5))
    mill.run()
    worker = mill.notes()[0]["pid"]
    loop = mill.loop()
    loop.start()
    try:
        os.kill(worker, signal.SIGKILL)
        mill.log.append(make_change(5, number=2))
        mill.wait(loop, lambda: loop.checkpoint.offset == 10)
    finally:
        loop.stop()
    assert set(mill.offsets()) == set(range(10))


def test_sinks_stay_in_their_worker_between_batches(mill: Mill) -> None:
    loop = mill.loop()
    loop.start()
    try:
        for number in range(4):
            mill.log.append(make_change(3, number=number + 1))
            mill.wait(loop, lambda: loop.checkpoint.offset >= mill.log.tail.offset)
    finally:
        loop.stop()
    assert len({note["pid"] for note in mill.notes()}) == 1


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_lanes_stand_before_there_is_an_event(mill: Mill, mode: Literal["micro_batch", "real_time"]) -> None:
    loop = mill.loop(trigger=Trigger(mode=mode))
    loop.start()
    try:
        mill.wait(loop, lambda: loop.lanes_stand, 120)
    finally:
        loop.stop()
    assert loop.checkpoint.offset == 0


def test_stop_finishes_the_batch_under_way(mill: Mill) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def pause(report: object) -> None:
        inside.set()
        go_on.wait(120)

    mill.log.append(make_change(5))
    loop = mill.loop(on_batch=pause)
    loop.start()
    assert inside.wait(180)
    mill.log.append(make_change(5, number=2))
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    go_on.set()
    stopping.join(120)
    assert not stopping.is_alive()
    assert loop.await_end(120)
    kept = mill.store.load("mill")
    assert kept is not None
    assert kept.offset in (5, 10)
    mill.run()
    assert mill.offsets() == list(range(10))


def test_a_stop_in_the_pause_between_two_tries_does_not_wait_for_another(mill: Mill) -> None:
    fault = mill.fail("s", 0)
    mill.log.append(make_change(5))

    def stop_and_mend(errors: object) -> None:
        loop.ask_to_stop()
        fault.unlink()

    loop = mill.loop(on_retry=stop_and_mend)
    loop.start()
    with pytest.raises(DeliveryError, match='sink "s" did not take'):
        loop.await_end(180)
    loop.stop()
    assert (mill.notes(), mill.store.load("mill")) == ([], None)


def test_a_sink_that_hangs_does_not_hold_up_a_stop_for_longer_than_it_may(mill: Mill) -> None:
    hold = mill.directory / "s.hold"
    hold.touch()
    mill.log.append(make_change(5))
    loop = mill.loop()
    loop.start()
    mill.wait(loop, hold.with_suffix(".held").exists)
    stopping = threading.Thread(target=loop.stop, args=(0.5,))
    stopping.start()
    stopping.join(120)
    ended, mill_at = not stopping.is_alive(), mill.store.load("mill")
    hold.unlink()
    assert (ended, mill_at) == (True, None), "it waited for the sink"
    mill.run()
    assert set(mill.offsets()) == set(range(5))


def test_a_batch_that_hangs_in_the_driver_does_not_hold_up_a_stop_for_ever(mill: Mill) -> None:
    """Its checkpoint waits for a disk that does not answer, for instance: Java cannot interrupt that."""
    waiting, back = threading.Event(), threading.Event()

    def hang(report: BatchReport) -> None:
        waiting.set()
        back.wait(300)

    assert mill.spark.conf.get("spark.sql.streaming.stopTimeout") != "0", "for ever"
    mill.spark.conf.set("spark.sql.streaming.stopTimeout", "1s")
    try:
        mill.log.append(make_change(5))
        loop = mill.loop(on_batch=hang)
        loop.start()
        assert waiting.wait(180)
        stopping = threading.Thread(target=loop.stop, args=(0.5,), daemon=True)
        stopping.start()
        stopping.join(120)
        assert not stopping.is_alive()
    finally:
        back.set()
        mill.spark.conf.unset("spark.sql.streaming.stopTimeout")
    loop.stop()  # nothing holds it any more


def test_a_directory_that_spark_cannot_have_is_an_error_worth_a_retry(mill: Mill) -> None:
    mill.spark_dir.write_text("a file")
    with pytest.raises(StreamError, match="the stream did not start") as raised:
        mill.loop().start()
    assert is_retryable(raised.value)
    assert raised.value.where == str(mill.spark_dir)


def test_a_corrupt_block_stops_the_pipeline_before_anything_of_it_is_delivered(mill: Mill) -> None:
    mill.log.append(make_change(5))
    (segment,) = Path(mill.log_uri).glob("*.seg")
    content = bytearray(segment.read_bytes())
    content[-20] ^= 0xFF
    segment.write_bytes(content)
    loop = mill.loop()
    loop.start()
    with pytest.raises(LogCorrupt, match="checksum"):
        loop.await_end(180)
    assert mill.notes() == []


@pytest.mark.parametrize("mode", ["micro_batch", "real_time"])
def test_a_log_that_cannot_be_read_while_a_batch_is_planned_is_an_error_that_says_so(
    mill: Mill, mode: Literal["micro_batch", "real_time"]
) -> None:
    mill.log.append(make_change(5))
    mill.store.save("mill", Checkpoint(4, position(1)), expect=0)
    loop = mill.loop(trigger=Trigger(mode=mode))
    loop._ledger.open()
    segment = next(Path(mill.log_uri).glob("*.idx"))
    segment.rename(segment.with_name(f"{4:020d}.idx"))
    loop.start()
    with pytest.raises(LogCorrupt, match="planning a batch failed: an append begins at 0 where 4 was due") as raised:
        loop.await_end(180)
    assert raised.value.where
    assert not is_retryable(raised.value)
    assert mill.notes() == []


def test_a_sink_that_wants_one_lane_gets_one_and_so_do_those_that_move_with_it(mill: Mill) -> None:
    mill.log.append(make_change(ROWS_PER_LANE * 3))
    hermit = ("hermit", {"id": "h", "directory": str(mill.directory)})
    mill.run(mill.sink("a"), hermit, sharding=Sharding(count=3))
    assert [report.lanes for report in mill.reports] == [1]
    assert mill.offsets("h") == mill.offsets("a") == list(range(ROWS_PER_LANE * 3))


def test_sharding_by_table_keeps_tables_whole(mill: Mill) -> None:
    tables = [make_table(f"t{i}") for i in range(6)]
    mill.log.append(make_change(ROWS_PER_LANE * 2, tables=tables))
    mill.run(sharding=Sharding(mode="table", count=2))
    lanes_of = defaultdict(set)
    for note in mill.notes():
        for row in note["rows"]:
            lanes_of[row[0]].add(note["lane"])
    assert all(len(found) == 1 for found in lanes_of.values())
    assert LogReader(mill.log_uri).tail().offset == len(mill.offsets())
