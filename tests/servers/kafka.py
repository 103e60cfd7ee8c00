"""A Kafka for tests: the real broker where its jars can be had, else librdkafka's mock cluster, said in the header.

`kafka` is shared by the whole run, so tests take topics of their own (`topic`). `private_kafka` belongs to one module:
it does not create topics by itself, and may be stopped and started.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidemill.errors import EnvironmentProblem
from tidemill.lab.servers.kafka import Broker, Mock, fetch_jars, local_kafka

CACHE = Path(__file__).parents[2] / ".services" / "kafka"
_names = itertools.count(1)


@functools.cache
def kafka_label() -> str:
    """For the header of a run: which of the two it has."""
    try:
        fetch_jars(CACHE)
    except EnvironmentProblem:
        return Mock.label
    return Broker.label


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | Mock]:
    server = local_kafka(tmp_path_factory.mktemp("kafka"), CACHE)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def private_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real broker of the module's own, to be stopped, killed and started again."""
    try:
        jars = fetch_jars(CACHE)
    except EnvironmentProblem as problem:
        pytest.skip(f"a mock cluster cannot be restarted: {problem.what}")
    settings = {"auto.create.topics.enable": "false", "message.max.bytes": "200000"}
    broker = Broker(tmp_path_factory.mktemp("private-kafka"), jars, settings)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def topic() -> str:
    """A name no other test of the run has."""
    return f"topic-{next(_names)}"


def create_topic(bootstrap: str, topic: str, partitions: int = 4) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def consume(bootstrap: str, *topics: str, timeout_seconds: float = 60.0) -> list[Message]:
    """Every message from the beginning to the end of all partitions, as a read_committed consumer sees them.

    The end is the broker's, not the last committed transaction's: a commit is answered before its markers are written,
    so the consumer waits until nothing is in doubt.
    """
    base = {"bootstrap.servers": bootstrap, "group.id": "tests", "enable.auto.commit": False}
    ends = Consumer({**base, "isolation.level": "read_uncommitted"})
    reader = Consumer(
        {**base, "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 10}
    )
    found: list[Message] = []
    try:
        partitions = [
            TopicPartition(t, p, 0) for t in topics for p in ends.list_topics(t, timeout=20).topics[t].partitions
        ]
        unread = {(p.topic, p.partition): ends.get_watermark_offsets(p, timeout=20)[1] for p in partitions}
        reader.assign(partitions)
        deadline = time.monotonic() + timeout_seconds
        while unread and time.monotonic() < deadline:
            for message in reader.consume(1000, timeout=0.05):
                error, place = message.error(), (message.topic(), message.partition())
                if error is None:
                    found.append(message)
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= unread.get(place, 0):
                    unread.pop(place, None)
                elif error.code() == KafkaError._PARTITION_EOF:
                    reader.seek(TopicPartition(*place, message.offset()))
        assert not unread, f"no end seen of {unread}"
    finally:
        reader.close()
        ends.close()
    return found
