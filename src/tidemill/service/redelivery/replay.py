"""Delivers a range of the change log to one sink again: what it lost, or what a new sink never had.

The log is an event store for as long as it keeps what was delivered (`log.retention_seconds`, `retention_bytes`). The
pipeline is stopped meanwhile: two writers would fence each other off. Positions stay where they are, and an
effectively-once sink takes the events because they come as redelivered (`model.delivery.Delivery`), or refuses. They
pass the processors that the document has now.

A sink that has no position of its own begins at the pipeline's checkpoint: a range up to there, replayed before its
first run, makes it begin in the past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from tidemill.config import Pipeline
from tidemill.contracts import Sink
from tidemill.dlq import DeadLetters
from tidemill.errors import ConfigError, DeliveryError, Poisoned, TidemillError, is_retryable
from tidemill.log import BlockRef, LogReader
from tidemill.log.copying import find_excused
from tidemill.log.requeued import is_kept_back
from tidemill.log.store import masked_uri
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery, Receipt
from tidemill.model.position import Offset
from tidemill.model.quarantine import Quarantine
from tidemill.model.tablenames import matches_name
from tidemill.retry import RetryPolicy
from tidemill.service.position.places import offset_of, transaction_after, transaction_before
from tidemill.service.position.positions import sink_positions
from tidemill.service.redelivery.event_chain import EventChain
from tidemill.service.redelivery.resend import holds_rows, newest_structure
from tidemill.service.run.ownership import lock_stopped_pipeline
from tidemill.service.schema.barriers import quarantines_of, views_of
from tidemill.stream.lane.views import seen_by

_BATCH_EVENTS, _BATCH_BYTES = 20_000, 32 << 20
_RETRY = RetryPolicy(seconds=30.0)


@dataclass(frozen=True, slots=True)
class RangeReplay:
    """`[start, end)` to one sink, of tables that match one of `tables`; without any, of all. `reached` is how far the
    sink is. `keeps_rows`: it holds the current row of a key."""

    sink: str
    start: Offset
    end: Offset
    events: int
    reached: Offset
    tables: tuple[str, ...]
    keeps_rows: bool

    @property
    def consequence(self) -> str:
        """Empty where there is nothing to do."""
        if not self.events:
            return ""
        what = (
            f'{self.events:,} events, offsets {self.start:,} to {self.end - 1:,}, are delivered to sink "{self.sink}"'
        )
        if self.keeps_rows and self.end < self.reached:
            what += f". It has events up to {self.reached - 1:,}: rows go back to how they were before {self.end:,}"
        return what


@dataclass(frozen=True, slots=True)
class Replayed:
    """All before `through` is at the sink. `skipped`: the destination said that it has these. `dead_letters`: events
    that wait for an operator, which are left out."""

    through: Offset
    events: int = 0
    bytes: int = 0
    skipped: int = 0
    dead_letters: int = 0


def plan_range(
    pipeline: Pipeline, begin: str, end: str | None, *, sink: str | None, tables: Sequence[str] = ()
) -> RangeReplay:
    """Changes nothing. Whole transactions: the range is widened to where they begin and end. Without `end` it goes as
    far as the sink is; what comes after that is delivered by `run`."""
    spec = pipeline.choose_sink(sink)
    name = spec.config.id
    reader = LogReader(pipeline.log_uri)
    reached = next((at.checkpoint.offset for at in sink_positions(pipeline) if at.sink == name and at.checkpoint), None)
    if reached is None:
        raise ConfigError(
            f'nothing was delivered yet: sink "{name}" gets all that the log holds by itself', where=pipeline.file,
            fix="Run the pipeline.",
        )  # fmt: skip
    first = offset_of(pipeline, reader, begin, "--from")
    last = reached if end is None else offset_of(pipeline, reader, end, "--to")
    head, tail = reader.head(), reader.tail().offset
    if not head <= first <= tail:
        raise ConfigError(
            f"the log does not have offset {first}: it holds {head} to {tail}", where=masked_uri(pipeline.log_uri),
            fix="Choose a place in that range, or raise log.retention_seconds to keep more for the next time.",
        )  # fmt: skip
    if last > reached:
        raise ConfigError(
            f'sink "{name}" is at offset {reached}: what follows is delivered to it by `run`', where="--to",
            fix=f"Leave --to out, or choose at most {reached}.",
        )  # fmt: skip
    if last < first:
        raise ConfigError(f"--to ({last}) is before --from ({first})", where=pipeline.file, fix="Turn them around.")
    start, stop = transaction_before(reader, first), transaction_after(reader, last)
    waiting = quarantines_of(pipeline)
    known = {ref.table for ref in _refs(reader, start, stop, (), waiting)}
    if unknown := [pattern for pattern in tables if not any(matches_name(table, pattern) for table in known)]:
        raise ConfigError(
            f'the range has no event of "{unknown[0]}"', where="--table",
            fix=f"It has events of: {', '.join(sorted(known)) or 'no table'}.",
        )  # fmt: skip
    some = _refs(reader, start, stop, tables, waiting)
    count = sum(reader.read(ref).rows for ref in some) if tables or waiting else stop - start
    return RangeReplay(name, start, stop, count, reached, tuple(tables), holds_rows(pipeline, name))


def replay_range(pipeline: Pipeline, intended: RangeReplay) -> Replayed:
    """Raises `AlreadyRunning` if the pipeline runs. An error says from where to go on."""
    spec = pipeline.choose_sink(intended.sink)
    with (
        lock_stopped_pipeline(pipeline),
        closing(pipeline.build_sink(spec)) as sink,
        closing(EventChain(pipeline)) as chain,
    ):
        left_out = _dead_letters(pipeline, intended)
        reader, at = LogReader(pipeline.log_uri), Replayed(intended.start, dead_letters=len(left_out))
        while at.through < intended.end:
            planned = reader.plan(at.through, max_events=_BATCH_EVENTS, max_bytes=_BATCH_BYTES)
            try:
                at = _batch(pipeline, sink, chain, reader, intended, left_out, at, min(planned, intended.end))
            except TidemillError as error:
                error.fix = (
                    f"{error.fix}\nWhat is before offset {at.through} was delivered: go on with --from {at.through}."
                )
                raise
            except Exception as error:
                raise DeliveryError(
                    f'sink "{intended.sink}" did not take the events from {at.through} on: {type(error).__qualname__}',
                    where=pipeline.file, fix=f"Mend it, then go on with --from {at.through}.",
                ) from error  # fmt: skip
    return at


def _batch(
    pipeline: Pipeline,
    sink: Sink,
    chain: EventChain,
    reader: LogReader,
    intended: RangeReplay,
    left_out: set[Offset],
    at: Replayed,
    end: Offset,
) -> Replayed:
    events, size, skipped = at.events, at.bytes, at.skipped
    views = views_of(pipeline, intended.sink)
    for delivery in _deliveries(pipeline, reader, intended, at.through, end):
        given = seen_by(delivery.without(left_out) if left_out else delivery, views)
        with chain.processed(given) as made:
            receipt = _write(sink, made, reader)
        events, size, skipped = events + receipt.events, size + receipt.bytes, skipped + receipt.skipped
    return Replayed(end, events, size, skipped, at.dead_letters)


def _write(sink: Sink, delivery: Delivery, reader: LogReader) -> Receipt:
    """Without what was left out the first time, too: updates that lack columns of rows that a copy brings later."""
    while True:
        try:
            return _RETRY.run(partial(sink.write, delivery), worth=is_retryable)
        except Poisoned as error:
            late = find_excused(reader.read_copying(), delivery, error.lacking) if error.lacking else set()
            if not late:
                raise
            delivery = delivery.without(late)


def _deliveries(
    pipeline: Pipeline, reader: LogReader, intended: RangeReplay, start: Offset, end: Offset
) -> Iterator[Delivery]:
    """A sink that keeps tables is told the newest structure of each, and gets them one after the other; others get all
    of them in the order of their offsets."""
    refs = list(_refs(reader, start, end, intended.tables, quarantines_of(pipeline)))
    if not intended.keeps_rows:
        if refs:
            yield _delivery(pipeline, reader, refs, start, end)
        return
    for table in dict.fromkeys(ref.table for ref in refs):
        yield _delivery(pipeline, reader, [ref for ref in refs if ref.table == table], start, end, table=table)


def _delivery(
    pipeline: Pipeline, reader: LogReader, refs: Sequence[BlockRef], start: Offset, end: Offset, table: str = ""
) -> Delivery:
    def blocks() -> Iterator[Block]:
        return (reader.read(ref) for ref in refs)

    return Delivery(
        pipeline.name, pipeline.source_id, start, end, 0, 1, blocks, redelivered=True,
        newest=newest_structure(pipeline, table) if table else None,
    )  # fmt: skip


def _refs(
    reader: LogReader, start: Offset, end: Offset, tables: Sequence[str], quarantines: Sequence[Quarantine]
) -> Iterator[BlockRef]:
    """Without what waits in quarantine, or waited and stands in the log a second time."""
    if start >= end:
        return
    for ref in reader.refs(start, end):
        if is_kept_back(ref, quarantines):
            continue
        if not tables or any(matches_name(ref.table, pattern) for pattern in tables):
            yield ref


def _dead_letters(pipeline: Pipeline, intended: RangeReplay) -> set[Offset]:
    """Offsets of events that the sink could not take: `tidemill dlq replay` sends those."""
    if not pipeline.dlq_path.exists():
        return set()
    with closing(DeadLetters(pipeline.dlq_path, pipeline.spec.dlq)) as store:
        waiting = {record.offset for record in store.dead_letters(sink=intended.sink)}
    return {offset for offset in waiting if intended.start <= offset < intended.end}
