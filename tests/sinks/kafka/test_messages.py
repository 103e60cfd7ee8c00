"""Messages, topics and settings."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer as ReferenceProducer
from pydantic import ValidationError

from tests.servers.kafka import consume
from tests.sinks.kafka.support import cut, delivery_of, ids
from tests.support.blocks import make_block, make_table
from tidemill.errors import ConfigError, Refused
from tidemill.formats.json import JsonFormat
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.model.block import Op
from tidemill.model.delivery import Tier
from tidemill.sinks.kafka import KafkaConfig, KafkaSink
from tidemill.sinks.kafka.write import topic_name


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

    def test_to_a_second_partition_do_not_wait_for_the_first(
        self, kafka: Broker | Mock, topic: str, sinks: Any
    ) -> None:
        before = _connections()
        sinks(kafka, topic).write(delivery_of(make_block(10)))
        ours = _connections().items() - before.items()
        assert {no_delay for _, no_delay in ours} == {1}

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


def _connections() -> dict[tuple[Any, ...], int]:
    """Of this process, by their two ends: whether what is small is sent at once."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as connection:
            if connection.family == socket.AF_INET:
                ends = (connection.getsockname(), connection.getpeername())
                found[ends] = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    return found
