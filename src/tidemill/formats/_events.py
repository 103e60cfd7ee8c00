"""The record of an event in the chosen envelope, for the formats with typed columns."""

from __future__ import annotations

import pyarrow as pa

from tidemill.formats import _record
from tidemill.formats._base import Envelope
from tidemill.formats._record import Record
from tidemill.model.block import Block
from tidemill.model.table import Table


def schema(table: Table, envelope: Envelope) -> pa.Schema:
    return _record.native_schema(table)


def record(block: Block, source: str, envelope: Envelope) -> Record:
    """A CloudEvent's data is our own event."""
    return _record.native(block, source)
