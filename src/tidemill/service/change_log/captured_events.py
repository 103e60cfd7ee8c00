"""Captured events for people: a range, the last ones, and those that come, all with the same filters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from tidemill.errors import ConfigError
from tidemill.log.reader import LogReader
from tidemill.model.block import Op
from tidemill.model.position import Offset
from tidemill.model.tablenames import matches_name
from tidemill.service.change_log.event_lines import events
from tidemill.service.position.places import epoch_ms

_FIRST_LOOK, _WIDER = 4096, 8
OPS = tuple(op.label for op in (Op.INSERT, Op.UPDATE, Op.DELETE, Op.READ, Op.TRUNCATE, Op.DDL, Op.MESSAGE))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """`table` is a pattern with `*` and `?`; `op` one of `OPS`. None: any."""

    table: str | None = None
    op: str | None = None

    def __post_init__(self) -> None:
        if self.op is not None and self.op not in OPS:
            raise ConfigError(f'there is no op "{self.op}"', where="op", fix=f"There are: {', '.join(OPS)}.")

    def takes_table(self, name: str) -> bool:
        return self.table is None or matches_name(name, self.table)

    @property
    def only(self) -> Op | None:
        return Op[self.op.upper()] if self.op is not None else None


@dataclass(frozen=True, slots=True)
class NewEvents:
    """`lines` are (offset, JSON document); `lost` are those that were delivered and trimmed before they were read."""

    lines: list[tuple[Offset, str]]
    lost: int


def print_events(
    uri: str, source: str, first: Offset, last: Offset | None, wanted: EventFilter, limit: int
) -> Iterator[str]:
    """JSON documents, in order."""
    found = events(LogReader(uri), first, last, wanted.takes_table, source, wanted.only)
    return (line for _, line in islice(found, limit))


def recent_events(uri: str, source: str, wanted: EventFilter, limit: int) -> list[tuple[Offset, str]]:
    """The last events that the filter wants, in order. Looks back from the end, further where there are few."""
    reader = LogReader(uri)
    head, end = reader.head(), reader.tail().offset
    found: deque[tuple[Offset, str]] = deque()
    width = max(_FIRST_LOOK, limit)
    while end > head and len(found) < limit:
        start = max(head, end - width)
        window = deque(events(reader, start, end, wanted.takes_table, source, wanted.only), limit - len(found))
        found.extendleft(reversed(window))
        end, width = start, width * _WIDER
    return list(found)


def events_since(uri: str, time: str, where: str) -> Offset:
    """Where what was logged at or after the time begins. `ConfigError` for what is no time."""
    return LogReader(uri).offset_at(epoch_ms(time, where))


class EventTail:
    """What comes into a log, for who asks again and again. Not for several threads at once."""

    def __init__(self, uri: str, source: str, wanted: EventFilter) -> None:
        self._reader, self._source, self._wanted = LogReader(uri), source, wanted
        self.offset = self._reader.tail().offset
        """Everything before it was looked at; move it to begin somewhere else."""

    def read(self, limit: int, is_over: Callable[[], bool] = lambda: False) -> NewEvents:
        """At most `limit` events that the filter wants, of those that came since; none where `is_over`."""
        head, end = self._reader.head(), self._reader.tail().offset
        lost = max(0, min(head, end) - self.offset)
        begin = max(self.offset, head)
        if begin > end:  # it was made anew
            begin = head
        found: list[tuple[Offset, str]] = []
        while begin < end and len(found) < limit and not is_over():
            until = min(end, begin + _FIRST_LOOK)
            window = events(self._reader, begin, until, self._wanted.takes_table, self._source, self._wanted.only)
            found += islice(window, limit - len(found))
            begin = found[-1][0] + 1 if len(found) == limit else until
        self.offset = begin
        self._reader.unmap()
        return NewEvents(found, lost)
