"""Kafka: one message per event, keyed by the primary key, so that a key's events stay in order in one partition.

Idempotent producer with `acks=all`: `write` returns when every message of the delivery is acknowledged by all in-sync
replicas. With `exactly_once` each lane's share of a batch is one transaction, which also records what it delivered
(`resume`); a consumer with `isolation.level=read_committed` sees every event once, whatever was killed when.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field, field_validator

from tidemill.contracts import BaseSink, Capabilities, Check, Place, SinkConfig
from tidemill.errors import ConfigError, Poisoned, Refused
from tidemill.model.delivery import Delivery, Receipt, Tier
from tidemill.model.table import Table
from tidemill.model.template import Template
from tidemill.sinks._shared.encoded import EVERY_FORMAT, EncodedSinkConfig, encoder
from tidemill.sinks._shared.places import hosts
from tidemill.sinks._shared.replayed import ReplayedAudit
from tidemill.sinks._shared.resume import Delivered
from tidemill.sinks._shared.resume_scheme import fresh_units
from tidemill.sinks.kafka import errors
from tidemill.sinks.kafka.client import KafkaFailure, Messages, Producer
from tidemill.sinks.kafka.client_log import ClientLog
from tidemill.sinks.kafka.contents import TopicEvents
from tidemill.sinks.kafka.fencing import PARTITION, Marks, Shape, read_marks
from tidemill.sinks.kafka.limits import largest_message
from tidemill.sinks.kafka.probe import open_producer
from tidemill.sinks.kafka.resume import KafkaResumption, ensure_topic, read_back
from tidemill.sinks.kafka.write import KafkaDelivery, topic_name
from tidemill.telemetry.failpoints import failpoint

log = logging.getLogger("tidemill.sinks.kafka")

Header = Literal["op", "table", "schema_version", "source"]

# What the guarantees stand on. A user's value for one of these would quietly take them away.
_OURS = {
    "acks": "a message counts as delivered only when all in-sync replicas have it",
    "request.required.acks": "a message counts as delivered only when all in-sync replicas have it",
    "enable.idempotence": "a retry inside the client must not repeat or reorder messages",
    "transactional.id": "it names the lane; set exactly_once",
    "delivery.report.only.error": "the sink counts failed messages through it",
    "bootstrap.servers": "it is called brokers",
    "metadata.broker.list": "it is called brokers",
}
_LINGER_MS = 5000
_CONNECTION = re.compile(
    r"(bootstrap|security|sasl|ssl|enable\.ssl|socket|client|broker|reconnect|api|https|debug)\b.*"
)


class KafkaConfig(EncodedSinkConfig):
    brokers: str = Field(description="Brokers to ask first: host:port, several with commas.", min_length=1)
    topic: str = Field(
        description="Topic, or a template: ${source.schema}.${source.table}, orders-${after.region:-other}.",
        min_length=1,
    )
    exactly_once: bool = Field(default=False, description="Write each lane's share of a batch as one transaction.")
    compression: Literal["none", "lz4", "zstd", "snappy", "gzip"] = Field(
        default="lz4", description="Compression of message batches."
    )
    headers: tuple[Header, ...] = Field(
        default=("op", "table"), description="Headers every message carries, about 0.2 µs each; [] for none."
    )
    tombstones: bool = Field(
        default=False,
        description="After a delete, also send its key with no value, so that a compacted topic forgets the key.",
    )
    delivery_timeout_seconds: float = Field(
        default=120.0, gt=0, description="How long to wait for a broker before the batch fails and is tried again."
    )
    positions_topic: str = Field(
        default="tidemill-positions",
        description="Compacted topic of what was delivered, for exactly_once; made if missing.",
    )
    client_conf: dict[str, str] = Field(
        default_factory=dict,
        description="Settings of librdkafka, passed on as they are (security.protocol, sasl.*, linger.ms, ...).",
        json_schema_extra={"secret": True},
    )

    @field_validator("topic")
    @classmethod
    def _topic_parses(cls, text: str) -> str:
        try:
            Template(text)
        except ConfigError as error:
            raise ValueError(f"{error.what}. {error.fix}") from error
        return text

    @field_validator("client_conf")
    @classmethod
    def _keeps_guarantees(cls, settings: dict[str, str]) -> dict[str, str]:
        for name in settings:
            if name in _OURS:
                raise ValueError(f'"{name}" is set by the sink: {_OURS[name]}. Remove it.')
        return settings

    def occupies(self) -> tuple[Place, ...]:
        """Transactions of one pipeline that both bring an event bring it twice; other pipelines bring other events."""
        if not self.exactly_once:
            return ()
        return (Place(f"kafka://{hosts(self.brokers.split(','), 9092)}/{self.topic}", per_pipeline=True),)

    def client_settings(self) -> dict[str, str]:
        """librdkafka's settings: ours below, the user's over them, the guarantees on top."""
        timeout = str(round(self.delivery_timeout_seconds * 1000))
        return {
            "client.id": "tidemill",
            "partitioner": "murmur2_random",  # Java clients find the same partition for the same key
            "compression.type": self.compression,
            "message.timeout.ms": timeout,
            # The end of a delivery flushes, so lingering costs no latency. Messages that are older than this and wait
            # for an earlier request of their partition would keep librdkafka's thread from sleeping (client.flush).
            "linger.ms": str(_linger_ms(self.client_conf.get("message.timeout.ms", timeout))),
            # A delivery is a small request for each partition: the second would wait until the first is confirmed.
            "socket.nagle.disable": "true",
            "reconnect.backoff.ms": "250",
            "reconnect.backoff.max.ms": "1000",  # a broker that is back is used again soon
            # A message of 165 bytes takes 600 of memory. A longer queue holds more and makes nothing faster (ADR 59).
            "queue.buffering.max.messages": "100000",
            "queue.buffering.max.kbytes": "32768",
            **({"transaction.timeout.ms": str(min(int(timeout), 900_000))} if self.exactly_once else {}),
            **self.client_conf,
            "bootstrap.servers": self.brokers,
            "acks": "all",
            "enable.idempotence": "true",
        }

    def connection_settings(self) -> dict[str, str]:
        """The part of it that consumers and admin clients understand."""
        return {k: v for k, v in self.client_settings().items() if _CONNECTION.fullmatch(k)}


def _linger_ms(message_timeout: str) -> int:
    """Below the time after which librdkafka gives up on a message, where 0 stands for never."""
    timeout = int(message_timeout) if message_timeout.isdigit() else 0
    return min(_LINGER_MS, timeout // 4) or _LINGER_MS


class KafkaSink(BaseSink[KafkaConfig]):
    Config: ClassVar[type[SinkConfig]] = KafkaConfig
    mechanism: ClassVar[str] = (
        "Idempotent producer; with exactly_once one transaction per lane and batch, which records what it delivered, "
        "and a plan fences the workers of those before it."
    )
    capabilities = Capabilities(formats=EVERY_FORMAT)
    config: KafkaConfig

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config)
        self._topic = Template(config.topic)
        self._format = encoder(config)
        self._timeout = config.delivery_timeout_seconds + 5  # librdkafka gives up on a message first, with a reason
        self._producer: Producer | None = None
        self._lanes: dict[str, _Lane] = {}

    @property
    def tier(self) -> Tier:
        """effectively once with `exactly_once`, else at least once"""
        return Tier.EFFECTIVELY_ONCE if self.config.exactly_once else Tier.AT_LEAST_ONCE

    def write(self, delivery: Delivery) -> Receipt:
        began = time.perf_counter()
        # A dead letter that comes again is outside every batch: it must not take the place of the last batch's record.
        exact = self.config.exactly_once and not delivery.redelivered
        receipt = self._write_transaction(delivery) if exact else self._write_plain(delivery)
        return dataclasses.replace(receipt, write_seconds=time.perf_counter() - began - receipt.encode_seconds)

    def close(self) -> None:
        for producer in (self._producer, *(lane.producer for lane in self._lanes.values())):
            if producer is not None:
                producer.close()
        self._producer, self._lanes = None, {}

    def audit(self, table: Table, source: str, *, values: bool = False) -> ReplayedAudit:
        config = self.config
        if not self._topic.is_constant:
            raise Refused(
                "the topic depends on the row, so that it is not known where a table's events are",
                where=self._where(), fix="verify works with a topic that is the same for all rows of a table.",
            )  # fmt: skip
        topic = topic_name(self._topic.constant(table, source))
        events = TopicEvents(config.connection_settings(), topic, self._timeout, self._where())
        return ReplayedAudit(config, self._format, events, table, source, values=values)

    def doctor(self) -> Iterable[Check]:
        from tidemill.sinks.kafka.checks import run_checks

        return run_checks(self.config, self._topic)

    def _write_plain(self, delivery: Delivery) -> Receipt:
        """One producer for all lanes that come to this worker."""
        producer = self._plain()
        sending = KafkaDelivery(self.config, self._format, self._topic, producer, delivery, self._timeout)
        with self._dropped_on_failure(producer):
            for block in delivery:
                sending.send(block)
            producer.flush(self._timeout)
        return sending.receipt()

    def _plain(self) -> Producer:
        if self._producer is None or self._producer.pid != os.getpid():
            self._producer = open_producer(self.config.client_settings())
        return self._producer

    def _write_transaction(self, delivery: Delivery) -> Receipt:
        name = Shape.of(delivery).transactional_id(self._prefix(delivery), delivery.lane)
        kept = self._lanes.get(name)
        if kept is None or kept.producer.pid != os.getpid():
            return self._transaction(delivery, self._open_lane(delivery, name))
        try:
            return self._transaction(delivery, kept)
        except errors.Fenced:
            # Another worker had this lane since: whatever it delivered is read back before we go on.
            log.debug("%s was written by another worker; taking it over", name)
        return self._transaction(delivery, self._open_lane(delivery, name))

    def _transaction(self, delivery: Delivery, lane: _Lane) -> Receipt:
        sending = KafkaDelivery(self.config, self._format, self._topic, lane.producer, delivery, self._timeout)
        resumption = KafkaResumption(
            delivery, f"{self._prefix(delivery)}{delivery.lane}", lane.delivered,
            lambda notes: self._note(lane.producer, notes, lane.home),
        )  # fmt: skip
        with self._dropped_on_failure(lane.producer):
            for number, block in enumerate(fresh_units(delivery, resumption)):
                if not number:
                    lane.producer.begin()
                sending.send(block)
            if resumption.events:
                resumption.note()
                failpoint("kafka.sent")
                lane.producer.commit(self._timeout)
                lane.delivered.records.update(resumption.records)
        sending.skipped = resumption.skipped
        return sending.receipt()

    def _open_lane(self, delivery: Delivery, name: str) -> _Lane:
        """Fences whoever may write these events, then learns what was delivered: so nothing slips between."""
        producer = self._take(name)
        settings, topic = self.config.connection_settings(), self.config.positions_topic
        prefix = self._prefix(delivery)
        with self._dropped_on_failure(producer):
            with errors.explain_errors(self._where()):
                home = delivery.lane % ensure_topic(settings, topic, ClientLog())
            self._fence_other_shapes(Shape.of(delivery), prefix)
            with errors.explain_errors(self._where()):
                delivered = read_back(settings, topic, prefix, home, self._timeout, ClientLog())
            delivered.check_in_time(delivery)
        self._lanes[name] = _Lane(producer, delivered, home)
        return self._lanes[name]

    def _fence_other_shapes(self, own: Shape, prefix: str) -> None:
        """Marks our shape, then takes the ids of all others that were in use since somebody did so last."""
        deadline = time.monotonic() + self._timeout
        plain = self._plain()
        with self._dropped_on_failure(plain):
            self._note(plain, dict([Marks(prefix).mark(own)]), PARTITION)
            plain.flush(self._timeout)
        with errors.explain_errors(self._where()):
            marks = read_marks(
                self.config.connection_settings(), self.config.positions_topic, prefix,
                lambda: time.monotonic() > deadline, ClientLog(),
            )  # fmt: skip
        for shape, (offset, ids) in marks.strangers(own).items():
            log.debug("fencing %d lanes of shape %s under %s", len(ids), shape, prefix)
            for name in ids:
                self._take(name).close()
            with self._dropped_on_failure(plain):
                self._note(plain, dict([marks.fence(shape, offset)]), PARTITION)
                plain.flush(self._timeout)

    def _take(self, name: str) -> Producer:
        """A producer with this transactional id: whoever had it is fenced, and its open transaction is aborted."""
        producer = open_producer({**self.config.client_settings(), "transactional.id": name})
        with self._dropped_on_failure(producer):
            producer.init_transactions(self._timeout)
        return producer

    def _note(self, producer: Producer, notes: Mapping[str, bytes], partition: int) -> None:
        """Messages for the positions topic."""
        keys = pa.array([key.encode() for key in notes], pa.large_binary())
        values = pa.array(list(notes.values()), pa.large_binary())
        none = np.zeros(len(keys), np.uint8)
        topic = producer.topic(self.config.positions_topic)
        messages = Messages(values, keys, [topic], none.astype(np.int64), [0], none)
        producer.send(messages, self._timeout, partition=partition)

    def _prefix(self, delivery: Delivery) -> str:
        return f"tidemill/{delivery.pipeline}/{self.config.id}/"

    @contextlib.contextmanager
    def _dropped_on_failure(self, producer: Producer) -> Iterator[None]:
        """A producer that failed may still hold messages of the failed delivery: the next attempt gets a new one."""
        try:
            yield
        except BaseException as error:
            self._lanes = {name: lane for name, lane in self._lanes.items() if lane.producer is not producer}
            if producer is self._producer:
                self._producer = None
            if self.config.exactly_once:
                producer.try_abort()  # else read_committed consumers wait for its timeout
            producer.close()
            if isinstance(error, KafkaFailure):
                self._raise_oversized(error)
                raise errors.explain(error, producer.last_problem, self._where()) from error
            raise

    def _raise_oversized(self, failure: KafkaFailure) -> None:
        """Names the events that are too large, if that is what happened and it can be told which they are."""
        if failure.code not in errors.TOO_LARGE or not failure.messages:
            return
        limit = failure.limit
        if limit is None:
            # The broker refuses a batch of messages as a whole: innocent ones may be among those it sent back.
            limit = largest_message(self.config.connection_settings(), failure.topic)
        found = {number: size for number, size in failure.messages.items() if limit is not None and size > limit}
        if found:
            reasons = {number: f"its message has {size} bytes, the limit is {limit}" for number, size in found.items()}
            raise Poisoned(reasons, where=self._where(), fix=errors.SIZE) from failure

    def _where(self) -> str:
        return f'sink "{self.config.id}", brokers {self.config.brokers}'


@dataclasses.dataclass(frozen=True, slots=True)
class _Lane:
    """A transactional producer, what its lane has delivered, and the partition where its records live."""

    producer: Producer
    delivered: Delivered
    home: int


component = KafkaSink
