"""`exactly_once`: transactions, positions, fencing."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.servers.kafka import consume, create_topic
from tests.sinks.kafka.support import cut, delivery_of, ids
from tests.support.blocks import make_block
from tidemill.errors import DeliveryError, Refused
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Epoch
from tidemill.sinks._shared.resume import Delivered, DeliveryShare, ShareRecord
from tidemill.sinks.kafka.errors import Fenced
from tidemill.sinks.kafka.fencing import Marks, Shape, is_record


def lane_of(block: Block, lane: int, lanes: int) -> Block:
    return block.take(np.flatnonzero(block.batch.column("offset").to_numpy() % lanes == lane))


class TestExactlyOnce:
    @pytest.fixture(autouse=True)
    def _needs_transactions(self, kafka: Broker | Mock) -> None:
        if isinstance(kafka, Mock):
            pytest.skip("the mock cluster shows messages of open and aborted transactions")

    def test_a_replay_is_skipped_by_the_same_sink_and_by_a_new_one(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        delivery = delivery_of(make_block(100), pipeline=topic)
        first = sinks(kafka, topic, exactly_once=True)
        assert first.write(delivery).events == 100
        again = [first.write(delivery), sinks(kafka, topic, exactly_once=True).write(delivery)]
        assert [(r.events, r.skipped) for r in again] == [(0, 100)] * 2
        assert ids(consume(kafka.bootstrap, topic)) == list(range(100))

    @pytest.mark.parametrize("moment", ["before the commit", "after the commit"])
    def test_kill_9_around_the_commit_leaves_each_event_once(
        self, kafka: Broker | Mock, topic: str, sinks: Any, moment: str
    ) -> None:
        done = subprocess.run([sys.executable, "-c", _KILLED_WRITER, kafka.bootstrap, topic, moment], timeout=120)
        assert done.returncode == -signal.SIGKILL
        receipt = sinks(kafka, topic, exactly_once=True).write(delivery_of(make_block(1000), pipeline=topic))
        expected = (0, 1000) if moment == "after the commit" else (1000, 0)
        assert (receipt.events, receipt.skipped) == expected
        assert ids(consume(kafka.bootstrap, topic)) == list(range(1000))

    def test_a_batch_cut_and_dealt_anew_leaves_each_event_once(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        """Lane 1 of 3 was not done when the driver died; its Spark directory is lost, and now there are 2 lanes."""
        whole = make_block(900, positions=[f"0/{i // 7}" for i in range(900)])
        for lane in (0, 2):
            share = lane_of(whole, lane, 3)
            sinks(kafka, topic, exactly_once=True).write(
                delivery_of(share, end=900, lane=lane, lanes=3, pipeline=topic)
            )
        skipped = 0
        for start, end in ((0, 100), (100, 500), (500, 900)):
            for lane in (0, 1):
                piece = lane_of(cut(whole, start, end), lane, 2)
                sink = sinks(kafka, topic, exactly_once=True)
                delivery = delivery_of(piece, start=start, end=end, lane=lane, lanes=2, pipeline=topic)
                skipped += sink.write(delivery).skipped
        assert skipped == 600
        assert ids(consume(kafka.bootstrap, topic)) == list(range(900))

    def test_a_failed_transaction_leaves_nothing_and_the_retry_everything(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        good = make_block(50)
        sink = sinks(kafka, topic, exactly_once=True)

        def blocks() -> Iterator[Block]:
            yield good
            raise OSError("the log's disk is gone")

        with pytest.raises(OSError, match="disk"):
            sink.write(Delivery(topic, "orders-db", 0, 50, 0, 1, blocks))
        assert sink.write(delivery_of(good, pipeline=topic)).events == 50
        assert ids(consume(kafka.bootstrap, topic)) == list(range(50))

    def test_a_lane_that_moves_between_workers_goes_on_in_both(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        workers = [sinks(kafka, topic, exactly_once=True) for _ in range(2)]
        for n in range(6):
            block = make_block(10, offsets=range(10 * n, 10 * n + 10), first_id=10 * n)
            assert workers[n % 2].write(delivery_of(block, start=10 * n, pipeline=topic)).events == 10
        assert ids(consume(kafka.bootstrap, topic)) == list(range(60))

    def test_a_producer_fenced_in_the_middle_of_its_delivery_says_so(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        zombie, heir = (sinks(kafka, topic, exactly_once=True) for _ in range(2))
        first = make_block(10)
        second = make_block(10, offsets=range(10, 20), first_id=10)

        def blocks() -> Iterator[Block]:
            yield first
            heir.write(delivery_of(first, second, pipeline=topic))
            yield second

        with pytest.raises(Fenced) as caught:
            zombie.write(Delivery(topic, "orders-db", 0, 20, 0, 1, blocks))
        assert "running twice" in caught.value.fix
        assert ids(consume(kafka.bootstrap, topic)) == list(range(20))

    def test_the_same_name_over_another_log_is_delivered_not_skipped(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        sinks(kafka, topic, exactly_once=True).write(delivery_of(make_block(20, positions="0/A"), pipeline=topic))
        other = make_block(20, positions="0/B", first_id=100)
        assert sinks(kafka, topic, exactly_once=True).write(delivery_of(other, pipeline=topic)).events == 20
        assert ids(consume(kafka.bootstrap, topic)) == [*range(20), *range(100, 120)]

    def test_a_replay_asked_for_from_further_back_is_delivered(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        sink = sinks(kafka, topic, exactly_once=True)
        blocks = [make_block(10, offsets=range(10 * n, 10 * n + 10), first_id=10 * n) for n in range(3)]
        for n, block in enumerate(blocks):
            sink.write(delivery_of(block, start=10 * n, pipeline=topic))
        assert sink.write(delivery_of(blocks[0], pipeline=topic)).events == 10

    def test_a_worker_of_an_earlier_run_is_refused_where_a_later_run_is_taken_for_a_replay(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        old, new, asked = Epoch(3, "2026-01-01T00:00"), Epoch(3, "2026-01-01T00:01"), Epoch(9, "2026-01-01T00:02")
        first, second = (make_block(10, offsets=range(n, n + 10), first_id=n) for n in (0, 10))
        batch = delivery_of(first, pipeline=topic)
        now = sinks(kafka, topic, exactly_once=True)
        for each in (batch, delivery_of(second, start=10, pipeline=topic)):
            now.write(dataclasses.replace(each, epoch=new))
        for late in (dataclasses.replace(batch, epoch=old), dataclasses.replace(batch, epoch=old, lane=2, lanes=4)):
            with pytest.raises(Refused, match="comes too late"):
                sinks(kafka, topic, exactly_once=True).write(late)
        assert ids(consume(kafka.bootstrap, topic)) == list(range(20))
        again = sinks(kafka, topic, exactly_once=True).write(dataclasses.replace(batch, epoch=asked))
        assert (again.events, again.skipped) == (10, 0)

    @pytest.mark.parametrize("by", ["hash", "table"])
    def test_a_plan_of_another_shape_fences_the_workers_of_the_one_before_it(
        self, kafka: Broker | Mock, topic: str, sinks: Any, by: str
    ) -> None:
        """Lane 1 of 2 has sent its half and not committed it, when all of the batch is dealt anew."""
        whole = make_block(20)
        zombie, heir = (sinks(kafka, topic, exactly_once=True) for _ in range(2))
        anew = dataclasses.replace(delivery_of(whole, pipeline=topic), lanes=1 if by == "hash" else 2, by=by)

        def blocks() -> Iterator[Block]:
            yield lane_of(whole, 1, 2)
            assert heir.write(anew).events == 20

        with pytest.raises(Fenced):
            zombie.write(Delivery(topic, "orders-db", 0, 20, 1, 2, blocks))
        assert zombie.write(delivery_of(lane_of(whole, 1, 2), end=20, lane=1, lanes=2, pipeline=topic)).skipped == 10
        assert ids(consume(kafka.bootstrap, topic)) == list(range(20))

    def test_a_broker_killed_in_a_transaction_leaves_each_event_once(
        self, private_kafka: Broker, topic: str, sinks: Any
    ) -> None:
        create_topic(private_kafka.bootstrap, topic)
        sink = sinks(private_kafka, topic, exactly_once=True)

        def blocks() -> Iterator[Block]:
            for n in range(20):
                if n == 10:
                    private_kafka.stop(kill=True)
                    private_kafka.start()
                yield make_block(100, offsets=range(100 * n, 100 * n + 100), first_id=100 * n)

        delivery = Delivery(topic, "orders-db", 0, 2000, 0, 1, blocks)
        for _ in range(5):
            with contextlib.suppress(DeliveryError):
                sink.write(delivery)
                break
        assert ids(consume(private_kafka.bootstrap, topic)) == list(range(2000))

    def test_a_dead_letter_that_comes_again_is_taken_behind_later_events_and_leaves_the_positions_alone(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        block = make_block(10)
        batch = delivery_of(block, pipeline=topic)
        sinks(kafka, topic, exactly_once=True).write(batch.without([3]))
        dead_letter = delivery_of(block.take([3]), start=3, pipeline=topic)
        receipt = sinks(kafka, topic, exactly_once=True).write(dataclasses.replace(dead_letter, redelivered=True))
        assert (receipt.events, receipt.skipped) == (1, 0)
        replay = sinks(kafka, topic, exactly_once=True).write(batch.without([3]))
        assert (replay.events, replay.skipped) == (0, 9)
        assert ids(consume(kafka.bootstrap, topic)) == list(range(10))


class TestMarks:
    def test_other_shapes_are_fenced_once_and_again_when_they_were_marked_since(self) -> None:
        marks = Marks("p/")
        two, three = Shape(2, "hash"), Shape(3, "table")
        marks.see(5, *marks.mark(two))
        marks.see(6, *marks.mark(three))
        marks.see(7, "other/mark/9-hash", b'{"lanes": 9, "by": "hash"}')
        marks.see(8, *marks.fence("", 0))
        assert marks.strangers(two) == {"3-table": (6, ["p/table/0of3", "p/table/1of3", "p/table/2of3"])}
        marks.see(9, *marks.fence("3-table", 6))
        assert marks.strangers(two) == {}
        marks.see(10, *marks.mark(three))
        assert list(marks.strangers(two)) == ["3-table"]

    def test_ids_of_earlier_releases_are_fenced_where_there_are_records_of_them(self) -> None:
        marks = Marks("p/")
        assert marks.strangers(Shape(2, "hash")) == {"": (0, [])}
        marks.see(1, "p/17/0", b"")
        assert marks.strangers(Shape(2, "hash"))[""][1] == [f"p/{lane}" for lane in range(18)]
        assert (is_record("p/17/0", "p/"), is_record("p/mark/2-hash", "p/"), is_record("q/17/0", "p/")) == (
            True, False, False,
        )  # fmt: skip


class TestPositions:
    def test_records_survive_their_bytes(self) -> None:
        record = ShareRecord(5, 9, 5, (6, "0/1"), np.array([0, 7, 0, 255], np.uint8))
        copy = ShareRecord.decode(record.encode())
        assert (copy.start, copy.end, copy.first, copy.witness) == (5, 9, 5, (6, "0/1"))
        assert copy.marks.tolist() == [0, 7, 0, 255]

    def test_a_large_batch_is_kept_in_several_records(self) -> None:
        delivery = Delivery("p", "s", 0, 1_200_000, 0, 1, lambda: iter(()))
        share = DeliveryShare(delivery, "lane", Delivered())
        ends = make_block(2, offsets=[3, 1_199_999])
        share.note(ends)
        delivered = Delivered(share.records())
        assert list(delivered.records) == ["lane/0", "lane/1", "lane/2"]
        fresh = delivered.fresh(delivery, make_block(3, offsets=[3, 4, 1_199_999]))
        assert fresh is not None
        assert fresh.tolist() == [1]


_KILLED_WRITER = """
import os, signal, sys
from tests.sinks.kafka.support import delivery_of
from tests.support.blocks import make_block
from tidemill.sinks.kafka.client import Producer
from tidemill.sinks.kafka import KafkaConfig, KafkaSink

brokers, topic, moment = sys.argv[1:]
commit = Producer.commit

def die(self, timeout):
    if moment == "after the commit":
        commit(self, timeout)
    else:
        self.flush(timeout)
    os.kill(os.getpid(), signal.SIGKILL)

Producer.commit = die
sink = KafkaSink(KafkaConfig(id="k", brokers=brokers, topic=topic, exactly_once=True))
sink.write(delivery_of(make_block(1000), pipeline=topic))
"""
