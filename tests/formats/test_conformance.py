"""What every wire format promises, asked of everything registered, with other people's readers as the judges."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.formats.readers import SOURCE, Row, expected, read_batch, read_one
from tests.formats.samples import TYPES, block_of, odd_block, typed_block
from tests.support.blocks import make_block, make_table
from tidemill import registry
from tidemill.model.block import DDL, Block, Op
from tidemill.model.table import Table

FORMATS = registry.names("formats")
#: JSON shows values in its own way, and has tests of its own for that.
TYPED = [name for name in FORMATS if name != "json"]


def make(name: str, envelope: str = "native") -> Any:
    return registry.load("formats", name)(envelope)


def wanted(name: str, rows: list[Row]) -> list[Row]:
    """What the format's reader gives for these events."""
    return [_protobuf(row) for row in rows] if name == "protobuf" else rows


def _protobuf(value: Any) -> Any:
    """Decimals are texts, and an empty list of our own is no list."""
    match value:
        case dict():
            row = {name: _protobuf(inner) for name, inner in value.items()}
            return row | {name: None for name in ("unchanged", "odd") if name in row and not row[name]}
        case list():
            return [_protobuf(inner) for inner in value]
    return format(value, "f") if type(value).__name__ == "Decimal" else value


@pytest.mark.parametrize("name", FORMATS)
def test_it_says_what_it_is(name: str) -> None:
    format = make(name)
    assert "/" in format.content_type
    assert "/" in format.batch_content_type
    assert format.suffix.startswith(".")
    assert format.schema_in_file in (True, False)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("name", [name for name in TYPED if name != "parquet"])
def test_every_value_of_every_type_comes_back_exact_from_a_single_event(name: str, kind: str) -> None:
    block, format = typed_block(list({"int64": 0, kind: 0})), make(name)
    documents = [document.as_py() for document in format.encode(block, SOURCE)]
    read = [read_one(format, block.table, document) for document in documents]
    assert read == wanted(name, expected(block))


@pytest.mark.parametrize("name", TYPED)
def test_a_batch_with_every_type_comes_back_exact(name: str) -> None:
    block, format = typed_block(), make(name)
    assert read_batch(format, block.table, format.batch(block, SOURCE).to_pybytes()) == wanted(name, expected(block))


@pytest.mark.parametrize("name", TYPED)
def test_odd_values_and_unchanged_columns_are_not_lost(name: str) -> None:
    block, format = odd_block(), make(name)
    rows = [read_one(format, block.table, document.as_py()) for document in format.encode(block, SOURCE)]
    assert rows == wanted(name, expected(block))
    assert rows[0]["odd"] == [{"side": "after", "column": "money", "text": "NaN"}]
    assert rows[4]["unchanged"] == ["text", "uint64"]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("envelope", ["native", "debezium", "cloudevents"])
def test_the_same_block_gives_the_same_bytes_and_so_does_a_slice_of_a_larger_one(name: str, envelope: str) -> None:
    block = typed_block()
    part = Block(block.table, block.batch.slice(7, 9))
    alone = Block(block.table, pa.record_batch(part.batch.take(pa.array(range(9))).columns, schema=block.batch.schema))
    whole, sliced = make(name, envelope).encode(block, SOURCE), make(name, envelope).encode(part, SOURCE)
    assert whole.equals(make(name, envelope).encode(block, SOURCE))
    if name not in ("arrow", "parquet"):  # whose buffers have room that no row uses
        assert sliced.equals(whole.slice(7, 9))
    assert make(name, envelope).batch(alone, SOURCE).equals(make(name, envelope).batch(alone, SOURCE))
    assert make(name, envelope).encode_key(part).equals(make(name, envelope).encode_key(block).slice(7, 9))


@pytest.mark.parametrize("name", FORMATS)
def test_a_batch_that_can_be_cut_between_any_two_rows_says_where(name: str) -> None:
    block, format = make_block(6), make(name)
    stacked = format.stack(block, SOURCE)
    if stacked is None:
        assert name in ("arrow", "avro", "parquet")
        return
    rows = stacked.to_pylist()
    assert b"".join(rows) == format.batch(block, SOURCE).to_pybytes()
    assert [row["offset"] for row in read_batch(format, block.table, b"".join(rows[2:5]))] == [2, 3, 4]


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_written_block_by_block_reads_as_one(name: str) -> None:
    blocks = [make_block(5), make_block(3, offsets=[5, 6, 7], positions="0/200", ops=Op.DELETE)]
    format, stream = make(name), pa.BufferOutputStream()
    writer = format.open(stream, blocks[0].table, SOURCE)
    for block in blocks:
        writer.write(block)
    writer.close()
    rows = read_batch(format, blocks[0].table, stream.getvalue().to_pybytes())
    assert [row["offset"] for row in rows] == list(range(8))
    assert [row["op"] for row in rows] == ["insert"] * 5 + ["delete"] * 3


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_events_can_be_read(name: str) -> None:
    format, stream = make(name), pa.BufferOutputStream()
    format.open(stream, make_table(), SOURCE).close()
    assert read_batch(format, make_table(), stream.getvalue().to_pybytes()) == []
    empty = Block(make_table(), make_block(3).batch.slice(1, 0))
    assert len(make(name).encode(empty, SOURCE)) == len(make(name).encode_key(empty)) == 0


@pytest.mark.parametrize("name", FORMATS)
def test_keys_are_equal_exactly_where_the_rows_keys_are(name: str) -> None:
    block = make_block(4, ops=[Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE], first_id=5)
    keys = make(name).encode_key(block).to_pylist()
    assert [key is None for key in keys] == [False, False, False, True]
    assert len(set(keys)) == 4
    again = make_block(4, first_id=5)
    assert make(name).encode_key(again).to_pylist()[:3] == keys[:3]
    assert make(name).encode_key(make_block(2, table=make_table(key=()))).to_pylist() == [None, None]


@pytest.mark.parametrize("name", FORMATS)
def test_odd_values_are_part_of_the_key(name: str) -> None:
    keys = make(name).encode_key(odd_block()).to_pylist()
    assert len(set(keys)) == len(keys)
    # Row 2 is a delete whose old date was `infinity`, row 4 an update to `-infinity`.
    assert b"infinity" in keys[2]
    assert b"-infinity" in keys[4]


@pytest.mark.parametrize("name", FORMATS)
def test_tables_without_key_or_columns_messages_and_statements_have_events_too(name: str) -> None:
    bare = Table("shop", "public", "bare", (), version=1).with_fingerprint()
    statement = block_of(make_table(), [Op.DDL], ddl=pa.array(['{"text": "ALTER TABLE"}'], DDL))
    for block in (
        block_of(bare, [Op.TRUNCATE]), statement, make_block(2, table=make_table(key=())),
        make_block(2, ops=Op.TRUNCATE), make_block(2, ops=Op.READ),
    ):  # fmt: skip
        format = make(name)
        rows = [read_one(format, block.table, document.as_py()) for document in format.encode(block, SOURCE)]
        assert [row["op"] for row in rows] == [Op(op).label for op in block.batch.column("op").to_pylist()]
        if name != "json":
            assert rows == wanted(name, expected(block))


@pytest.mark.parametrize("name", FORMATS)
def test_only_cloudevents_in_binary_mode_have_attributes_beside_the_event(name: str) -> None:
    block = make_block(2)
    kind = registry.load("formats", name)
    assert kind("native").attributes(block, SOURCE) == {}
    assert kind("debezium").attributes(block, SOURCE) == {}
    beside = kind("cloudevents", mode="binary").attributes(block, SOURCE)
    assert {"id", "source", "specversion", "type"} <= beside.keys()
    assert beside["datacontenttype"] == kind("native").content_type
