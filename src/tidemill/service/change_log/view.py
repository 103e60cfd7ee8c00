"""What is inside a change log, for people: appends and counts. Reads only; safe while the pipeline runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice

from tidemill.config import Pipeline
from tidemill.log.entry import Entry
from tidemill.log.reader import LogReader
from tidemill.log.store import masked_uri
from tidemill.model.position import Offset
from tidemill.service.maintenance.moves import read_delivered
from tidemill.service.position.positions import sink_positions


@dataclass(frozen=True, slots=True)
class AppendView:
    """One or more whole source transactions. `written_at` in milliseconds since 1970, `through` the last position,
    `barriers` the kinds of what is a boundary of batches here."""

    offset: Offset
    events: int
    bytes: int
    written_at: int
    barrier: bool
    barriers: list[str]
    transactions: int
    through: str | None
    tables: dict[str, int]
    segments: list[str]


@dataclass(frozen=True, slots=True)
class TableCount:
    table: str
    events: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SinkLag:
    sink: str
    offset: Offset
    undelivered_events: int


@dataclass(frozen=True, slots=True)
class LogStats:
    """`delivered` is the log's own mark; None where nothing was delivered yet. Times in milliseconds since 1970."""

    uri: str
    head: Offset
    tail: Offset
    position: str
    delivered: Offset | None
    undelivered_events: int
    appends: int
    barriers: int
    oldest: int | None
    newest: int | None
    tables: tuple[TableCount, ...]
    sinks: tuple[SinkLag, ...]

    @property
    def bytes(self) -> int:
        return sum(table.bytes for table in self.tables)


def list_appends(uri: str, first: Offset, limit: int) -> list[AppendView]:
    return [_append(entry) for entry in islice(LogReader(uri).entries(first), limit)]


def count(uri: str, pipeline: Pipeline | None) -> LogStats:
    """Counts everything that the log holds, by table. `pipeline` None: how far its sinks are is not known."""
    reader = LogReader(uri)
    head, tail = reader.head(), reader.tail()
    rows: Counter[str] = Counter()
    size: Counter[str] = Counter()
    appends = barriers = 0
    oldest = newest = None
    for entry in reader.entries(head):
        appends += 1
        barriers += bool(entry.barrier)
        oldest = entry.written_at if oldest is None else oldest
        newest = entry.written_at
        for block in entry.blocks:
            rows[block.table] += block.rows
            size[block.table] += block.size
    mark = read_delivered(uri)
    return LogStats(
        masked_uri(uri), head, tail.offset, tail.position, mark.offset if mark else None,
        max(0, tail.offset - (max(mark.offset, head) if mark else head)),
        appends, barriers, oldest, newest,
        tuple(TableCount(name, events, size[name]) for name, events in rows.most_common()),
        tuple(
            SinkLag(at.sink, at.checkpoint.offset if at.checkpoint else head, at.lag(tail.offset, head))
            for at in (sink_positions(pipeline) if pipeline else ())
        ),
    )  # fmt: skip


def _append(entry: Entry) -> AppendView:
    tables: Counter[str] = Counter()
    for block in entry.blocks:
        tables[block.table] += block.rows
    return AppendView(
        entry.base, entry.rows, entry.bytes, entry.written_at, bool(entry.barrier), list(entry.barrier.kinds),
        len(entry.marks), entry.marks[-1][1] if entry.marks else None, dict(tables),
        sorted({block.segment for block in entry.blocks}),
    )  # fmt: skip
