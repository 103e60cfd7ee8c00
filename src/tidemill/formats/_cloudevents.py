"""CloudEvents 1.0: the attributes of an event, from what every event has. docs/events.md says what they mean."""

from __future__ import annotations

import urllib.parse

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op
from tidemill.model.table import Table

SPEC_VERSION = "1.0"
_TYPES = pa.array([None, *(f"io.tidemill.{op.label}" for op in Op)], pa.string())


def event_ids(block: Block, source: str) -> pa.Array:
    """`source:position:ordinal`, the event's identity (invariant 4)."""
    position, ordinal = block.batch.column("position"), block.batch.column("ordinal").cast(pa.string())
    return pc.binary_join_element_wise(source, position.cast(pa.string()), ordinal, ":")


def attributes(block: Block, source: str) -> dict[str, pa.Array | str]:
    """By row, or one text that all rows share. An event without a commit time has no `time`."""
    table = block.table
    return {
        "specversion": SPEC_VERSION,
        "id": event_ids(block, source),
        "source": source_uri(table, source),
        "type": _TYPES.take(block.batch.column("op")),
        "subject": table.full_name,
        "time": times(block.batch.column("commit_time")),
        "dataschema": schema_uri(table),
    }


def times(moments: pa.Array) -> pa.Array:
    """RFC 3339 in UTC with six digits. It knows the years 0 to 9999 only; what is outside has no time."""
    micros = moments.cast(pa.int64()).to_numpy(zero_copy_only=False) if not moments.null_count else None
    if micros is None:
        micros = moments.cast(pa.int64()).fill_null(np.iinfo(np.int64).min).to_numpy(zero_copy_only=False)
    fits = (micros >= -62_167_219_200_000_000) & (micros < 253_402_300_800_000_000)
    plain = pa.array(np.where(fits, micros, 0), pa.timestamp("us"), mask=~fits)
    return pc.strftime(plain, format="%Y-%m-%dT%H:%M:%SZ")


def source_uri(table: Table, source: str) -> str:
    """A URI reference: what a URI cannot hold is percent-encoded."""
    return f"/tidemill/{_escaped(source)}/{_escaped(table.database)}"


def schema_uri(table: Table) -> str:
    return f"urn:tidemill:schema:{table.fingerprint or 'unknown'}"


def _escaped(text: str) -> str:
    return urllib.parse.quote(text, safe="")
