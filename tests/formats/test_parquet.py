"""Parquet files: typed columns, one schema per table version."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.formats.samples import typed_block
from tests.support.blocks import make_block, make_table
from tidemill.formats.json import JsonFormat
from tidemill.formats.parquet import ParquetFormat
from tidemill.model.block import Op

SOURCE = "orders-db"


def test_a_file_has_a_row_group_per_block_and_the_tables_types() -> None:
    block, stream = typed_block(), pa.BufferOutputStream()
    writer = ParquetFormat().open(stream, block.table, SOURCE)
    for _ in range(3):
        writer.write(block)
    writer.close()
    file = pq.ParquetFile(io.BytesIO(bytes(stream.getvalue())))
    assert (file.num_row_groups, file.metadata.num_rows) == (3, 3 * block.rows)
    assert file.schema_arrow.field("after").type == block.table.arrow_struct()
    assert file.schema_arrow.metadata[b"tidemill.table"] == b"public.all types"


def test_all_files_of_a_version_have_one_schema() -> None:
    schemas = [
        pq.read_schema(io.BytesIO(bytes(ParquetFormat().batch(make_block(2, ops=op), SOURCE))))
        for op in (Op.INSERT, Op.DELETE, Op.TRUNCATE)
    ]
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd"])
def test_pages_are_compressed_as_asked(compression: str) -> None:
    stream = pa.BufferOutputStream()
    writer = ParquetFormat().open(stream, make_table(), SOURCE, compression)
    writer.write(make_block(100))
    writer.close()
    column = pq.ParquetFile(io.BytesIO(bytes(stream.getvalue()))).metadata.row_group(0).column(0)
    assert column.compression == {"none": "UNCOMPRESSED"}.get(compression, compression.upper())


def test_one_event_is_a_file_of_one_row_and_keys_are_json() -> None:
    block = make_block(3)
    for row, document in enumerate(ParquetFormat().encode(block, SOURCE)):
        read = pq.read_table(io.BytesIO(document.as_py()))
        assert read.column("offset").to_pylist() == [row]
    assert ParquetFormat().encode_key(block).equals(JsonFormat().encode_key(block))
