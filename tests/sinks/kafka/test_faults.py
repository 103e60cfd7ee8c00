"""Brokers that go away, refuse or are not there; what `doctor` says."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.servers.kafka import consume, create_topic
from tests.sinks.kafka.support import delivery_of, ids
from tests.support.blocks import make_block
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Refused, is_retryable
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.sinks.kafka import KafkaConfig, KafkaSink


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
        """librdkafka calls each of its hundred attempts an error; a log that nobody set up prints such lines. It is
        asked once: what the connections complain of ends the wait."""
        monkeypatch.setattr("tidemill.sinks.kafka.checks._LOOKS", (1.0, 3600.0))
        config = KafkaConfig(id="k", brokers="127.0.0.1:1", topic="t")
        with caplog.at_level(logging.DEBUG, "tidemill.sinks.kafka"):
            (check,) = KafkaSink(config).doctor()
        assert {record.levelname for record in caplog.records} == {"DEBUG"}
        assert check.outcome is Outcome.FAIL
        assert "Connection refused" in check.detail


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
