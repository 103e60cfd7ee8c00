"""Where something stands in a change log, as operators name it: an offset, a time, a position of the source."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.config import Pipeline
from tidemill.errors import ConfigError, LogError
from tidemill.log.reader import LogReader
from tidemill.log.store import masked_uri
from tidemill.model.position import Offset, Ordering, Position

_TIME = "Write it as 2026-01-31T12:00:00Z; without a zone it is UTC."


def offset_of(pipeline: Pipeline, reader: LogReader, text: str, where: str) -> Offset:
    """The offset that `text` names; inside a transaction only if it is itself an offset.

    A time: what was logged at or after it stands at or after the offset. A position is the end of a transaction:
    everything up to it stands before the offset."""
    if text.isdecimal():
        return int(text)
    if (given := _timestamp(text)) is not None:
        return reader.offset_at(int(given.timestamp() * 1000))
    return _after_position(pipeline, reader, Position(text), where)


def transaction_before(reader: LogReader, offset: Offset) -> Offset:
    """The last end of a transaction at or before the offset."""
    for entry in reader.entries(offset):
        if entry.base <= offset < entry.base + entry.rows:
            ends = (entry.base + events for events, _ in entry.marks)
            return max((end for end in ends if end <= offset), default=entry.base)
        break
    return offset


def transaction_after(reader: LogReader, offset: Offset) -> Offset:
    """The first end of a transaction at or after the offset."""
    before = transaction_before(reader, offset)
    if before == offset:
        return offset
    entry = next(reader.entries(offset))
    return min(entry.base + events for events, _ in entry.marks if entry.base + events >= offset)


def epoch_ms(text: str, where: str) -> int:
    given = _timestamp(text)
    if given is None:
        raise ConfigError(f'"{text}" is not a time', where=where, fix=_TIME)
    return int(given.timestamp() * 1000)


def _timestamp(text: str) -> datetime | None:
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        return None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def _after_position(pipeline: Pipeline, reader: LogReader, position: Position, where: str) -> Offset:
    source = pipeline.build_source()

    def is_covered(mark: Position) -> bool:
        return source.compare(mark, position) in (Ordering.SAME, Ordering.BEFORE)

    head = reader.head()
    try:
        begins = reader.position_at(head)
        if begins and not is_covered(begins):
            raise LogError(
                f"{position} is before what the log holds, which begins after {begins}",
                where=masked_uri(pipeline.log_uri),
                fix="Choose a later place, or raise log.retention_seconds to keep more for the next time.",
            )
        reached = head
        for entry in reader.entries(head):
            for events, mark in entry.marks:
                if not is_covered(mark):
                    return reached
                reached = entry.base + events
        return reached
    except ConfigError as error:
        raise ConfigError(
            f'"{position}" is no offset, no time and no position of the source', where=where,
            fix=f"An offset is a number, see tidemill log ls. A time: {_TIME} A position: {error.fix}",
        ) from error  # fmt: skip
