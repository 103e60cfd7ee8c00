"""CloudEvents 1.0: attributes by the specification's own rules, in the document and beside it."""

from __future__ import annotations

import json
import re
import urllib.parse
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.blocks import make_block, make_table
from tidemill import registry
from tidemill.formats.avro import AvroFormat
from tidemill.formats.json import JsonFormat
from tidemill.model.block import COMMIT_TIME, Block, Op
from tidemill.model.position import Position

SOURCE = "orders db/ü"
# RFC 3339, section 5.6.
_TIME = re.compile(r"\d{4}-(0\d|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]\d\d:\d\d)")
# RFC 3986: what may stand in a URI reference.
_URI = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_MIME = re.compile(r"[a-z]+/[A-Za-z0-9.+-]+(; ?[a-z]+=[A-Za-z0-9-]+)?")


def check(attributes: dict[str, Any]) -> None:
    """Section "Context Attributes" of the specification, version 1.0.2."""
    assert all(re.fullmatch(r"[a-z0-9]{1,20}", name) for name in attributes)
    for required in ("id", "source", "specversion", "type"):
        assert isinstance(attributes[required], str)
        assert attributes[required]
    assert attributes["specversion"] == "1.0"
    assert _URI.fullmatch(attributes["source"])
    assert attributes["type"].startswith("io.tidemill.")  # a reverse-DNS name, as recommended
    if "time" in attributes:
        assert _TIME.fullmatch(attributes["time"])
    if "dataschema" in attributes:
        assert urllib.parse.urlsplit(attributes["dataschema"]).scheme  # an absolute URI
        assert _URI.fullmatch(attributes["dataschema"])
    if "subject" in attributes:
        assert attributes["subject"]
    if "datacontenttype" in attributes:
        assert _MIME.fullmatch(attributes["datacontenttype"])


def rows_of(format: Any, block: Block) -> list[dict[str, str]]:
    """The attributes that each row has."""
    columns = {
        name: [value] * block.rows if isinstance(value, str) else value.to_pylist()
        for name, value in format.attributes(block, SOURCE).items()
    }
    return [
        {name: values[row] for name, values in columns.items() if values[row] is not None} for row in range(block.rows)
    ]


def every_op() -> Block:
    return make_block(len(Op), ops=list(Op))


def test_a_structured_event_has_valid_attributes_and_our_own_event_as_its_data() -> None:
    format, block = JsonFormat("cloudevents"), every_op()
    assert format.content_type == "application/cloudevents+json"
    native = [json.loads(d.as_py()) for d in JsonFormat().encode(block, SOURCE)]
    for document, event in zip(format.encode(block, SOURCE), native, strict=True):
        read = json.loads(document.as_py())
        assert read.pop("data") == event
        check(read)
        assert (read["id"], read["subject"]) == (event["event_id"], "public.orders")
        assert (read["type"], read["time"]) == (f"io.tidemill.{event['op']}", event["timestamp"])
        assert read["dataschema"] == f"urn:tidemill:schema:{event['schema_version']}"
        assert read["datacontenttype"] == "application/json"


@pytest.mark.parametrize("name", registry.names("formats"))
def test_in_binary_mode_the_attributes_stand_beside_the_plain_event(name: str) -> None:
    kind, block = registry.load("formats", name), every_op()
    format = kind("cloudevents", mode="binary")
    rows = rows_of(format, block)
    for row in rows:
        check(row)
        assert row["datacontenttype"] == kind().content_type
    assert len({row["id"] for row in rows}) == block.rows
    assert format.encode(block, SOURCE).equals(kind("native").encode(block, SOURCE))


def test_both_modes_say_the_same() -> None:
    block = every_op()
    structured = [json.loads(d.as_py()) for d in JsonFormat("cloudevents").encode(block, SOURCE)]
    for document in structured:
        del document["data"]
    assert structured == rows_of(JsonFormat("cloudevents", mode="binary"), block)


def test_source_and_id_together_name_an_event_and_a_replay_gives_them_again() -> None:
    first, again = (rows_of(AvroFormat("cloudevents"), every_op()) for _ in range(2))
    assert first == again
    assert first[0]["source"] == "/tidemill/orders%20db%2F%C3%BC/shop"


def test_a_commit_time_that_rfc_3339_does_not_know_is_left_out() -> None:
    times = [0, None, 253_402_300_800_000_000, -62_167_219_200_000_001, 253_402_300_799_999_999]
    block = make_block(5, positions=[Position(f"0/{n}") for n in range(5)])
    at = block.batch.schema.get_field_index("commit_time")
    moments = pa.array(times, pa.int64()).cast(COMMIT_TIME)
    block = replace(block, batch=block.batch.set_column(at, "commit_time", moments))
    rows = rows_of(JsonFormat("cloudevents", mode="binary"), block)
    assert [row.get("time") for row in rows] == [
        "1970-01-01T00:00:00.000000Z", None, None, None, "9999-12-31T23:59:59.999999Z",
    ]  # fmt: skip
    for document in JsonFormat("cloudevents").encode(block, SOURCE):
        check({name: value for name, value in json.loads(document.as_py()).items() if name != "data"})


def test_a_table_whose_name_is_no_uri_still_has_valid_attributes() -> None:
    for row in rows_of(AvroFormat("cloudevents"), make_block(1, table=make_table("a b/ü"))):
        check(row)
        assert row["subject"] == "public.a b/ü"
