"""What a wire format promises to the sinks that send events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import pyarrow as pa

from tidemill.model.block import Block
from tidemill.model.table import Table

WireFormat = Literal["json", "avro", "protobuf", "arrow", "parquet"]


class BatchWriter(Protocol):
    """One file of many events, written a block at a time. `close` ends the file; the stream stays open."""

    def write(self, block: Block) -> None: ...

    def close(self) -> None: ...


class Format(Protocol):
    """A wire format: blocks in, bytes out, the same bytes for the same block (invariant 5). No I/O except that a schema
    registry may be asked for the number of a schema that was not met before."""

    content_type: str  # of one event, as HTTP and CloudEvents name it
    batch_content_type: str  # of many in one body or file
    suffix: str  # of a file of many
    schema_in_file: bool  # a file of many holds rows of one version of one table
    concurrent: bool  # `batch` may be called by several threads at a time

    def encode(self, block: Block, source: str) -> pa.LargeBinaryArray:
        """One document per row."""

    def encode_key(self, block: Block, source: str = "") -> pa.LargeBinaryArray:
        """The key columns as a document; null where the table or the event has no key. `source` is in the name of its
        schema, in formats and envelopes that have one."""

    def batch(self, block: Block, source: str) -> pa.Buffer:
        """All rows in one piece that a reader of the format takes as it is: JSON lines, an Avro container file,
        length-delimited Protobuf, an Arrow stream, a Parquet file."""

    def stack(self, block: Block, source: str) -> pa.LargeBinaryArray | None:
        """The rows of `batch` one by one, if it is nothing but its rows one after another, so that any run of them is
        a batch too: JSON lines, length-delimited Protobuf. None for files with a head."""

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> BatchWriter:
        """The same as `batch`, written to a binary stream bit by bit. `compression` is the format's own: none, gzip or
        zstd. Formats without any (JSON, Protobuf) ignore it; their whole stream may be compressed instead."""

    def attributes(self, block: Block, source: str) -> Mapping[str, pa.Array | str]:
        """What travels beside an event instead of in it: the attributes of CloudEvents in binary mode (`id`, `type`,
        ...), by row or the same for all rows. Empty for every other envelope."""

    def to(self, topic: str) -> Format:
        """The same format for what goes to one topic: a schema registry may file schemas by it."""
