"""JSON, one document per row: what most sinks send. Columns in, one buffer of text out, no Python object per row.

Called in Spark workers, once per block. `_program` turns a block into steps, `_assemble` runs them over the rows.
"""

from __future__ import annotations

import enum

import pyarrow as pa

from tidemill.formats import _envelopes
from tidemill.formats._program import Program
from tidemill.model.block import Block


class Envelope(enum.StrEnum):
    """What stands around a row: our own event, or the fields Debezium's PostgreSQL connector sends."""

    NATIVE = "native"
    DEBEZIUM = "debezium"


class JsonFormat:
    """Encodes blocks. The same block gives the same bytes: nothing comes from a clock (invariant 5)."""

    content_type = "application/json"
    batch_content_type = "application/x-ndjson"
    suffix = ".jsonl"

    def __init__(self, envelope: Envelope | str = Envelope.NATIVE) -> None:
        self.envelope = Envelope(envelope)

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        """One document per row."""
        return self._program(block, source, b"").run().array()

    def batch(self, block: Block, source: str) -> pa.Buffer:
        """The same documents as JSON lines, in one buffer that can be written as it is."""
        return self._program(block, source, b"\n").run().data

    def encode_key(self, block: Block) -> pa.LargeBinaryArray:
        """The key columns as a document, `{"id":1}`; null where the table or the event has no key (TRUNCATE)."""
        program, found = _envelopes.key(block)
        return program.run().array(found)

    def _program(self, block: Block, source: str, tail: bytes) -> Program:
        write = _envelopes.native if self.envelope is Envelope.NATIVE else _envelopes.debezium
        return write(block, source, tail)


component = JsonFormat
