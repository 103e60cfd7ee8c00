"""CloudEvents 1.0: the attributes of an event, from what every event has. docs/events.md says what they mean."""

from __future__ import annotations

import urllib.parse

import pyarrow as pa
import pyarrow.compute as pc

from tidemill.model.block import Block, Op
from tidemill.model.identity import event_ids
from tidemill.model.table import Table

SPEC_VERSION = "1.0"
_YEAR_0, _YEAR_10000 = -62_167_219_200_000_000, 253_402_300_800_000_000
_IN_HEADER = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_TYPES = pa.array([None, *(f"io.tidemill.{op.label}" for op in Op)], pa.string())


def attributes(block: Block, source: str) -> dict[str, pa.Array | str]:
    """By row, or one text that all rows share. Texts, except `time`, which is null where an event has none."""
    table = block.table
    return {
        "specversion": SPEC_VERSION,
        "id": event_ids(block, source),
        "source": source_uri(table, source),
        "type": _TYPES.take(block.batch.column("op")),
        "subject": table.full_name,
        "time": _known_times(block.batch.column("commit_time")),
        "dataschema": schema_uri(table),
    }


def header(text: str) -> str:
    """A value as the bindings of HTTP and NATS want it (3.1.3.2 of both): spaces, double quotes, percent signs and all
    beyond ASCII percent-encoded. The binding of Kafka takes UTF-8 as it is."""
    return urllib.parse.quote(text, safe=_IN_HEADER)


def format_timestamps(timestamps: pa.Array) -> pa.Array:
    """RFC 3339 in UTC with six digits. Events of one transaction share their timestamp, so each is written once."""
    distinct = timestamps.dictionary_encode()
    plain = distinct.dictionary.cast(pa.timestamp("us"))
    return pc.strftime(plain, format="%Y-%m-%dT%H:%M:%SZ").take(distinct.indices)


def _known_times(timestamps: pa.Array) -> pa.Array:
    """RFC 3339 knows the years 0 to 9999; what is outside has no time."""
    micros = timestamps.cast(pa.int64())
    fits = pc.and_(pc.greater_equal(micros, _YEAR_0), pc.less(micros, _YEAR_10000))
    return timestamps if pc.all(fits).as_py() else pc.if_else(fits, timestamps, pa.scalar(None, timestamps.type))


def source_uri(table: Table, source: str) -> str:
    """A URI reference: what a URI cannot hold is percent-encoded."""
    return f"/tidemill/{_escape(source)}/{_escape(table.database)}"


def schema_uri(table: Table) -> str:
    return f"urn:tidemill:schema:{table.fingerprint or 'unknown'}"


def _escape(text: str) -> str:
    return urllib.parse.quote(text, safe="")
