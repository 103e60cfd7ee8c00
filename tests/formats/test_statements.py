"""DDL events in JSON: the statement and what it changed, in our own envelope and in Debezium's."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest

from tests.support.blocks import EPOCH_US, make_table
from tidemill.formats.json import JsonFormat
from tidemill.model.block import COMMIT_TIME, DDL, POSITION, Block, Op

STATEMENT = 'ALTER TABLE orders\nADD COLUMN "größe" int'
CHANGES = [{"change": "add", "column": "größe", "type": "int", "nullable": True, "after": "note"}]


@pytest.fixture
def block() -> Block:
    return block_at("binlog.000003:1547")


def block_at(position: str, text: str | None = STATEMENT, kind: str = "alter") -> Block:
    document = orjson.dumps({"text": text, "kind": kind, "changes": CHANGES}).decode()
    columns = {
        "offset": pa.array([41], pa.uint64()),
        "op": pa.array([int(Op.DDL)], pa.uint8()),
        "position": pa.array([position]).dictionary_encode().cast(POSITION),
        "tx_id": pa.nulls(1, pa.uint64()),
        "ordinal": pa.array([0], pa.uint32()),
        "commit_time": pa.array([EPOCH_US]).cast(COMMIT_TIME),
        "ddl": pa.array([document], DDL),
    }
    return Block(make_table(), pa.RecordBatch.from_pydict(columns))


def test_the_statement_is_embedded_in_our_own_event(block: Block) -> None:
    [event] = (orjson.loads(text) for text in JsonFormat().encode(block, "shop").to_pylist())
    assert event["op"] == "ddl"
    assert event["ddl"] == {"text": STATEMENT, "kind": "alter", "changes": CHANGES}
    assert (event["before"], event["after"], event["size_bytes"]) == (None, None, 8)
    assert event["schema_version"] == block.table.fingerprint


@pytest.mark.parametrize("with_schema", [False, True])
def test_it_is_a_schema_change_in_debeziums(block: Block, with_schema: bool) -> None:
    encoder = JsonFormat("debezium", envelope_schema=with_schema)
    [event] = (orjson.loads(text) for text in encoder.encode(block, "shop").to_pylist())
    event = event.get("payload", event)
    assert event["ddl"] == STATEMENT
    assert (event["databaseName"], event["schemaName"]) == ("shop", None)
    [change] = event["tableChanges"]
    assert (change["type"], change["id"]) == ("ALTER", '"shop"."orders"')
    assert change["table"]["primaryKeyColumnNames"] == list(block.table.key)
    assert [c["name"] for c in change["table"]["columns"]] == [c.name for c in block.table.columns]
    assert (event["source"]["file"], event["source"]["pos"]) == ("binlog.000003", 1547)
    assert event["ts_us"] == EPOCH_US
    assert event["op"] == "ddl"


def test_it_has_no_key(block: Block) -> None:
    assert JsonFormat().encode_key(block).to_pylist() == [None]


def test_of_postgresql_it_has_the_schema_in_debeziums() -> None:
    [text] = JsonFormat("debezium").encode(block_at("0/19B6A28"), "shop").to_pylist()
    event = orjson.loads(text)
    assert (event["ddl"], event["databaseName"], event["schemaName"]) == (STATEMENT, "shop", "public")
    assert event["tableChanges"][0]["id"] == '"shop"."public"."orders"'
    assert event["source"]["connector"] == "postgresql"


def test_of_a_table_that_is_gone_debeziums_has_no_columns_and_of_a_change_that_was_announced_no_text() -> None:
    gone, announced = (
        orjson.loads(JsonFormat("debezium").encode(each, "shop").to_pylist()[0])
        for each in (block_at("0/19B6A28", kind="drop"), block_at("0/19B6A28", text=None))
    )
    assert (gone["tableChanges"][0]["type"], gone["tableChanges"][0]["table"]) == ("DROP", None)
    assert announced["ddl"] is None


@pytest.mark.parametrize("position", ["binlog.000003:1547", "0/19B6A28"])
def test_it_is_a_cloud_event_of_its_own_type(position: str) -> None:
    [text] = JsonFormat("cloudevents").encode(block_at(position), "shop").to_pylist()
    event = orjson.loads(text)
    assert event["type"] == "io.tidemill.ddl"
    assert event["subject"] == "public.orders"
    assert event["data"]["op"] == "ddl"
    assert event["data"]["ddl"] == {"text": STATEMENT, "kind": "alter", "changes": CHANGES}
