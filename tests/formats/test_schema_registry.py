"""Schema-registry framing, against a stand-in that speaks Confluent's API and checks compatibility."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.formats.samples import block_of
from tests.formats.test_avro import table_of
from tests.servers.schema_registry_standin import StandInRegistry, basic
from tests.support.blocks import make_block, make_table
from tidemill.contracts import Outcome
from tidemill.errors import DeliveryError, Refused, is_retryable
from tidemill.lab.protofile import load_messages
from tidemill.lab.servers import tls
from tidemill.model.block import Block, Op
from tidemill.sinks._shared.encoded import EncodedSinkConfig, check_registry, encoder

SOURCE = "orders-db"


@pytest.fixture
def registry() -> Iterator[StandInRegistry]:
    with StandInRegistry().running() as running:
        yield running


def make(registry: StandInRegistry | str, format: str = "avro", **options: Any) -> Any:
    url = registry if isinstance(registry, str) else registry.url
    fields = {"id": "s", "format": format, "schema_registry": {"url": url, **options}}
    return encoder(EncodedSinkConfig.model_validate(fields))


def number_of(document: bytes) -> int:
    magic, number = struct.unpack_from(">bI", document)
    assert magic == 0
    return int(number)


def test_an_avro_event_begins_with_the_number_of_its_schema(registry: StandInRegistry) -> None:
    format = make(registry).to("orders")
    documents, keys = (a.to_pylist() for a in (format.encode(make_block(3), SOURCE), format.encode_key(make_block(3))))
    assert {name: len(versions) for name, versions in registry.subjects.items()} == {"orders-value": 1, "orders-key": 1}
    for part, offset in ((documents, "id"), (keys, None)):
        for row, document in enumerate(part):
            schema = fastavro.parse_schema(json.loads(registry.schema(number_of(document))))
            read: Any = fastavro.schemaless_reader(io.BytesIO(document[5:]), schema, None)
            assert (read["after"]["id"] if offset else read["id"]) == row


def test_a_protobuf_event_also_says_that_it_is_the_first_message_of_its_file(registry: StandInRegistry) -> None:
    format = make(registry, "protobuf").to("orders")
    for row, document in enumerate(format.encode(make_block(3), SOURCE).to_pylist()):
        kind, text = registry.schemas[number_of(document) - 1]
        assert (kind, document[5]) == ("PROTOBUF", 0)
        event = load_messages(text)["shop.public.orders.Event"].FromString(document[6:])
        assert event.after.id == row


def test_a_schema_is_registered_once_per_worker_and_subject(registry: StandInRegistry) -> None:
    format = make(registry)
    for _ in range(3):
        for topic in ("a", "b"):
            format.to(topic).encode(make_block(3), SOURCE)
    assert registry.requests == 2
    assert registry.subjects == {"a-value": [1], "b-value": [1]}


@pytest.mark.parametrize(
    ("naming", "subjects"),
    [
        ("topic", ["t-value", "t-key"]),
        ("record", ["shop.public.orders.Event", "shop.public.orders.Key"]),
        ("topic_record", ["t-shop.public.orders.Event", "t-shop.public.orders.Key"]),
    ],
)
def test_subjects_are_named_by_the_strategy(registry: StandInRegistry, naming: str, subjects: list[str]) -> None:
    format = make(registry, naming=naming).to("t")
    format.encode(make_block(1), SOURCE)
    format.encode_key(make_block(1))
    assert list(registry.subjects) == subjects


@pytest.mark.parametrize("format", ["avro", "protobuf"])
def test_columns_that_come_and_go_are_compatible_versions_of_one_subject(
    registry: StandInRegistry, format: str
) -> None:
    encode = make(registry, format).to("t").encode
    for version in (1, 2, 1):
        encode(make_block(2, table=make_table(version=version)), SOURCE)
    assert registry.subjects == {"t-value": [1, 2]}
    grown = [_one(pa.int32()), _one(pa.int64())]
    for block in grown:
        make(registry, format).to("g").encode(block, SOURCE)
    assert len(registry.subjects["g-value"]) == 2


def test_an_incompatible_version_is_refused_for_good(registry: StandInRegistry) -> None:
    make(registry).to("t").encode(_one(pa.string()), SOURCE)
    with pytest.raises(Refused, match="incompatible") as raised:
        make(registry).to("t").encode(_one(pa.bool_()), SOURCE)
    assert not is_retryable(raised.value)
    assert "compatibility" in raised.value.fix
    assert 'subject "t-value"' in raised.value.where


def test_in_protobuf_another_kind_is_another_field_and_stays_compatible(registry: StandInRegistry) -> None:
    for kind in (pa.string(), pa.bool_()):
        make(registry, "protobuf").to("t").encode(_one(kind), SOURCE)
    assert registry.subjects == {"t-value": [1, 2]}


def test_a_registry_that_cannot_be_reached_or_fails_is_tried_again(registry: StandInRegistry) -> None:
    with pytest.raises(DeliveryError, match="cannot be reached") as raised:
        make("http://127.0.0.1:9", timeout_seconds=2).encode(make_block(1), SOURCE)
    assert is_retryable(raised.value)
    assert raised.value.fix
    format = make(registry).to("t")
    registry.fail_with = 500
    with pytest.raises(DeliveryError, match="failed \\(500\\): told to fail") as raised:
        format.encode(make_block(1), SOURCE)
    assert is_retryable(raised.value)
    registry.fail_with = 0
    assert number_of(format.encode(make_block(1), SOURCE)[0].as_py()) == 1


@pytest.mark.parametrize("status", [404, 422])
def test_what_no_retry_mends_is_refused(registry: StandInRegistry, status: int) -> None:
    registry.fail_with = status
    with pytest.raises(Refused):
        make(registry).encode(make_block(1), SOURCE)


@pytest.mark.parametrize(
    ("login", "options"),
    [
        (basic("ann", "pässword"), {"username": "ann", "password": "pässword"}),
        ("Bearer t0ken", {"token": "t0ken"}),
    ],
)
def test_it_logs_in_with_a_password_or_a_token(login: str, options: dict[str, str]) -> None:
    with StandInRegistry(login=login).running() as registry:
        make(registry, **options).encode(make_block(1), SOURCE)
        with pytest.raises(Refused, match="does not let us in") as raised:
            make(registry, token="wrong").encode(make_block(1), SOURCE)
        assert "wrong" not in str(raised.value)


def test_it_trusts_the_certificates_it_is_told_to(tmp_path: Path) -> None:
    made = tls.make(tmp_path)
    with StandInRegistry(tls=(str(made.certificate), str(made.key))).running() as registry:
        make(registry, tls={"ca_file": str(made.ca)}).encode(make_block(1), SOURCE)
        assert list(registry.subjects) == ["shop.public.orders.Event-value"]
        with pytest.raises(DeliveryError, match="cannot be reached"):
            make(registry).encode(make_block(1), SOURCE)


def test_doctor_says_whether_it_answers_and_what_it_takes_for_compatible(registry: StandInRegistry) -> None:
    config = {"id": "s", "format": "avro", "schema_registry": {"url": registry.url}}
    (check,) = check_registry(EncodedSinkConfig.model_validate(config))
    assert (check.outcome, check.detail) == (Outcome.PASS, f"{registry.url}, compatibility BACKWARD")
    registry.fail_with = 503
    (check,) = check_registry(EncodedSinkConfig.model_validate(config))
    assert check.outcome is Outcome.FAIL
    assert check.fix
    assert list(check_registry(EncodedSinkConfig(id="s"))) == []


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"format": "json", "schema_registry": {"url": "http://r"}}, "schema_registry is for avro and protobuf"),
        ({"format": "avro", "schema_registry": {"url": "http://a:b@r"}}, "holds credentials"),
        ({"format": "avro", "schema_registry": {"url": "http://r", "username": "a"}}, "belong together"),
        (
            {"format": "avro", "schema_registry": {"url": "http://r", "username": "a", "password": "b", "token": "c"}},
            "two ways to log in",
        ),
        ({"format": "avro", "envelope": "debezium", "envelope_schema": True}, "envelope_schema is for Debezium"),
        ({"cloudevents_mode": "binary"}, "cloudevents_mode is for envelope"),
        (
            {"format": "avro", "envelope": "cloudevents", "cloudevents_mode": "structured"},
            "structured mode is for JSON",
        ),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ValueError, match=what):
        EncodedSinkConfig.model_validate({"id": "s", **options})


def _one(kind: pa.DataType) -> Block:
    table = table_of(id=pa.int64(), v=kind)
    arrays = [pa.array([1], pa.int64()), pa.array([None], kind)]
    return block_of(table, [Op.INSERT], after=pa.StructArray.from_arrays(arrays, fields=list(table.arrow_struct())))
