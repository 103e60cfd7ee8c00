"""The kafka sink in every wire format and envelope; tombstones; events that are too large."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.formats.readers import read_one
from tests.formats.test_cloudevents import check
from tests.servers.kafka import consume, create_topic
from tests.servers.schema_registry_standin import StandInRegistry
from tests.sinks.kafka.support import delivery_of, ids
from tests.support.blocks import make_block, make_table
from tidemill import registry
from tidemill.errors import Poisoned, Refused
from tidemill.lab.servers.kafka import Broker, Mock
from tidemill.model.block import Op
from tidemill.sinks._shared.encoded import encoder

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def schemas() -> Iterator[StandInRegistry]:
    with StandInRegistry().running() as running:
        yield running


@pytest.mark.parametrize("name", registry.names("formats"))
def test_a_message_is_one_event_in_its_format(name: str, kafka: Broker | Mock, topic: str, sinks: Make) -> None:
    block = make_block(20)
    sink = sinks(kafka, topic, format=name)
    sink.write(delivery_of(block))
    found = consume(kafka.bootstrap, topic)
    format: Any = encoder(sink.config)
    wanted = zip(format.encode_key(block).to_pylist(), format.encode(block, "orders-db").to_pylist(), strict=True)
    assert sorted((m.key(), m.value()) for m in found) == sorted(wanted)
    assert sorted(read_one(format, block.table, m.value())["after"]["id"] for m in found) == list(range(20))


@pytest.mark.parametrize("name", ["avro", "protobuf"])
@pytest.mark.parametrize("pattern", ["constant", "by row"])
def test_schemas_are_registered_by_topic_before_the_messages_go_out(
    name: str, pattern: str, kafka: Broker | Mock, topic: str, sinks: Make, schemas: StandInRegistry
) -> None:
    template = topic if pattern == "constant" else f"{topic}-${{after.paid}}"
    block = make_block(26)  # `paid` is whether the id is even
    sinks(kafka, template, format=name, schema_registry={"url": schemas.url}).write(delivery_of(block))
    topics = [topic] if pattern == "constant" else [f"{topic}-{paid}" for paid in ("true", "false")]
    for one in topics:
        (value,), (key,) = schemas.subjects[f"{one}-value"], schemas.subjects[f"{one}-key"]
        messages = consume(kafka.bootstrap, one)
        assert len(messages) == 26 // len(topics)
        assert {struct.unpack(">bI", m.value()[:5]) for m in messages} == {(0, value)}
        assert {struct.unpack(">bI", m.key()[:5]) for m in messages} == {(0, key)}


def test_an_incompatible_schema_stops_before_anything_is_sent(
    kafka: Broker | Mock, topic: str, sinks: Make, schemas: StandInRegistry
) -> None:
    sink = sinks(kafka, topic, format="avro", schema_registry={"url": schemas.url})
    sink.write(delivery_of(make_block(1)))
    schemas.fail_with = 409
    try:
        with pytest.raises(Refused, match="incompatible"):
            sink.write(delivery_of(make_block(5, table=make_table(version=2))))
    finally:
        schemas.fail_with = 0
    assert len(consume(kafka.bootstrap, topic)) == 1


class TestCloudEvents:
    def test_in_binary_mode_attributes_are_headers(self, kafka: Broker | Mock, topic: str, sinks: Make) -> None:
        block = make_block(30, ops=[Op.INSERT, Op.UPDATE, Op.DELETE] * 10)
        sinks(kafka, topic, envelope="cloudevents", format="avro", headers=["op"]).write(delivery_of(block))
        found = {}
        for message in consume(kafka.bootstrap, topic):
            headers = {name: value.decode() for name, value in message.headers()}
            assert headers.pop("content-type") == "application/avro"
            assert f"io.tidemill.{headers.pop('op')}" == headers["ce_type"]
            attributes = {name.removeprefix("ce_"): value for name, value in headers.items()}
            assert all(name.startswith("ce_") for name in headers)
            check(attributes)
            format: Any = encoder(sinks(kafka, topic, format="avro").config)
            assert read_one(format, block.table, message.value())["event_id"] == attributes["id"]
            found[attributes["id"]] = attributes
        assert len(found) == 30

    def test_in_structured_mode_the_content_type_says_so(self, kafka: Broker | Mock, topic: str, sinks: Make) -> None:
        sinks(kafka, topic, envelope="cloudevents", headers=[]).write(delivery_of(make_block(3)))
        for message in consume(kafka.bootstrap, topic):
            assert message.headers() == [("content-type", b"application/cloudevents+json; charset=UTF-8")]
            assert json.loads(message.value())["specversion"] == "1.0"


class TestTombstones:
    def test_follow_each_delete_with_its_key_and_no_value(self, kafka: Broker | Mock, topic: str, sinks: Make) -> None:
        block = make_block(40, ops=[Op.INSERT, Op.DELETE] * 20)
        receipt = sinks(kafka, topic, tombstones=True).write(delivery_of(block))
        assert receipt.events == 40
        messages: dict[int, list[Any]] = {}
        for message in consume(kafka.bootstrap, topic):
            messages.setdefault(json.loads(message.key())["id"], []).append(message.value())
        for number, values in messages.items():
            ops = [json.loads(value)["op"] if value is not None else None for value in values]
            assert ops == (["delete", None] if number % 2 else ["insert"])

    def test_are_not_sent_without_a_key_or_unless_asked_for(
        self, kafka: Broker | Mock, topic: str, sinks: Make
    ) -> None:
        keyless = make_block(4, table=make_table(key=(), identity="full"), ops=Op.DELETE)
        sinks(kafka, topic, tombstones=True).write(delivery_of(keyless))
        sinks(kafka, topic).write(delivery_of(make_block(4, ops=Op.DELETE)))
        assert all(message.value() is not None for message in consume(kafka.bootstrap, topic))

    def test_empty_a_compacted_topics_keys_in_every_format(self, kafka: Broker | Mock, topic: str, sinks: Make) -> None:
        for name in ("avro", "protobuf"):
            sink = sinks(kafka, f"{topic}-{name}", format=name, tombstones=True)
            sink.write(delivery_of(make_block(10)))
            sink.write(delivery_of(make_block(10, ops=Op.DELETE, offsets=range(10, 20)), start=10))
            last = {m.key(): m.value() for m in consume(kafka.bootstrap, f"{topic}-{name}")}
            assert list(last.values()) == [None] * 10


class TestTooLarge:
    def test_events_beyond_the_clients_limit_are_named_and_the_rest_can_go_without_them(
        self, kafka: Broker | Mock, topic: str, sinks: Make
    ) -> None:
        block = _with_large(30, {3, 17}, 5000)
        sink = sinks(kafka, topic, client_conf={"message.max.bytes": "2000"})
        delivery = delivery_of(block)
        with pytest.raises(Poisoned) as raised:
            sink.write(delivery)
        assert set(raised.value.reasons) == {3, 17}
        assert "the limit is 2000" in raised.value.reasons[3]
        assert "xxx" not in str(raised.value)
        sink.write(delivery.without(raised.value.reasons))
        counted = Counter(ids(consume(kafka.bootstrap, topic)))
        assert set(counted) == set(range(30)) - {3, 17}

    @pytest.mark.parametrize("exactly_once", [False, True])
    def test_events_beyond_the_topics_limit_are_named_although_the_broker_refuses_a_whole_batch(
        self, private_kafka: Broker, topic: str, sinks: Make, exactly_once: bool
    ) -> None:
        admin = AdminClient({"bootstrap.servers": private_kafka.bootstrap})
        new = NewTopic(topic, 1, 1, config={"max.message.bytes": "3000"})
        admin.create_topics([new])[topic].result(30)
        if exactly_once:
            create_positions(private_kafka)
        options = {"compression": "none", "client_conf": {"batch.size": "2500"}, "exactly_once": exactly_once}
        delivery = delivery_of(_with_large(30, {5}, 4000), pipeline=f"p{exactly_once}")
        with pytest.raises(Poisoned) as raised:
            sinks(private_kafka, topic, **options).write(delivery)
        assert set(raised.value.reasons) == {5}
        assert "the limit is 3000" in raised.value.reasons[5]
        sinks(private_kafka, topic, **options).write(delivery.without({5}))
        assert set(ids(consume(private_kafka.bootstrap, topic))) == set(range(30)) - {5}


def test_a_row_that_cannot_be_routed_is_named(kafka: Broker | Mock, topic: str, sinks: Make) -> None:
    with pytest.raises(Poisoned) as raised:
        sinks(kafka, f"{topic}-${{after.note}}").write(delivery_of(make_block(7)))
    assert set(raised.value.reasons) == {0, 3, 6}  # `note` is NULL there


def test_doctor_asks_the_schema_registry_too(
    kafka: Broker | Mock, topic: str, sinks: Make, schemas: StandInRegistry
) -> None:
    checks = {c.name: c for c in sinks(kafka, topic, format="avro", schema_registry={"url": schemas.url}).doctor()}
    assert "compatibility BACKWARD" in checks["schema registry"].detail


def create_positions(broker: Broker) -> None:
    """This broker does not create topics by itself."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    if "tidemill-positions" not in admin.list_topics(timeout=20).topics:
        create_topic(broker.bootstrap, "tidemill-positions")


def _with_large(rows: int, large: set[int], size: int) -> Any:
    """Inserts, some of them with a customer of so many letters."""
    block = make_block(rows)
    after = block.batch.column("after")
    texts = ["x" * size if row in large else "small" for row in range(rows)]
    children = [pa.array(texts) if f.name == "customer" else after.field(i) for i, f in enumerate(after.type)]
    at = block.batch.schema.get_field_index("after")
    image = pa.StructArray.from_arrays(children, fields=list(after.type))
    return dataclasses.replace(block, batch=block.batch.set_column(at, "after", image))
