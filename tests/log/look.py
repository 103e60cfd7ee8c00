"""What tests ask of a log: its events as plain values."""

from __future__ import annotations

from typing import Any

from tidemill.log import LogReader
from tidemill.model.position import Offset


def events(reader: LogReader, start: Offset | None = None, end: Offset | None = None) -> list[dict[str, Any]]:
    """Every event of the range as a dictionary with its table, in the order of offsets."""
    start = reader.head() if start is None else start
    end = reader.tail().offset if end is None else end
    found = []
    for ref in reader.refs(start, end):
        block = reader.read(ref)
        found += [{"table": block.table.name, **row} for row in block.batch.to_pylist()]
    return sorted(found, key=lambda event: int(event["offset"]))


def offsets(reader: LogReader, start: Offset | None = None, end: Offset | None = None) -> list[Offset]:
    start = reader.head() if start is None else start
    end = reader.tail().offset if end is None else end
    blocks = [reader.read(ref) for ref in reader.refs(start, end)]
    return sorted(offset for block in blocks for offset in block.batch.column("offset").to_pylist())
