"""What all wire formats share: the choice of envelope, the CloudEvents attributes, batches made of an open writer."""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping
from typing import Any, Self

import pyarrow as pa

from tidemill.contracts import BatchWriter
from tidemill.model import cloudevents
from tidemill.model.block import Block
from tidemill.model.table import Table
from tidemill.net.schema_registry import SchemaRegistryClient


class Envelope(enum.StrEnum):
    """What stands around a row: docs/events.md."""

    NATIVE = "native"
    DEBEZIUM = "debezium"
    CLOUDEVENTS = "cloudevents"


class ContentMode(enum.StrEnum):
    """Where a CloudEvent's attributes are: in the document, or beside it (headers)."""

    STRUCTURED = "structured"
    BINARY = "binary"


class BaseFormat:
    """Made once per sink. Encodes blocks; nothing in the bytes comes from a clock (invariant 5)."""

    content_type: str
    batch_content_type: str
    suffix: str
    schema_in_file: bool = True
    concurrent: bool = False

    def __init__(
        self,
        envelope: Envelope | str = Envelope.NATIVE,
        *,
        mode: ContentMode | str = ContentMode.BINARY,
        envelope_schema: bool = False,
        schemas: SchemaRegistryClient | None = None,
    ) -> None:
        self.envelope = Envelope(envelope)
        self.mode = ContentMode(mode)
        self.envelope_schema = envelope_schema
        self.schemas = schemas
        self.topic = ""

    def to(self, topic: str) -> Self:
        if topic == self.topic or self.schemas is None:
            return self
        other = copy.copy(self)
        other.topic = topic
        return other

    def attributes(self, block: Block, source: str) -> Mapping[str, pa.Array | str]:
        if self.envelope is not Envelope.CLOUDEVENTS or self.mode is ContentMode.STRUCTURED:
            return {}
        found = cloudevents.attributes(block, source)
        return found | {"time": cloudevents.format_timestamps(found["time"]), "datacontenttype": self.content_type}

    def batch(self, block: Block, source: str) -> pa.Buffer:
        stream = pa.BufferOutputStream()
        writer = self.open(stream, block.table, source)
        writer.write(block)
        writer.close()
        return stream.getvalue()

    def stack(self, block: Block, source: str) -> pa.LargeBinaryArray | None:
        return None

    def open(self, stream: Any, table: Table, source: str, compression: str = "none") -> BatchWriter:
        raise NotImplementedError
