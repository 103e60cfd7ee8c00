"""Protobuf: the .proto file, field numbers that stay, single and delimited messages, judged by google.protobuf."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tests.formats.readers import proto_row
from tests.formats.samples import TYPES, block_of, odd_block, typed_block
from tests.formats.test_avro import table_of
from tests.support.blocks import make_block, make_table
from tidemill.formats.protobuf import ProtobufFormat
from tidemill.formats.protobuf import schema as protobuf_schema
from tidemill.formats.protobuf.schema import column_numbers, field_number
from tidemill.lab.protofile import first_message, load_messages
from tidemill.model.block import Op
from tidemill.model.table import Table

SOURCE = "orders-db"


def messages(table: Table, envelope: str = "native") -> dict[str, Any]:
    return load_messages(ProtobufFormat(envelope).schema(table, SOURCE).text)


def numbers(table: Table) -> dict[str, int]:
    return dict(ProtobufFormat().schema(table, SOURCE).numbers)


def test_an_event_is_these_bytes() -> None:
    table = table_of(id=pa.int32())
    image = pa.StructArray.from_arrays([pa.array([-3], pa.int32())], fields=list(table.arrow_struct()))
    (document,) = ProtobufFormat().encode(block_of(table, [Op.INSERT], after=image), "s").to_pylist()

    def text(number: int, value: str) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value.encode()

    assert numbers(table) == {"id": 16074799}
    row = b"\xf8\x82\xa9\x3d\x05"  # 16074799 << 3, zigzag of -3
    assert document == b"".join(
        [
            text(1, "s:0/1:0"), text(2, "s"), text(3, "shop"), text(4, "public"), text(5, "things"),
            text(6, "insert"), b"\x38\xbc\x05", text(8, "0/1"), b"\x48\x00", b"\x50\x64",
            b"\x58\x80\x80\x82\xe2\x88\xd2\xa3\x06", text(12, table.fingerprint), b"\x68\x00",
            b"\x8a\x01" + bytes([len(row)]) + row,
        ]
    )  # fmt: skip


def test_a_columns_number_does_not_depend_on_the_columns_around_it() -> None:
    all_columns = {"id": pa.int64(), "note": pa.string(), "price": pa.decimal128(12, 2)}
    whole = numbers(table_of(**all_columns))
    for left_out in all_columns:
        rest = {name: kind for name, kind in all_columns.items() if name != left_out}
        assert numbers(table_of(**rest)) == {name: whole[name] for name in rest}
    assert numbers(table_of(**dict(reversed(all_columns.items())))) == whole


def test_a_column_keeps_its_number_within_its_kind_and_gets_another_with_another_kind() -> None:
    same = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
    assert len({numbers(table_of(v=kind))["v"] for kind in same}) == 1
    assert len({numbers(table_of(v=kind))["v"] for kind in (pa.decimal128(5, 2), pa.decimal256(60, 2))}) == 1
    different = [pa.int64(), pa.uint64(), pa.string(), pa.binary(), pa.float32(), pa.float64(), pa.bool_(),
                 pa.decimal128(5, 2), pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", tz="UTC"),
                 pa.list_(pa.int64()), pa.list_(pa.string())]  # fmt: skip
    assert len({numbers(table_of(v=kind))["v"] for kind in different}) == len(different)


def test_of_two_columns_that_want_one_number_the_first_has_it() -> None:
    wanted = field_number("id", "integer")
    assert field_number("id", "integer", [wanted]) == wanted + 1
    assert field_number("id", "integer", [wanted, wanted + 1]) == wanted + 2
    many = column_numbers([pa.field(f"c{i}", pa.int32()) for i in range(5000)])
    assert len(set(many.values())) == 5000
    assert all(1 << 16 <= number < 1 << 25 for number in many.values())


def test_numbers_of_the_envelope_are_never_given_twice() -> None:
    for table in (protobuf_schema.NATIVE, protobuf_schema.DEBEZIUM, protobuf_schema.SOURCE):
        assert sorted(table.values()) == list(range(1, len(table) + 1))


def test_the_event_is_the_first_message_of_the_file_and_the_file_compiles() -> None:
    for envelope, name in (("native", "Event"), ("debezium", "Envelope")):
        for table in (make_table(), make_table(key=()), odd_block().table, typed_block().table):
            text = ProtobufFormat(envelope).schema(table, SOURCE).text
            assert first_message(text) == name
            load_messages(text)


def test_columns_keep_their_names_in_json_and_are_spelled_out_where_protobuf_does_not_take_them() -> None:
    row = messages(typed_block().table)["shop.public.all_u0020types.Row"].DESCRIPTOR
    assert [f.json_name for f in row.fields] == list(TYPES)
    assert {"gr_u00f6_u00dfe", "_1st", "a_u0020bool"} <= set(row.fields_by_name)


def test_versions_of_a_table_read_each_others_events() -> None:
    for written, read in ((1, 2), (2, 1)):
        block = make_block(3, table=make_table(version=written))
        reader = messages(make_table(version=read))["shop.public.orders.Event"]
        for number, document in enumerate(ProtobufFormat().encode(block, SOURCE).to_pylist()):
            event = reader.FromString(document)
            assert (event.after.id, event.op) == (number, "insert")


def test_null_and_empty_lists_and_null_elements_are_told_apart() -> None:
    table = table_of(id=pa.int32(), tags=pa.list_(pa.string()))
    tags = pa.array([None, [], [None], [""]], pa.list_(pa.string()))
    image = pa.StructArray.from_arrays([pa.array([1] * 4, pa.int32()), tags], fields=list(table.arrow_struct()))
    block = block_of(table, [Op.INSERT] * 4, after=image)
    reader = messages(table)["shop.public.things.Event"]
    rows = [proto_row(reader.FromString(document)) for document in ProtobufFormat().encode(block, SOURCE).to_pylist()]
    assert [row["after"]["tags"] for row in rows] == [None, [], [None], [""]]


def test_a_key_is_a_message_with_the_rows_numbers() -> None:
    table = make_table(key=("customer", "id"))
    schema = protobuf_schema.key(table)
    reader = load_messages(schema.text)["shop.public.orders.key.Key"]
    keys = [
        proto_row(reader.FromString(k)) for k in ProtobufFormat().encode_key(make_block(2, table=table)).to_pylist()
    ]
    assert keys == [{"customer": f"customer {i} — Zürich", "id": i} for i in range(2)]
    assert dict(schema.numbers) == {name: numbers(table)[name] for name in ("customer", "id")}
