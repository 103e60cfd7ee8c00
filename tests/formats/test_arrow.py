"""Arrow streams: a schema that follows from the table, whatever the rows are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.formats.samples import odd_block, typed_block
from tests.support.blocks import make_block, make_table
from tidemill.formats.arrow import ArrowFormat
from tidemill.formats.json import JsonFormat
from tidemill.model.block import Op

SOURCE = "orders-db"


def schema_of(data: bytes) -> pa.Schema:
    return pa.ipc.open_stream(data).schema


def test_all_events_of_a_version_have_one_schema_single_or_many() -> None:
    table = make_table()
    blocks = [make_block(2, table=table, ops=op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.TRUNCATE)]
    schemas = [schema_of(bytes(ArrowFormat().batch(block, SOURCE))) for block in blocks]
    schemas += [schema_of(ArrowFormat().encode(block, SOURCE)[1].as_py()) for block in blocks]
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)
    assert schemas[0].field("after").type == table.arrow_struct()
    assert schemas[0].metadata[b"tidemill.schema_version"] == table.fingerprint.encode()


def test_columns_have_the_types_of_the_block() -> None:
    block = typed_block()
    read = pa.ipc.open_stream(ArrowFormat().batch(block, SOURCE)).read_all()
    after = read.column("after").combine_chunks()
    assert after.type == block.table.arrow_struct()


def test_a_single_event_is_a_stream_of_one_row() -> None:
    for row, document in enumerate(ArrowFormat().encode(odd_block(), SOURCE)):
        reader = pa.ipc.open_stream(document.as_py())
        batches = list(reader)
        assert [batch.num_rows for batch in batches] == [1]
        assert batches[0].column("offset")[0].as_py() == 100 + row


def test_keys_are_json() -> None:
    assert ArrowFormat().encode_key(make_block(3)).equals(JsonFormat().encode_key(make_block(3)))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_compressed_stream_reads_the_same(compression: str) -> None:
    stream = pa.BufferOutputStream()
    writer = ArrowFormat().open(stream, make_table(), SOURCE, compression)
    writer.write(make_block(500))
    writer.close()
    plain = pa.ipc.open_stream(ArrowFormat().batch(make_block(500), SOURCE)).read_all()
    assert pa.ipc.open_stream(stream.getvalue()).read_all().equals(plain)
    assert (stream.getvalue().size < plain.nbytes) == (compression == "zstd")
