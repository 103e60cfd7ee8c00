"""JSON, one document per row: what most sinks send. Columns in, one buffer of text out, no Python object per row.

Called in Spark workers, once per block. `program` turns a block into steps, `assemble` runs them over the rows.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidemill.encoding.program import Program
from tidemill.formats._shared import connect_schema, envelopes
from tidemill.formats._shared.base import BaseFormat, ContentMode, Envelope
from tidemill.model.block import Block
from tidemill.model.table import Table
from tidemill.net.schema_registry import SchemaRegistryClient


class JsonFormat(BaseFormat):
    """Encodes blocks. The same block gives the same bytes: nothing comes from a clock (invariant 5)."""

    content_type = "application/json"
    batch_content_type = "application/x-ndjson"
    suffix = ".jsonl"
    schema_in_file = False
    concurrent = True  # a block's program is its own

    def __init__(
        self,
        envelope: Envelope | str = Envelope.NATIVE,
        *,
        mode: ContentMode | str = ContentMode.STRUCTURED,
        envelope_schema: bool = False,
        schemas: SchemaRegistryClient | None = None,
    ) -> None:
        super().__init__(envelope, mode=mode, envelope_schema=envelope_schema, schemas=schemas)
        if self.envelope is Envelope.CLOUDEVENTS and self.mode is ContentMode.STRUCTURED:
            self.content_type = "application/cloudevents+json"

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        """One document per row."""
        return self._program(block, source, b"").run().array()

    def batch(self, block: Block, source: str) -> pa.Buffer:
        """The same documents as JSON lines, in one buffer that can be written as it is."""
        return self._program(block, source, b"\n").run().data

    def stack(self, block: Block, source: str) -> pa.LargeBinaryArray:
        return self._program(block, source, b"\n").run().array()

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> LinesWriter:
        return LinesWriter(self, stream, source)

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        """The key columns as a document, `{"id":1}`; null where the table or the event has no key (TRUNCATE)."""
        head, tail = b"", b""
        if self.envelope_schema:
            head, tail = b'{"schema":' + connect_schema.key(block.table, source) + b',"payload":', b"}"
        return envelopes.keys(block, head, tail)

    def _program(self, block: Block, source: str, tail: bytes) -> Program:
        match self.envelope:
            case Envelope.DEBEZIUM:
                return envelopes.debezium(block, source, tail, with_schema=self.envelope_schema)
            case Envelope.CLOUDEVENTS if self.mode is ContentMode.STRUCTURED:
                return envelopes.cloudevent(block, source, tail)
            case _:
                return envelopes.native(block, source, tail)


class LinesWriter:
    def __init__(self, format: JsonFormat, stream: Any, source: str) -> None:
        self._format = format
        self._stream = stream
        self._source = source

    def write(self, block: Block) -> None:
        self._stream.write(self._format.batch(block, self._source))

    def close(self) -> None:
        pass


component = JsonFormat
