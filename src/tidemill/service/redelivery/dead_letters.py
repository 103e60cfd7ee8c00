"""What an operator does about dead letters: look at them, have them delivered again, or let them go.

Works also after dead letters were switched off: what is there can be read, replayed and purged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tidemill.config import Pipeline
from tidemill.dlq import DeadLetterRecord, DeadLetters
from tidemill.errors import ConfigError
from tidemill.formats.json import JsonFormat
from tidemill.service.redelivery.resend import Redelivered, block_of, holds_rows, overtaken, redeliver

__all__ = ["DeadLetterRecord", "Redelivered"]  # what callers are given


@dataclass(frozen=True, slots=True)
class Listing:
    """`counts` of all that there are, by sink."""

    records: tuple[DeadLetterRecord, ...]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """`late` of the `records` are older than what their sink has, and would be sent all the same."""

    records: tuple[DeadLetterRecord, ...]
    late: int
    superseded: bool

    @property
    def consequence(self) -> str:
        """Empty where nobody need be asked."""
        if not self.late:
            return ""
        what = f"{self.late} of {len(self.records)} dead letters are older than what their sink has: "
        what += "each arrives after later events of its key"
        return f"{what}. Rows may go back to an older state" if self.superseded else what


@dataclass(frozen=True, slots=True)
class Purge:
    pipeline: str
    records: tuple[DeadLetterRecord, ...]

    @property
    def consequence(self) -> str:
        """How many, of which sinks, and for how many of them nothing newer is known to be there. Empty for none."""
        if not self.records:
            return ""
        by_sink = Counter(record.sink for record in self.records)
        sinks = ", ".join(f"{count} to {sink}" for sink, count in sorted(by_sink.items()))
        lacking = sum(record.superseded != "wholly" for record in self.records)
        what = f"{len(self.records)} events of {self.pipeline} are never delivered ({sinks})"
        return f"{what}; {lacking} of them are not superseded by newer ones" if lacking else what


def list_records(pipeline: Pipeline, sink: str | None, limit: int, *, after: tuple[int, int] | None = None) -> Listing:
    """By offset, the oldest event first, then by number; those `after` an offset and number. Safe while the pipeline
    runs."""
    with _open(pipeline) as store:
        return Listing(tuple(store.dead_letters(sink=sink, after=after, limit=limit)), store.count())


def read_record(pipeline: Pipeline, number: int) -> tuple[DeadLetterRecord, bytes]:
    """One record and its event as a JSON document, which has the row's values."""
    with _open(pipeline) as store:
        record = store.dead_letter(number)
    if record is None:
        raise _unknown([number])
    (event,) = JsonFormat(envelope="native").encode(block_of(record), record.source).to_pylist()
    return record, event


def plan_replay(pipeline: Pipeline, ids: Sequence[int], sink: str | None, *, superseded: bool) -> Replay:
    """Changes nothing. No `ids`: all of them."""
    with _open(pipeline) as store:
        records = _choose(store, ids, sink)
    rows = {name: holds_rows(pipeline, name) for name in {record.sink for record in records}}
    late = sum(superseded or not rows[record.sink] for record in overtaken(pipeline, records))
    return Replay(records, late, superseded)


def replay(pipeline: Pipeline, intended: Replay) -> list[Redelivered]:
    """Raises `AlreadyRunning` if the pipeline runs. What is not in the answer was not tried: its sink is away."""
    with _open(pipeline) as store:
        return list(redeliver(pipeline, store, intended.records, superseded=intended.superseded))


def plan_purge(pipeline: Pipeline, ids: Sequence[int], sink: str | None, *, superseded: bool) -> Purge:
    """Changes nothing. With `superseded` only those that newer events at the sink replaced wholly."""
    with _open(pipeline) as store:
        chosen = _choose(store, ids, sink)
    return Purge(pipeline.name, tuple(each for each in chosen if each.superseded == "wholly" or not superseded))


def purge(pipeline: Pipeline, intended: Purge) -> int:
    """How many were removed, for ever. Safe while the pipeline runs."""
    with _open(pipeline) as store:
        return store.remove([record.number for record in intended.records])


@contextmanager
def _open(pipeline: Pipeline) -> Iterator[DeadLetters]:
    if not pipeline.dlq_path.exists() and not pipeline.spec.dlq.enabled:
        raise ConfigError(
            "this pipeline keeps no dead letters", where=pipeline.file, fix="Add `dlq: {}` to its spec to have them."
        )
    store = DeadLetters(pipeline.dlq_path, pipeline.spec.dlq)
    try:
        yield store
    finally:
        store.close()


def _choose(store: DeadLetters, ids: Sequence[int], sink: str | None) -> tuple[DeadLetterRecord, ...]:
    records = store.dead_letters(sink=sink, numbers=ids)
    unknown = set(ids) - {record.number for record in records}
    if unknown:
        raise _unknown(sorted(unknown))
    return tuple(records)


def _unknown(numbers: Sequence[int]) -> ConfigError:
    listed = ", ".join(map(str, numbers))
    return ConfigError(f"there is no such dead letter: {listed}", fix="tidemill dlq ls shows those that are there.")
