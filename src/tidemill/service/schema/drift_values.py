"""What events of a drift hold, for who asks: read from the log by their offsets, never kept.

A drift itself is where it was seen and how often (`schema/drift.py`). Values are rows' own, so that they are shown to
who may read those: the state directory's owner, or an operator of a server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

import orjson

from tidemill.config.pipeline import Pipeline
from tidemill.formats.json import JsonFormat
from tidemill.log.reader import LogReader
from tidemill.model.position import Offset
from tidemill.schema.drift import Finding
from tidemill.schema.sensing import shapes

_MOST_VALUES = 10
"""Of one event: a path may go through a list."""


def example_values(pipeline: Pipeline, finding: Finding) -> list[dict[str, Any]]:
    """Of each example: where it is, the row's key, and the values at the drift's place, none where the row has nothing
    there. `in_log` is false of an event that the log does not keep any more."""
    reader = LogReader(pipeline.log_uri)
    head, tail = reader.head(), reader.tail().offset
    found = []
    for spot in finding.seen.examples:
        row = _read(reader, spot.offset, finding.table) if head <= spot.offset < tail else None
        key, after = row or ({}, {})
        values = list(islice(_values(after, finding.subject), _MOST_VALUES))
        found.append({**asdict(spot), "in_log": row is not None, "key": key, "values": values})
    return found


def _read(reader: LogReader, offset: Offset, table: str) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Key and row of the event, as they stand in a JSON event; None if another event is there: a log that was made anew
    counts from its checkpoint on."""
    for ref in reader.refs(offset, offset + 1):
        block = reader.read(ref).slice(offset, offset + 1)
        if ref.table == table and block.rows:
            [line] = JsonFormat(envelope="native").encode(block, "").to_pylist()
            after = orjson.loads(line)["after"]
            return {name: after.get(name) for name in block.table.key}, after
    return None


def _values(row: Mapping[str, Any], subject: str) -> Iterator[Any]:
    """`subject` is a column, or a column and a path in its documents. A column's name may have a slash too."""
    for column in row:
        if subject == column:
            yield row[column]
        elif subject.startswith(f"{column}/"):
            yield from _at(row[column], subject.removeprefix(f"{column}/").split("/"))


def _at(value: Any, path: Sequence[str]) -> Iterator[Any]:
    if not path:
        yield value
        return
    part, rest = path[0], path[1:]
    if part == shapes.ELEMENT and isinstance(value, list):
        inner: Iterable[Any] = value
    elif part == shapes.VALUE and isinstance(value, dict):
        inner = value.values()
    else:
        name = shapes.unescape(part)
        inner = [value[name]] if isinstance(value, dict) and name in value else []
    for each in inner:
        yield from _at(each, rest)
