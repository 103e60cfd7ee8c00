"""Reads back a topic, for `tidemill verify`: what a `read_committed` consumer has by now, partition by partition."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.errors import DeliveryError
from tidemill.sinks.kafka.client_log import ClientLog
from tidemill.sinks.kafka.errors import explain_errors

_POLL_SECONDS, _MESSAGES = 0.05, 10_000  # a poll lasts so long unless so many come


class TopicEvents:
    """Belongs to no consumer group and commits nothing. Messages without a value (tombstones) are left out: the delete
    before them says the same."""

    def __init__(self, settings: Mapping[str, str], topic: str, timeout: float, where: str) -> None:
        self._settings, self._topic, self._timeout, self._where = dict(settings), topic, timeout, where
        self._next: dict[int, int] = {}
        self._consumer: Any = None

    def fresh(self) -> Iterator[bytes]:
        """Up to what each partition has when it is come to; waits while a broker does not answer."""
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        with explain_errors(self._where):
            consumer = self._open()
            found = consumer.list_topics(self._topic, timeout=30).topics[self._topic]
            if found.error is not None:
                raise KafkaException(found.error)
            places = {p: self._next.get(p, 0) for p in found.partitions}
            # From -2, the oldest that is there, where nothing was read yet.
            consumer.assign([TopicPartition(self._topic, p, at or -2) for p, at in places.items()])
            left, deadline = set(places), time.monotonic() + self._timeout
            while left:
                messages = consumer.consume(_MESSAGES, _POLL_SECONDS)
                if messages:
                    deadline = time.monotonic() + self._timeout
                elif time.monotonic() > deadline:
                    raise DeliveryError(
                        f'"{self._topic}" could not be read within {self._timeout:.0f} s', where=self._where,
                        fix="Are the brokers up and reachable?",
                    )  # fmt: skip
                for message in messages:
                    error, partition = message.error(), message.partition()
                    if error is None:
                        self._next[partition] = message.offset() + 1
                        if message.value() is not None:
                            yield message.value()
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard(partition)
                    else:
                        raise KafkaException(error)

    def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _open(self) -> Any:
        from confluent_kafka import Consumer

        if self._consumer is None:
            settings = {
                **self._settings, "group.id": "tidemill-verify", "enable.auto.commit": "false",
                "isolation.level": "read_committed", "enable.partition.eof": "true", "fetch.wait.max.ms": "10",
            }  # fmt: skip
            self._consumer = Consumer(settings, logger=ClientLog())
        return self._consumer
