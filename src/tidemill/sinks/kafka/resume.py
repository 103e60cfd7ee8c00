"""Where the kafka sink keeps its records of what was delivered (`resume`): in a compacted topic, in Kafka itself.

Each transaction carries, beside its events, its records. They become visible with the events or not at all, so what
they say is what consumers see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.sinks._shared.resume import Delivered, RecordedResumption, ShareRecord
from tidemill.sinks._shared.resume_scheme import ResumeScheme
from tidemill.sinks.kafka.fencing import is_record

_PARTITIONS = 16
# A restart reads the topic from its beginning: keep little besides the last record of each key.
_TOPIC_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "4194304", "min.cleanable.dirty.ratio": "0.01"}


class KafkaResumption(RecordedResumption):
    """One delivery's transaction. `send` puts messages of the positions topic into it."""

    def __init__(
        self, delivery: Delivery, lane: str, delivered: Delivered, send: Callable[[Mapping[str, bytes]], None]
    ) -> None:
        super().__init__(delivery, lane, delivered)
        self._send = send

    def note(self) -> None:
        if self.events:
            self._send({key: record.encode() for key, record in self.records.items()})


def ensure_topic(settings: Mapping[str, str], topic: str, logger: Any) -> int:
    """How many partitions the positions topic has; creates it, compacted, if it is missing."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient(dict(settings), logger=logger)
    found = admin.list_topics(timeout=30).topics.get(topic)
    if found is not None:
        return len(found.partitions)
    wanted = NewTopic(topic, num_partitions=_PARTITIONS, replication_factor=-1, config=_TOPIC_CONFIG)
    try:
        admin.create_topics([wanted], operation_timeout=30)[topic].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return len(admin.list_topics(timeout=30).topics[topic].partitions)
    return _PARTITIONS


def read_back(
    settings: Mapping[str, str], topic: str, prefix: str, home: int, timeout: float, logger: Any
) -> Delivered:
    """All committed records whose key starts with `prefix`. Call after `init_transactions` of a lane with this `home`.

    That call ended the lane's last transaction; its partition is read to the very end, whoever else writes there. In
    the other partitions reading stops where a transaction is open: what stands after it belongs to the same lane,
    and is not delivered. That is why each lane has a partition of its own, as far as they go.
    """
    from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

    base = {**settings, "group.id": f"{prefix}positions", "enable.auto.commit": "false"}
    deadline = time.monotonic() + timeout
    ends = Consumer({**base, "isolation.level": "read_uncommitted"}, logger=logger)
    try:
        partitions = ends.list_topics(topic, timeout=30).topics[topic].partitions
        bounds = {p: _bounds(ends, TopicPartition(topic, p), deadline) for p in partitions}
    finally:
        ends.close()
    unread = {p: (high if p == home else 0) for p, (low, high) in bounds.items() if low < high}
    wait = {"enable.partition.eof": "true", "fetch.wait.max.ms": "10"}  # an answer of "no more" is what we wait for
    found: dict[str, bytes] = {}
    reader = Consumer({**base, **wait, "isolation.level": "read_committed"}, logger=logger)
    try:
        reader.assign([TopicPartition(topic, p, bounds[p][0]) for p in unread])
        while unread:
            if time.monotonic() > deadline:
                raise TimeoutError(f'the positions in "{topic}" could not be read within {timeout:.0f} s')
            message = reader.poll(0.5)
            if message is None:
                continue
            error, partition = message.error(), message.partition()
            if error is None:
                found[message.key().decode()] = message.value()
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            elif message.offset() >= unread.get(partition, 0):
                unread.pop(partition, None)
            else:  # someone's transaction is open before the end: look again until it is settled
                reader.seek(TopicPartition(topic, partition, message.offset()))
    finally:
        reader.close()
    return Delivered({key: ShareRecord.decode(value) for key, value in found.items() if is_record(key, prefix)})


def _bounds(consumer: Any, partition: Any, deadline: float) -> tuple[Offset, Offset]:
    """First and next offset of a partition; waits while its leader is being elected, as after creation or a restart."""
    from confluent_kafka import KafkaError, KafkaException

    elected_soon = (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TRANSPORT,
    )
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=10)
        except KafkaException as error:
            if error.args[0].code() not in elected_soon or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return low, high


RESUME = ResumeScheme(
    kept_in="the compacted topic positions_topic",
    bound_by="one transaction with the events",
    replay="skipped, event by event",
    resumption=KafkaResumption,
)
