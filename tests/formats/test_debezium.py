"""Debezium's envelope, field by field: in JSON with and without its schema, and in the typed formats."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pyarrow as pa
import pytest

from tests.formats.readers import SOURCE, read_one, shown
from tests.formats.samples import TYPES, block_of, odd_block, typed_block
from tests.formats.test_conformance import TYPED, make
from tests.support.blocks import EPOCH_US, make_block, make_table
from tests.support.changes import changes, column, structure
from tidemill import __version__
from tidemill.decoders.pgoutput.rows import MESSAGES
from tidemill.formats._shared.base import Envelope
from tidemill.formats.avro import schema as avro_schema
from tidemill.formats.json import JsonFormat
from tidemill.formats.protobuf import schema as protobuf_schema
from tidemill.model.block import DDL, UNCHANGED, Block, Op, Side
from tidemill.model.table import Column
from tidemill.model.types import DataType, JsonForm

_FIELDS = ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
# In the order of Debezium 3.5.
_POSTGRESQL = ["version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "schema",
               "table", "txId", "lsn", "xmin", "origin", "origin_lsn"]  # fmt: skip
_MYSQL = ["version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "ts_us", "ts_ns", "table", "server_id",
          "gtid", "file", "pos", "row", "thread", "query"]  # fmt: skip


def number(name: str, native: str, arrow: pa.DataType, *, nullable: bool = True) -> Column:
    return Column(name, DataType(native, arrow, JsonForm.NUMBER), nullable=nullable)


ID = number("id", "bigint", pa.int64(), nullable=False)


def documents(block: Block, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(d.as_py()) for d in JsonFormat("debezium", **options).encode(block, SOURCE)]


def test_an_event_has_debeziums_fields_and_no_others() -> None:
    ops = [Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE, Op.READ]
    rows = documents(make_block(5, ops=ops, table=make_table(identity="full"), positions="16/B374D848"))
    assert [list(row) for row in rows] == [_FIELDS] * 5
    assert [list(row["source"]) for row in rows] == [_POSTGRESQL] * 5
    assert [row["op"] for row in rows] == ["c", "u", "d", "t", "r"]
    assert [row["source"]["snapshot"] for row in rows] == ["false"] * 4 + ["true"]
    assert [row["before"] is None for row in rows] == [True, False, False, True, True]
    source = rows[1]["source"]
    lsn = (0x16 << 32) + 0xB374D848
    assert (source["version"], source["connector"], source["name"]) == (__version__, "postgresql", SOURCE)
    assert (source["lsn"], source["sequence"], source["txId"]) == (lsn, f'["{lsn}","1"]', 700)
    assert rows[1]["ts_us"] == source["ts_us"] == EPOCH_US + 700
    assert rows[1]["ts_ms"] == (EPOCH_US + 700) // 1000


@pytest.mark.parametrize(
    ("position", "connector", "place"),
    [
        ("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-77", "mysql", {"file": None, "pos": None}),
        ("binlog.000003:1547@3e11fa47", "mysql", {"file": "binlog.000003", "pos": 1547}),
        ("0-1-270", "mariadb", {"file": None, "pos": None}),
    ],
)
def test_positions_of_a_binlog_make_the_fields_of_the_mysql_connectors(
    position: str, connector: str, place: dict[str, Any]
) -> None:
    for row in documents(make_block(2, positions=position)):
        source = row["source"]
        assert list(source) == _MYSQL
        assert source["connector"] == connector
        assert {name: source[name] for name in place} == place
        assert source["gtid"] == (None if place["pos"] else position)


def test_with_its_schema_an_event_is_described_field_by_field() -> None:
    block = typed_block()
    for document in documents(block, envelope_schema=True):
        assert list(document) == ["schema", "payload"]
        _conforms(document["payload"], document["schema"])
    schema = documents(block, envelope_schema=True)[0]["schema"]
    assert schema["name"] == "orders-db.public.all_types.Envelope"
    fields = {f["field"]: f for f in schema["fields"]}
    assert fields["before"]["name"] == fields["after"]["name"] == "orders-db.public.all_types.Value"
    assert [f["field"] for f in fields["source"]["fields"]] == _POSTGRESQL
    columns = {f["field"]: f for f in fields["after"]["fields"]}
    assert columns["timestamptz"]["name"] == "io.debezium.time.ZonedTimestamp"
    assert columns["json"]["name"] == "io.debezium.data.Json"
    assert list(columns) == list(TYPES)


def test_a_key_with_its_schema() -> None:
    block = make_block(1, first_id=7)
    (key,) = JsonFormat("debezium", envelope_schema=True).encode_key(block, SOURCE).to_pylist()
    document = json.loads(key)
    assert document["payload"] == {"id": 7}
    _conforms(document["payload"], document["schema"])
    (event,) = documents(block, envelope_schema=True)
    assert document["schema"]["name"] == "orders-db.public.orders.Key"
    assert event["schema"]["name"] == "orders-db.public.orders.Envelope"


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_a_typed_key_has_the_name_of_its_event(name: str) -> None:
    schemas = {"avro": avro_schema, "protobuf": protobuf_schema}[name]
    table = make_table()
    key, event = schemas.key(table, SOURCE, Envelope.DEBEZIUM), schemas.event(table, SOURCE, Envelope.DEBEZIUM)
    assert key.name.split(".")[:3] == event.name.split(".")[:3] == ["orders_u002ddb", "public", "orders"]
    assert schemas.key(table).name.startswith("shop.public.orders.")


def test_a_mysql_event_conforms_to_its_schema_too() -> None:
    for document in documents(make_block(2, positions="binlog.000003:1547"), envelope_schema=True):
        _conforms(document["payload"], document["schema"])
        (source,) = (f for f in document["schema"]["fields"] if f["field"] == "source")
        assert [f["field"] for f in source["fields"]] == _MYSQL


def test_unsigned_numbers_beyond_int64_are_exact_in_the_schema_and_in_the_payload() -> None:
    numbers = [number(name, "bigint unsigned", pa.uint64(), nullable=False) for name in ("id", "n")]
    block = changes(structure("t", *numbers), (Op.INSERT, None, {"id": 2**64 - 1, "n": 2**63}))
    (document,) = documents(block, envelope_schema=True)
    (key,) = JsonFormat("debezium", envelope_schema=True).encode_key(block, SOURCE).to_pylist()
    for part, payload in ((document, document["payload"]["after"]), (json.loads(key), json.loads(key)["payload"])):
        _conforms(part["payload"], part["schema"])
        assert payload["id"] == 2**64 - 1
    (after,) = (f for f in document["schema"]["fields"] if f["field"] == "after")
    assert after["fields"][1]["name"] == "org.apache.kafka.connect.data.Decimal"


@pytest.mark.parametrize("envelope_schema", [False, True])
def test_an_old_row_of_which_only_the_key_came_has_nulls_for_the_rest(envelope_schema: bool) -> None:
    note = column("note", "text", pa.string(), nullable=False)
    table = structure("t", note, ID, number("n", "integer", pa.int32()))
    block = changes(
        table, (Op.DELETE, {"id": 1}, None), (Op.UPDATE, {"id": 2}, {"id": 3, "note": "x", "n": 1}),
        (Op.DELETE, {"id": 4, "note": "old", "n": 5}, None), (Op.INSERT, None, {"id": 6, "note": "y"}),
    )  # fmt: skip
    made = documents(block, envelope_schema=envelope_schema)
    for document in made if envelope_schema else ():
        _conforms(document["payload"], document["schema"])
    payloads = [d["payload"] for d in made] if envelope_schema else made
    assert [list(p["before"].values()) for p in payloads[:3]] == [[None, 1, None], [None, 2, None], ["old", 4, 5]]
    assert [list(p["before"]) for p in payloads[:3]] == [["note", "id", "n"]] * 3
    assert payloads[3]["before"] is None


@pytest.mark.parametrize(
    ("identity", "required"), [("full", {"id", "note"}), ("key", {"id"}), ("nothing", {"id"})]
)  # fmt: skip
def test_columns_that_are_never_null_are_required(identity: str, required: set[str]) -> None:
    note = column("note", "text", pa.string(), nullable=False)
    table = structure("t", ID, note, number("n", "integer", pa.int32()))
    table = dataclasses.replace(table, identity=identity).with_fingerprint()
    block = changes(table, (Op.INSERT, None, {"id": 6, "note": "y"}))
    (document,) = documents(block, envelope_schema=True)
    for side in document["schema"]["fields"][:2]:
        assert {f["field"] for f in side["fields"] if not f["optional"]} == required


@pytest.mark.parametrize(
    ("event", "optional"),
    [
        ((Op.DELETE, {"id": 1, "note": "x", "n": None}, None), {"n"}),
        ((Op.DELETE, {"id": 1}, None), {"n", "note"}),  # a binlog with less than whole rows
        ((Op.UPDATE, {"id": 1, "note": None, "n": 2}, {"id": 1, "note": "x"}), {"n", "note"}),  # NOT NULL since then
        ((Op.UPDATE, None, {"id": 1, "note": "x", "n": 3}), {"n"}),
        ((Op.TRUNCATE, None, None), {"n"}),
    ],
)
def test_a_column_that_has_no_value_after_all_is_optional_there(event: Any, optional: set[str]) -> None:
    note = column("note", "text", pa.string(), nullable=False)
    table = structure("t", ID, note, number("n", "integer", pa.int32()))
    table = dataclasses.replace(table, identity="full").with_fingerprint()
    (document,) = documents(changes(table, event), envelope_schema=True)
    _conforms(document["payload"], document["schema"])
    assert {f["field"] for f in document["schema"]["fields"][1]["fields"] if f["optional"]} == optional


def test_a_column_that_was_not_sent_or_is_odd_has_a_value_all_the_same() -> None:
    note = column("note", "text", pa.string(), nullable=False)
    table = structure("t", ID, note, column("day", "date", pa.date32(), nullable=False))
    table = dataclasses.replace(table, identity="full").with_fingerprint()
    odd = {0: [(Side.AFTER, "day", "infinity")]}
    block = changes(table, (Op.UPDATE, None, {"id": 1}), unchanged={0: ["note"]}, odd=odd)
    (document,) = documents(block, envelope_schema=True)
    _conforms(document["payload"], document["schema"])
    assert not [f for f in document["schema"]["fields"][1]["fields"] if f["optional"]]


def test_a_message_has_debeziums_schema_of_messages() -> None:
    block = block_of(
        MESSAGES, [Op.MESSAGE], after=pa.array([{"prefix": "p", "content": b"c"}], MESSAGES.arrow_struct())
    )
    (document,) = documents(block, envelope_schema=True)
    _conforms(document["payload"], document["schema"])
    assert document["schema"]["name"] == "io.debezium.connector.postgresql.MessageValue"
    assert document["schema"]["fields"][0]["name"] == "io.debezium.connector.postgresql.Message"


def _conforms(value: Any, schema: dict[str, Any]) -> None:
    """What Kafka Connect's JSON converter would accept."""
    if value is None:
        assert schema["optional"], schema
        return
    match schema["type"]:
        case "struct":
            fields = {f["field"]: f for f in schema["fields"]}
            assert value.keys() <= fields.keys()
            for name, field in fields.items():
                _conforms(value.get(name), field)
        case "array":
            for item in value:
                _conforms(item, schema["items"])
        case "int16" | "int32" | "int64" as kind:
            bits = int(kind[3:])
            assert isinstance(value, int)
            assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        case "float" | "double":
            assert isinstance(value, float) or value in ("NaN", "Infinity", "-Infinity")
        case "boolean":
            assert isinstance(value, bool)
        case "bytes" if schema.get("name") == "org.apache.kafka.connect.data.Decimal":
            assert isinstance(value, int)
            assert schema["parameters"]["scale"] == "0"
        case "string" | "bytes":
            assert isinstance(value, str)
        case other:
            raise AssertionError(other)


@pytest.mark.parametrize("name", TYPED)
def test_typed_formats_have_the_same_fields_and_what_types_cannot_say_beside_them(name: str) -> None:
    block = odd_block()
    format = make(name, "debezium")
    rows = [read_one(format, block.table, d.as_py()) for d in format.encode(block, SOURCE)]
    wanted = documents(block)
    for row, plain in zip(rows, wanted, strict=True):
        assert list(row) == [*_FIELDS, "unchanged", "odd", "ddl"]
        assert {n: row[n] for n in ("op", "ts_ms", "ts_us", "ts_ns", "transaction")} == {
            n: plain[n] for n in ("op", "ts_ms", "ts_us", "ts_ns", "transaction")
        }
        assert {n: row["source"][n] for n in _POSTGRESQL} == plain["source"]
        for side in ("before", "after"):
            assert (row[side] is None) == (plain[side] is None)
            if row[side] is not None:
                assert row[side]["int64"] == plain[side]["int64"]
    assert rows[1]["after"]["text"] == "__debezium_unavailable_value"
    assert rows[4]["unchanged"] == ["text", "uint64"]
    assert rows[2]["odd"][0] == shown({"side": "before", "column": "date", "text": "infinity"})


@pytest.mark.parametrize("name", TYPED)
def test_without_a_full_old_row_the_old_key_stands_in_a_row_of_nulls(name: str) -> None:
    block = make_block(3, ops=[Op.UPDATE, Op.DELETE, Op.INSERT], first_id=5)
    format = make(name, "debezium")
    rows = [read_one(format, block.table, d.as_py()) for d in format.encode(block, SOURCE)]
    assert [row["before"] and row["before"]["id"] for row in rows] == [5, 6, None]
    assert rows[0]["before"]["customer"] is None


@pytest.mark.parametrize("name", TYPED)
def test_a_statement_is_not_lost(name: str) -> None:
    text = '{"text": "ALTER TABLE orders ADD x int", "kind": "alter", "changes": []}'
    block, format = block_of(make_table(), [Op.DDL], ddl=pa.array([text], DDL)), make(name, "debezium")
    row = read_one(format, block.table, format.encode(block, SOURCE)[0].as_py())
    assert (row["ddl"], row["op"], row["after"]) == (text, "ddl", None)


def test_bytes_that_were_not_sent_read_as_the_placeholder_too() -> None:
    block = typed_block(["int64", "bytes", "uint64"], rows=3)
    lists = pa.array([None, [1, 2], None], UNCHANGED)
    block = Block(block.table, block.batch.append_column("unchanged", lists))
    format = make("avro", "debezium")
    row = read_one(format, block.table, format.encode(block, SOURCE)[1].as_py())
    assert row["after"]["bytes"] == b"__debezium_unavailable_value"
    assert row["unchanged"] == ["bytes", "uint64"]
