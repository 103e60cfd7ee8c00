"""Debezium's envelope, field by field: in JSON with and without its schema, and in the typed formats."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.formats.readers import SOURCE, read_one, shown
from tests.formats.samples import TYPES, block_of, odd_block, typed_block
from tests.formats.test_conformance import TYPED, make
from tests.support.blocks import EPOCH_US, make_block, make_table
from tidemill import __version__
from tidemill.formats.json import JsonFormat
from tidemill.model.block import DDL, UNCHANGED, Block, Op

_FIELDS = ["before", "after", "source", "transaction", "op", "ts_ms", "ts_us", "ts_ns"]
_POSTGRESQL = ["version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "schema",
               "table", "txId", "lsn", "xmin"]  # fmt: skip
_MYSQL = ["version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db", "sequence", "table", "server_id",
          "gtid", "file", "pos", "row", "thread", "query"]  # fmt: skip


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
    assert schema["name"] == "orders_u002ddb.public.all_u0020types.Envelope"
    fields = {f["field"]: f for f in schema["fields"]}
    assert fields["before"]["name"] == fields["after"]["name"] == "orders_u002ddb.public.all_u0020types.Value"
    columns = {f["field"]: f for f in fields["after"]["fields"]}
    assert columns["timestamptz"]["name"] == "io.debezium.time.ZonedTimestamp"
    assert columns["json"]["name"] == "io.debezium.data.Json"
    assert list(columns) == list(TYPES)


def test_a_key_with_its_schema() -> None:
    (key,) = JsonFormat("debezium", envelope_schema=True).encode_key(make_block(1, first_id=7)).to_pylist()
    document = json.loads(key)
    assert document["payload"] == {"id": 7}
    _conforms(document["payload"], document["schema"])


def test_a_mysql_event_conforms_to_its_schema_too() -> None:
    for document in documents(make_block(2, positions="binlog.000003:1547"), envelope_schema=True):
        _conforms(document["payload"], document["schema"])


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
            # An unsigned 64-bit number beyond int64 is sent as it is, which only a lenient reader takes.
            assert isinstance(value, int)
            assert -(2 ** (bits - 1)) <= value < 2 ** (64 if bits == 64 else bits - 1)
        case "float" | "double":
            assert isinstance(value, float) or value in ("NaN", "Infinity", "-Infinity")
        case "boolean":
            assert isinstance(value, bool)
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
    assert (row["ddl"], row["op"], row["after"]) == (text, None, None)


def test_bytes_that_were_not_sent_read_as_the_placeholder_too() -> None:
    block = typed_block(["int64", "bytes", "uint64"], rows=3)
    lists = pa.array([None, [1, 2], None], UNCHANGED)
    block = Block(block.table, block.batch.append_column("unchanged", lists))
    format = make("avro", "debezium")
    row = read_one(format, block.table, format.encode(block, SOURCE)[1].as_py())
    assert row["after"]["bytes"] == b"__debezium_unavailable_value"
    assert row["unchanged"] == ["bytes", "uint64"]
