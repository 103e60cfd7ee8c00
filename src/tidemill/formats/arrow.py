"""Arrow: an IPC stream of typed columns. One event is a stream of one row; keys are JSON.

A stream repeats its schema, about a kilobyte, so Arrow pays for batches and files. As one message per event it
is there for readers that want nothing else.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidemill.formats._shared import envelopes, events
from tidemill.formats._shared.base import BaseFormat
from tidemill.model.block import Block
from tidemill.model.table import Table

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"  # continuation marker, no more messages


class ArrowFormat(BaseFormat):
    content_type = "application/vnd.apache.arrow.stream"
    batch_content_type = "application/vnd.apache.arrow.stream"
    suffix = ".arrows"  # the suffix registered for streams; .arrow is the file form

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        batch = events.record(block, source, self.envelope).batch()
        if any(_has_dictionary(field.type) for field in batch.schema):  # they are messages of their own
            pieces = (Block(block.table, block.batch.slice(row, 1)) for row in range(block.rows))
            return pa.array([self.batch(piece, source).to_pybytes() for piece in pieces], pa.large_binary())
        head = batch.schema.serialize().to_pybytes()
        rows = (batch.slice(row, 1).serialize().to_pybytes() for row in range(block.rows))
        return pa.array([head + row + _END for row in rows], pa.large_binary())

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        """JSON: a key is compared byte by byte and read by people."""
        return envelopes.keys(block)

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> ArrowWriter:
        return ArrowWriter(self, stream, table, source, compression)


class ArrowWriter:
    def __init__(self, format: BaseFormat, stream: Any, table: Table, source: str, compression: str) -> None:
        self._format = format
        self._source = source
        options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
        schema = events.schema(table, format.envelope)
        self._writer = pa.ipc.new_stream(stream, schema, options=options)

    def write(self, block: Block) -> None:
        self._writer.write_batch(events.record(block, self._source, self._format.envelope).batch())

    def close(self) -> None:
        self._writer.close()


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(i).type) for i in range(kind.num_fields))


component = ArrowFormat
