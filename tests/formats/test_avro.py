"""Avro: schemas, their evolution, the framing of single events and container files, judged by fastavro."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.formats.samples import block_of, odd_block
from tests.support.blocks import make_block, make_rows, make_table
from tidemill.formats.avro import AvroFormat
from tidemill.model.block import Block, Op
from tidemill.model.table import Column, Table
from tidemill.model.types import DataType, JsonForm

SOURCE = "orders-db"


def schema_of(table: Table, envelope: str = "native") -> Any:
    return json.loads(AvroFormat(envelope).schema(table, SOURCE).text)


def table_of(**types: pa.DataType) -> Table:
    columns = tuple(Column(name, DataType("x", kind, JsonForm.STRING)) for name, kind in types.items())
    return Table("shop", "public", "things", columns, (next(iter(types)),), version=1).with_fingerprint()


def field(schema: Any, name: str) -> Any:
    return next(f for f in schema["fields"] if f["name"] == name)


def test_an_event_is_these_bytes() -> None:
    table = table_of(id=pa.int32())
    row = pa.StructArray.from_arrays([pa.array([-3], pa.int32())], fields=list(table.arrow_struct()))
    block = block_of(table, [Op.INSERT], after=row)
    (document,) = AvroFormat().encode(block, "s").to_pylist()

    def text(value: str) -> bytes:
        return bytes([2 * len(value)]) + value.encode()

    wanted = [
        text("s:0/1:0"), text("s"), text("shop"), text("public"), text("things"), text("insert"),
        b"\x02\xf8\x0a",  # tx_id: there, 700
        b"\x02" + text("0/1"), b"\x00", b"\xc8\x01",  # position; ordinal 0; offset 100
        b"\x02\x80\x80\x82\xe2\x88\xd2\xa3\x06",  # microseconds of the commit
        b"\x80\x01" + table.fingerprint.encode(), b"\x00",  # schema_version with its 64 letters, schema_sequence 0
    ]  # fmt: skip
    wanted += [b"\x00", b"\x00", b"\x00", b"\x02\x02\x05", b"\x00", b"\x00"]  # ddl, key, before, after -3, the rest
    assert document[10:] == b"".join(wanted)


def test_names_come_from_the_table_and_not_from_its_version() -> None:
    one, two = schema_of(make_table()), schema_of(make_table(version=2))
    assert one["name"] == two["name"] == "shop.public.orders.Event"
    assert field(one, "before")["type"][1]["name"] == "shop.public.orders.Row"
    assert field(one, "after")["type"] == ["null", "shop.public.orders.Row"]
    assert schema_of(make_table(), "debezium")["name"] == "orders_u002ddb.public.orders.Envelope"


def test_names_that_avro_does_not_take_are_spelled_out_and_kept() -> None:
    fields = {"größe": pa.int32(), "a b": pa.string(), "a_u0020b": pa.string(), "1st": pa.bool_(), "odd": pa.int8()}
    table = table_of(**fields)
    row = field(schema_of(table), "before")["type"][1]
    assert [f["name"] for f in row["fields"]] == ["gr_u00f6_u00dfe", "a_u0020b", "a_u0020b_2", "_1st", "odd"]
    assert [f.get("tidemill.name", f["name"]) for f in row["fields"]] == list(fields)
    fastavro.parse_schema(schema_of(table))


def test_logical_types_say_what_numbers_and_bytes_mean() -> None:
    table = table_of(
        id=pa.uint64(), price=pa.decimal256(65, 30), day=pa.date32(), at=pa.time64("us"), local=pa.timestamp("us"),
        moment=pa.timestamp("us", tz="UTC"), tags=pa.list_(pa.string()),
    )  # fmt: skip
    row = field(schema_of(table), "before")["type"][1]
    assert [f["type"] for f in row["fields"]] == [
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}],
        ["null", {"type": "bytes", "logicalType": "decimal", "precision": 65, "scale": 30}],
        ["null", {"type": "int", "logicalType": "date"}],
        ["null", {"type": "long", "logicalType": "time-micros"}],
        ["null", {"type": "long", "logicalType": "local-timestamp-micros"}],
        ["null", {"type": "long", "logicalType": "timestamp-micros"}],
        ["null", {"type": "array", "items": ["null", "string"]}],
    ]
    assert all(f["default"] is None for f in row["fields"])


def test_a_single_event_carries_the_fingerprint_that_fastavro_computes() -> None:
    for table in (make_table(), make_table(key=()), odd_block().table):
        for envelope in ("native", "debezium"):
            schema = AvroFormat(envelope).schema(table, SOURCE)
            canonical = fastavro.schema.to_parsing_canonical_form(json.loads(schema.text))
            wanted = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
            assert schema.fingerprint.hex() == bytes.fromhex(wanted).hex()


@pytest.mark.parametrize(("written", "read"), [(1, 2), (2, 1)], ids=["newer reader", "older reader"])
def test_versions_of_a_table_read_each_others_events(written: int, read: int) -> None:
    block = make_block(3, table=make_table(version=written))
    documents = AvroFormat().encode(block, SOURCE).to_pylist()
    writer, reader = (fastavro.parse_schema(schema_of(make_table(version=v))) for v in (written, read))
    for number, document in enumerate(documents):
        row = fastavro.schemaless_reader(io.BytesIO(document[10:]), writer, reader)
        assert row["after"]["id"] == number
        assert ("added_in_2" in row["after"]) == (read == 2)


def test_a_column_that_grew_from_int_to_long_is_read_by_the_new_schema() -> None:
    small, large = table_of(id=pa.int32()), table_of(id=pa.int64())
    image = pa.StructArray.from_arrays([pa.array([7], pa.int32())], fields=list(small.arrow_struct()))
    (document,) = AvroFormat().encode(block_of(small, [Op.INSERT], after=image), SOURCE).to_pylist()
    schemas = [fastavro.parse_schema(schema_of(table)) for table in (small, large)]
    assert fastavro.schemaless_reader(io.BytesIO(document[10:]), *schemas)["after"] == {"id": 7}


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_a_container_file_has_its_schema_its_codec_and_a_marker_made_of_its_content(compression: str) -> None:
    def written(block: Block) -> bytes:
        stream = pa.BufferOutputStream()
        writer = AvroFormat().open(stream, block.table, SOURCE, compression)
        writer.write(block)
        writer.close()
        return bytes(stream.getvalue())

    first = written(make_block(50))
    assert first == written(make_block(50))
    head = len(first.split(b"avro.codec")[0])
    other = written(make_block(50, first_id=1))
    assert first[:head] == other[:head]
    assert first[-16:] != other[-16:]
    assert first.count(first[-16:]) == 2
    codec = {"none": "null", "gzip": "deflate", "zstd": "zstandard"}[compression]
    assert f"avro.codec{chr(2 * len(codec))}{codec}".encode() in first
    if compression != "zstd":  # fastavro has no zstandard without another package; see the next test
        assert len(list(fastavro.reader(io.BytesIO(first)))) == 50


def test_a_zstandard_block_is_the_plain_block_compressed() -> None:
    def block_data(compression: str) -> bytes:
        stream = pa.BufferOutputStream()
        writer = AvroFormat().open(stream, make_table(), SOURCE, compression)
        writer.write(make_block(50))
        writer.close()
        data = bytes(stream.getvalue())
        marker = data[-16:]
        return data.split(marker)[1]

    packed = block_data("zstd")
    at = packed.index(b"\x28\xb5\x2f\xfd")  # zstandard's magic number
    plain = pa.CompressedInputStream(pa.BufferReader(packed[at:]), "zstd").read()
    assert block_data("none").endswith(plain)


def test_a_key_is_a_record_of_the_key_columns() -> None:
    table = make_table(key=("customer", "id"))
    block = Block(table, make_block(2, table=table).batch)
    keys = AvroFormat().encode_key(block).to_pylist()
    parsed = fastavro.parse_schema(
        {
            "type": "record",
            "name": "Key",
            "fields": [
                {"name": "customer", "type": ["null", "string"]},
                {"name": "id", "type": ["null", "long"]},
            ],
        }
    )
    read = [fastavro.schemaless_reader(io.BytesIO(key[10:]), parsed, None) for key in keys]
    names = make_rows(table, [0, 1]).field(1).to_pylist()
    assert read == [{"customer": names[0], "id": 0}, {"customer": names[1], "id": 1}]
