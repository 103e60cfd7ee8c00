"""One delivery on its way to Kafka: where each event goes, its headers and its tombstone."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidemill.contracts import Format
from tidemill.model.block import Block, Op
from tidemill.model.delivery import Delivery, Receipt
from tidemill.model.template import Template
from tidemill.sinks._shared import routing
from tidemill.sinks._shared.lines import windows
from tidemill.sinks.kafka.client import Messages, Producer

if TYPE_CHECKING:
    from tidemill.sinks.kafka import KafkaConfig

# CloudEvents' Kafka binding: attributes carry this prefix, except the type of the content.
_PREFIX, _CONTENT_TYPE = "ce_", "content-type"


class KafkaDelivery:
    """Encodes blocks, hands them to the producer, counts."""

    def __init__(
        self, config: KafkaConfig, format: Format, topic: Template, producer: Producer, delivery: Delivery,
        timeout: float,
    ) -> None:  # fmt: skip
        self.skipped = 0
        self._config = config
        self._format = format
        self._topic = topic
        self._producer = producer
        self._delivery = delivery
        self._timeout = timeout
        self._by_topic = config.schema_registry is not None and config.schema_registry.naming != "record"
        self._events = 0
        self._bytes = 0
        self._encode_seconds = 0.0

    def send(self, block: Block) -> None:
        for window in windows(block):
            self._send(window)

    def _send(self, block: Block) -> None:
        began = time.perf_counter()
        names = routing.destinations(self._topic, block, self._delivery.source)
        topics = [topic_name(text) for text in names.dictionary.to_pylist()]
        topic_of = names.indices.to_numpy().astype(np.int64)
        self._encode_seconds += time.perf_counter() - began
        for part, rows in self._parts(block, topics, topic_of):
            began = time.perf_counter()
            messages = self._messages(part, topics, topic_of if rows is None else topic_of[rows])
            self._encode_seconds += time.perf_counter() - began
            self._events += part.rows
            self._bytes += messages.values.nbytes + messages.keys.nbytes
            self._producer.send(messages, self._timeout)

    def receipt(self) -> Receipt:
        return Receipt(
            self._config.id, self._delivery.lane, self._events, self._bytes, self.skipped,
            encode_seconds=self._encode_seconds,
        )  # fmt: skip

    def _parts(
        self, block: Block, topics: list[str], topic_of: np.ndarray[Any, np.dtype[np.int64]]
    ) -> Iterator[tuple[Block, np.ndarray[Any, Any] | None]]:
        """The whole block; with schemas that are filed by topic, the rows of each topic. Order matters only inside a
        partition, so the rows of one topic may come before those of another."""
        if not self._by_topic or len(topics) == 1:
            yield block, None
            return
        for number in np.unique(topic_of).tolist():
            rows = np.flatnonzero(topic_of == number)
            yield block.take(rows), rows

    def _messages(self, block: Block, topics: list[str], topic_of: np.ndarray[Any, np.dtype[np.int64]]) -> Messages:
        source = self._delivery.source
        format = self._format.to(topics[topic_of[0]]) if self._by_topic and block.rows else self._format
        attributes = format.attributes(block, source)
        given = routing.routed_headers(block)
        ops = block.batch.column("op").to_numpy()
        messages = Messages(
            format.encode(block, source), routing.routed_keys(block, format.encode_key(block, source)),
            [self._producer.topic(name) for name in topics], topic_of,
            self._headers(block, ops, format, attributes), ops,
            {_header(name): _bytes(value) for name, value in attributes.items() if not isinstance(value, str)}
            | {name: _bytes(values) for name, values in given.items()},
            block.offsets(),
        )  # fmt: skip
        return _with_tombstones(messages, ops == int(Op.DELETE)) if self._config.tombstones else messages

    def _headers(self, block: Block, ops: np.ndarray[Any, Any], format: Format, attributes: Any) -> list[int]:
        """One set of headers per kind of change: built once, copied by librdkafka."""
        fixed = {_header(name): value for name, value in attributes.items() if isinstance(value, str)}
        if self._config.envelope == "cloudevents" and not attributes:
            fixed = {_CONTENT_TYPE: f"{format.content_type}; charset=UTF-8"}
        handles = [0] * (max(Op) + 1)
        for op in np.unique(ops).tolist():
            facts = {
                "op": Op(op).label, "table": block.table.full_name, "schema_version": block.table.fingerprint,
                "source": self._delivery.source,
            }  # fmt: skip
            names = self._config.headers or (("op",) if block.column("route") is not None else ())
            pairs = {name: facts[name] for name in names} | fixed  # what a row adds needs a set to be added to
            handles[op] = self._producer.headers(tuple((name, text.encode()) for name, text in pairs.items()))
        return handles


def topic_name(text: str) -> str:
    """A name Kafka accepts: letters, digits, dot, underscore and dash, at most 249 of them."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", text)[:249]


def _with_tombstones(messages: Messages, deleted: np.ndarray[Any, np.dtype[np.bool_]]) -> Messages:
    """After each deleted event a second message with its key and no value: a compacted topic then forgets the key."""
    deleted = deleted & messages.keys.is_valid().to_numpy(zero_copy_only=False)
    if not deleted.any():
        return messages
    rows = np.repeat(np.arange(len(deleted)), 1 + deleted)
    second = np.zeros(len(rows), np.bool_)
    second[1:] = rows[1:] == rows[:-1]
    at = pa.array(rows)
    return Messages(
        messages.values.take(pa.array(rows, mask=second)), messages.keys.take(at),
        messages.topics, messages.topic_of[rows], messages.headers, messages.headers_of[rows],
        {name: values.take(at) for name, values in messages.row_headers.items()},
        None if messages.numbers is None else messages.numbers[rows],
    )  # fmt: skip


def _header(attribute: str) -> str:
    return _CONTENT_TYPE if attribute == "datacontenttype" else _PREFIX + attribute


def _bytes(strings: pa.Array) -> pa.LargeBinaryArray:
    return strings.cast(pa.large_string()).cast(pa.large_binary())
