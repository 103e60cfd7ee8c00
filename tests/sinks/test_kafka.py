"""The kafka sink against a broker: what consumers read back; nothing lost and, with exactly_once, nothing twice."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
import pytest
from confluent_kafka import Producer as ReferenceProducer
from pydantic import ValidationError

from tests.servers.kafka import consume, create_topic
from tests.support.blocks import make_block, make_table
from tidemill.contracts import Outcome
from tidemill.errors import ConfigError, DeliveryError, Refused, is_retryable
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery, Epoch, Tier
from tidemill.sinks._shared.resume import Delivered, DeliveryShare, ShareRecord
from tidemill.sinks.kafka import KafkaConfig, KafkaSink
from tidemill.sinks.kafka.errors import Fenced
from tidemill.sinks.kafka.fencing import Marks, Shape, is_record
from tidemill.sinks.kafka.write import topic_name


def delivery_of(
    *blocks: Block, start: int = 0, end: int | None = None, lane: int = 0, lanes: int = 1, pipeline: str = "shop"
) -> Delivery:
    last = max((int(b.batch.column("offset")[-1].as_py()) for b in blocks), default=start - 1) + 1
    return Delivery(pipeline, "orders-db", start, last if end is None else end, lane, lanes, lambda: iter(blocks))


def lane_of(block: Block, lane: int, lanes: int) -> Block:
    return block.take(np.flatnonzero(block.batch.column("offset").to_numpy() % lanes == lane))


def cut(block: Block, first: int, last: int) -> Block:
    """These rows without a copy, as the log's reader gives a part of a block."""
    return Block(block.table, block.batch.slice(first, last - first))


@pytest.fixture
def sinks() -> Iterator[Any]:
    """Makes sinks and closes them."""
    made: list[KafkaSink] = []

    def make(server: Broker | Mock, topic: str, **fields: Any) -> KafkaSink:
        made.append(KafkaSink(KafkaConfig(id="k", brokers=server.bootstrap, topic=topic, **fields)))
        return made[-1]

    yield make
    for sink in made:
        sink.close()


def ids(messages: Sequence[Any]) -> list[int]:
    return sorted(orjson.loads(m.key())["id"] for m in messages)


class TestMessages:
    def test_carry_the_json_of_the_event_and_of_its_key_byte_for_byte(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        block = make_block(500, table=make_table())
        receipt = sinks(kafka, topic).write(delivery_of(block))
        assert (receipt.ok, receipt.events, receipt.skipped) == (True, 500, 0)
        expected = zip(
            JsonFormat().encode_key(block).to_pylist(), JsonFormat().encode(block, "orders-db").to_pylist(), strict=True
        )
        assert sorted((m.key(), m.value()) for m in consume(kafka.bootstrap, topic)) == sorted(expected)

    def test_carry_headers_that_say_what_happened_to_which_table(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        block = make_block(3, ops=[Op.INSERT, Op.UPDATE, Op.DELETE])
        sinks(kafka, topic, headers=["op", "table", "schema_version", "source"]).write(delivery_of(block))
        found = {orjson.loads(m.key())["id"]: dict(m.headers()) for m in consume(kafka.bootstrap, topic)}
        assert [found[i]["op"] for i in range(3)] == [b"insert", b"update", b"delete"]
        assert all((f["table"], f["source"]) == (b"public.orders", b"orders-db") for f in found.values())
        assert all(f["schema_version"].decode() == block.table.fingerprint for f in found.values())

    def test_carry_no_headers_when_none_are_wanted(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sinks(kafka, topic, headers=[]).write(delivery_of(make_block(3)))
        assert [m.headers() for m in consume(kafka.bootstrap, topic)] == [None] * 3

    def test_have_no_key_when_the_table_has_none(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sinks(kafka, topic).write(delivery_of(make_block(5, table=make_table(key=(), identity="full"))))
        assert [m.key() for m in consume(kafka.bootstrap, topic)] == [None] * 5

    def test_of_one_key_are_in_one_partition_in_order(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sink = sinks(kafka, topic)
        rounds = [make_block(50, ops=Op.UPDATE, offsets=range(50 * r, 50 * r + 50)) for r in range(40)]
        for r in range(0, 40, 10):
            sink.write(delivery_of(*rounds[r : r + 10], start=50 * r))
        homes: dict[bytes, set[int]] = {}
        offsets: dict[bytes, list[int]] = {}
        for message in consume(kafka.bootstrap, topic):
            homes.setdefault(message.key(), set()).add(message.partition())
            offsets.setdefault(message.key(), []).append(message.offset())
        assert {len(p) for p in homes.values()} == {1}
        assert {len(o) for o in offsets.values()} == {40}
        assert all(o == sorted(o) for o in offsets.values())
        assert len({next(iter(p)) for p in homes.values()}) > 1

    def test_go_where_a_java_client_would_send_their_key(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sinks(kafka, topic).write(delivery_of(make_block(100)))
        ours = {m.key(): m.partition() for m in consume(kafka.bootstrap, topic)}
        reference = ReferenceProducer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2"})
        for key in ours:
            reference.produce(f"{topic}-java", b"", key)
        assert reference.flush(20) == 0
        assert {m.key(): m.partition() for m in consume(kafka.bootstrap, f"{topic}-java")} == ours

    def test_of_a_sliced_block_are_its_rows_only(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sinks(kafka, topic).write(delivery_of(cut(make_block(100), 40, 45), start=40))
        assert ids(consume(kafka.bootstrap, topic)) == [40, 41, 42, 43, 44]

    def test_may_be_more_than_the_client_holds_at_once(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sink = sinks(kafka, topic, client_conf={"queue.buffering.max.messages": "500"})
        assert sink.write(delivery_of(make_block(20_000))).events == 20_000
        assert ids(consume(kafka.bootstrap, topic)) == list(range(20_000))

    def test_can_be_compressed_every_way(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        for codec in ("none", "lz4", "zstd", "snappy", "gzip"):
            sinks(kafka, topic, compression=codec).write(delivery_of(make_block(10)))
        assert ids(consume(kafka.bootstrap, topic)) == sorted(list(range(10)) * 5)

    def test_an_empty_delivery_sends_nothing(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        assert sinks(kafka, topic).write(delivery_of()).events == 0


class TestTopics:
    def test_follow_the_table(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sink = sinks(kafka, topic + ".${source.schema}.${source.table}")
        sink.write(delivery_of(make_block(3), make_block(4, table=make_table("people"))))
        assert len(consume(kafka.bootstrap, f"{topic}.public.orders")) == 3
        assert len(consume(kafka.bootstrap, f"{topic}.public.people")) == 4

    def test_follow_a_column_row_by_row(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sinks(kafka, topic + "-${after.paid}").write(delivery_of(make_block(10)))
        assert ids(consume(kafka.bootstrap, f"{topic}-true")) == [0, 2, 4, 6, 8]
        assert ids(consume(kafka.bootstrap, f"{topic}-false")) == [1, 3, 5, 7, 9]

    def test_get_names_kafka_accepts(self) -> None:
        assert topic_name("público.ord ers/€") == "p_blico.ord_ers__"
        assert len(topic_name("x" * 300)) == 249

    def test_missing_where_nobody_creates_them_are_refused(self, private_kafka: Broker, topic: str, sinks: Any) -> None:
        sink = sinks(private_kafka, topic, client_conf={"topic.metadata.propagation.max.ms": "500"})
        with pytest.raises(Refused, match=topic) as caught:
            sink.write(delivery_of(make_block(3)))
        assert "auto.create.topics.enable" in caught.value.fix


class TestConfiguration:
    @pytest.mark.parametrize("name", ["acks", "enable.idempotence", "transactional.id", "bootstrap.servers"])
    def test_refuses_settings_that_would_break_the_guarantees(self, name: str) -> None:
        with pytest.raises(ValidationError, match="is set by the sink"):
            KafkaConfig(id="k", brokers="b:1", topic="t", client_conf={name: "x"})

    def test_refuses_a_template_that_names_nothing_known(self) -> None:
        with pytest.raises(ValidationError, match=r"Did you mean \$\{source.table\}"):
            KafkaConfig(id="k", brokers="b:1", topic="${source.tabel}")

    def test_passes_the_rest_on_and_lets_the_user_win(self) -> None:
        config = KafkaConfig(
            id="k", brokers="b:1", topic="t", client_conf={"message.timeout.ms": "5000", "linger.ms": "1"}
        )
        settings = config.client_settings()
        assert (settings["message.timeout.ms"], settings["linger.ms"], settings["acks"]) == ("5000", "1", "all")

    @pytest.mark.parametrize(("given", "linger"), [("600000", "5000"), ("2000", "500"), ("0", "5000")])
    def test_lingers_for_less_time_than_a_message_has(self, given: str, linger: str) -> None:
        config = KafkaConfig(id="k", brokers="b:1", topic="t", client_conf={"message.timeout.ms": given})
        assert config.client_settings()["linger.ms"] == linger

    def test_says_which_client_setting_is_wrong(self) -> None:
        sink = KafkaSink(KafkaConfig(id="k", brokers="b:1", topic="t", client_conf={"linger.hs": "1"}))
        with pytest.raises(ConfigError, match=r"linger\.hs"):
            sink.write(delivery_of(make_block(1)))

    def test_decides_the_tier(self) -> None:
        tiers = [KafkaSink(KafkaConfig(id="k", brokers="b:1", topic="t", exactly_once=e)).tier for e in (False, True)]
        assert tiers == [Tier.AT_LEAST_ONCE, Tier.EFFECTIVELY_ONCE]


class TestFaults:
    def test_a_broker_that_restarts_during_a_delivery_loses_nothing(
        self, private_kafka: Broker, topic: str, sinks: Any
    ) -> None:
        create_topic(private_kafka.bootstrap, topic)
        sink = sinks(private_kafka, topic)
        sink.write(delivery_of(make_block(10)))

        def blocks() -> Iterator[Block]:
            for n in range(1, 41):
                if n == 10:
                    outage.start()
                time.sleep(0.02)
                yield make_block(500, offsets=range(500 * n, 500 * n + 500), first_id=500 * n)

        def restart() -> None:
            private_kafka.stop(kill=True)
            time.sleep(0.5)
            private_kafka.start()

        outage = threading.Thread(target=restart)
        receipt = sink.write(Delivery("shop", "orders-db", 500, 20_500, 0, 1, blocks))
        outage.join()
        assert receipt.events == 20_000
        found = Counter(ids(consume(private_kafka.bootstrap, topic)))
        assert set(found) == {*range(10), *range(500, 20_500)}
        assert max(found.values()) == 1, "the idempotent producer does not repeat"

    def test_a_broker_that_stays_away_is_an_error_worth_a_retry(
        self, private_kafka: Broker, topic: str, sinks: Any
    ) -> None:
        create_topic(private_kafka.bootstrap, topic)
        patient, hasty = sinks(private_kafka, topic), sinks(private_kafka, topic, delivery_timeout_seconds=2)
        patient.write(delivery_of(make_block(10)))
        rest = delivery_of(make_block(10, offsets=range(10, 20), first_id=10), start=10)
        private_kafka.stop()
        try:
            with pytest.raises(DeliveryError) as caught:
                hasty.write(rest)
            assert is_retryable(caught.value)
        finally:
            private_kafka.start()
        for sink in (patient, *[hasty] * 20):
            with contextlib.suppress(DeliveryError):
                assert sink.write(rest).events == 10
                if sink is hasty:
                    break
        else:
            pytest.fail("the sink that met the outage never recovered")
        assert set(ids(consume(private_kafka.bootstrap, topic))) == set(range(20))

    def test_a_message_the_client_may_not_send_is_refused_with_the_setting(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        sink = sinks(kafka, topic, client_conf={"message.max.bytes": "1000"})
        with pytest.raises(Refused) as caught:
            sink.write(delivery_of(_wide_block(5_000)))
        assert "message.max.bytes" in caught.value.fix

    def test_a_message_the_broker_does_not_take_is_refused_with_the_setting(
        self, private_kafka: Broker, topic: str, sinks: Any
    ) -> None:
        create_topic(private_kafka.bootstrap, topic)
        sink = sinks(private_kafka, topic, compression="none")
        with pytest.raises(Refused) as caught:
            sink.write(delivery_of(_wide_block(500_000)))
        assert "message.max.bytes" in caught.value.fix
        sink.write(delivery_of(make_block(1, first_id=1)))
        assert ids(consume(private_kafka.bootstrap, topic)) == [1]

    def test_wrong_credentials_are_refused_at_once(self, topic: str, tmp_path_factory: Any, sinks: Any) -> None:
        broker = _broker_with_passwords(tmp_path_factory)
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN", "sasl.username": "mill"}
        with broker:
            right = sinks(broker, topic, client_conf={**login, "sasl.password": "right"})
            assert right.write(delivery_of(make_block(3))).events == 3
            wrong = sinks(broker, topic, client_conf={**login, "sasl.password": "wrong"})
            began = time.monotonic()
            with pytest.raises(Refused, match="Authentication failed") as caught:
                wrong.write(delivery_of(make_block(3)))
            assert time.monotonic() - began < 60, "it did not wait for the delivery timeout"
            assert "sasl." in caught.value.fix
            assert [c.outcome for c in wrong.doctor()] == [Outcome.FAIL]

    def test_a_sink_used_before_a_fork_works_in_the_child(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        sink = sinks(kafka, topic)
        sink.write(delivery_of(make_block(3)))
        child = os.fork()
        if not child:
            code = 1
            try:
                sink.write(delivery_of(make_block(3, first_id=3)))
                sink.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        sink.write(delivery_of(make_block(3, first_id=6)))
        assert ids(consume(kafka.bootstrap, topic)) == list(range(9))


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


class TestDoctor:
    def test_passes_when_all_is_well(self, kafka: Broker | Mock, topic: str, sinks: Any) -> None:
        if isinstance(kafka, Mock):
            pytest.skip("the mock cluster does not tell its settings")
        checks = list(sinks(kafka, topic, exactly_once=True).doctor())
        assert [c.name for c in checks] == ["brokers", "producer", "topic", "message size", "positions topic"]
        assert {c.outcome for c in checks} == {Outcome.PASS}

    def test_fails_with_a_fix_when_the_topic_is_missing_or_the_limit_is_low(
        self, private_kafka: Broker, topic: str, sinks: Any
    ) -> None:
        checks = {c.name: c for c in sinks(private_kafka, topic).doctor()}
        assert checks["topic"].outcome is Outcome.FAIL
        assert checks["message size"].outcome is Outcome.WARN
        assert all(c.fix for c in checks.values() if c.outcome is not Outcome.PASS)

    def test_fails_once_when_nobody_is_there(
        self, sinks: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """librdkafka calls each of its hundred attempts an error; a log that nobody set up prints such lines."""
        monkeypatch.setattr("tidemill.sinks.kafka.checks._TIMEOUT", 2.0)
        config = KafkaConfig(id="k", brokers="127.0.0.1:1", topic="t")
        with caplog.at_level(logging.DEBUG, "tidemill.sinks.kafka"):
            (check,) = KafkaSink(config).doctor()
        assert {record.levelname for record in caplog.records} == {"DEBUG"}
        assert check.outcome is Outcome.FAIL
        assert "Connection refused" in check.detail


_KILLED_WRITER = """
import os, signal, sys
from tests.sinks.test_kafka import delivery_of
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


def _wide_block(width: int) -> Block:
    """One row whose text is wide and does not compress to nothing."""
    import pyarrow as pa

    block = make_block(1, first_id=1)
    after = block.batch.column("after")
    text = np.random.default_rng(7).integers(97, 123, width, np.uint8).tobytes().decode()
    fields = [pa.array([text]) if f.name == "note" else after.field(f.name) for f in after.type]
    wide = pa.StructArray.from_arrays(fields, fields=list(after.type))
    at = block.batch.schema.get_field_index("after")
    return Block(block.table, block.batch.set_column(at, block.batch.schema.field(at), wide))


def _broker_with_passwords(tmp_path_factory: Any) -> Broker:
    from tests.servers.kafka import CACHE
    from tidemill.errors import EnvironmentProblem
    from tidemill.lab.servers.kafka import fetch_jars

    try:
        jars = fetch_jars(CACHE)
    except EnvironmentProblem as problem:
        pytest.skip(f"a mock cluster takes any password: {problem.what}")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    users = 'username="mill" password="right" user_mill="right"'
    return Broker(
        tmp_path_factory.mktemp("sasl-kafka"), jars,
        {
            "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.plaintext.plain.sasl.jaas.config": f"{module} required {users};",
        },
    )  # fmt: skip
