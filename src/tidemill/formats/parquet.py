"""Parquet: files of typed columns. One event is a file of one row, which is possible and wasteful; keys are JSON."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidemill.formats._shared import envelopes, events
from tidemill.formats._shared.base import BaseFormat
from tidemill.model.block import Block
from tidemill.model.table import Table


class ParquetFormat(BaseFormat):
    content_type = "application/vnd.apache.parquet"
    batch_content_type = "application/vnd.apache.parquet"
    suffix = ".parquet"

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        files = (self.batch(Block(block.table, block.batch.slice(row, 1)), source) for row in range(block.rows))
        return pa.array([file.to_pybytes() for file in files], pa.large_binary())

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        """JSON: a key is compared byte by byte and read by people."""
        return envelopes.keys(block)

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> ParquetWriter:
        return ParquetWriter(self, stream, table, source, compression)


class ParquetWriter:
    """A row group per block. All files of a table version have one schema, whatever their events happen to be."""

    def __init__(self, format: BaseFormat, stream: Any, table: Table, source: str, compression: str) -> None:
        self._format = format
        self._source = source
        self._writer = pq.ParquetWriter(stream, events.schema(table, format.envelope), compression=compression)

    def write(self, block: Block) -> None:
        batch = events.record(block, self._source, self._format.envelope).batch()
        self._writer.write_table(pa.Table.from_batches([batch]))

    def close(self) -> None:
        self._writer.close()


component = ParquetFormat
