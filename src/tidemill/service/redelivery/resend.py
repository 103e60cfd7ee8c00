"""Sends dead letters to their sink again, one event at a time, in the order of their offsets.

The pipeline is stopped meanwhile: two writers would fence each other off or overtake each other. Later events of the
same key are at the sink already, so a record that arrives now stands after them. A sink that holds rows is not sent a
dead letter whose row has newer events (stream/superseded.py), unless the operator insists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidemill import registry
from tidemill.config import Pipeline
from tidemill.config.advice import fill_in
from tidemill.config.spec.sink import SinkSpec
from tidemill.contracts import BaseSink, Sink
from tidemill.dlq import DeadLetterRecord, DeadLetters
from tidemill.errors import ConfigError, TidemillError, is_retryable
from tidemill.log import LogReader, codec
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.service.position.positions import sink_positions
from tidemill.service.redelivery.event_chain import EventChain
from tidemill.service.run.ownership import lock_stopped_pipeline
from tidemill.service.schema.barriers import views_of
from tidemill.stream.lane.views import seen_by
from tidemill.stream.superseded import Watched, find_superseded_in, follow
from tidemill.stream.superseded import find_superseded as superseded_by_log

_SKIPPED = "the sink says that it has this event: if that is so, let the dead letter go with tidemill dlq purge"


@dataclass(frozen=True, slots=True)
class Redelivered:
    """What became of one record: its sink has it now, or there was an `error`, or it was `skipped` for a reason."""

    dead_letter: DeadLetterRecord
    error: str = ""
    skipped: str = ""


def block_of(dead_letter: DeadLetterRecord) -> Block:
    return codec.load(pa.py_buffer(dead_letter.payload))


def overtaken(pipeline: Pipeline, dead_letters: Sequence[DeadLetterRecord]) -> list[DeadLetterRecord]:
    """Those after which their sink has had later events."""
    reached = _read_reached(pipeline)
    return [dead_letter for dead_letter in dead_letters if reached.get(dead_letter.sink, 0) > dead_letter.offset + 1]


def holds_rows(pipeline: Pipeline, sink: str) -> bool:
    """Whether it keeps the current row of a key, as configured."""
    spec = _spec(pipeline, sink)
    kind: type[BaseSink[Any]] = registry.load("sinks", spec.type)
    return kind.capabilities_of(spec.config).upsert


def redeliver(
    pipeline: Pipeline, store: DeadLetters, dead_letters: Sequence[DeadLetterRecord], *, superseded: bool = False
) -> Iterator[Redelivered]:
    """Records that arrive are removed, others stay with their new reason. A sink that is away is asked once; what else
    there is for it stays as it is. With `superseded` records are sent although newer events of their rows are at the
    sink. Raises `AlreadyRunning` if the pipeline runs, `ConfigError` if it has not every sink that records are for;
    nothing is sent then."""
    names = dict.fromkeys(dead_letter.sink for dead_letter in dead_letters)
    specs = {name: _spec(pipeline, name) for name in names}
    with lock_stopped_pipeline(pipeline), closing(EventChain(pipeline)) as chain:
        for name, spec in specs.items():
            mine = [dead_letter for dead_letter in dead_letters if dead_letter.sink == name]
            reasons = (
                {} if superseded or not holds_rows(pipeline, name) else _find_superseded(pipeline, store, name, mine)
            )
            yield from (
                Redelivered(dead_letter, skipped=reasons[dead_letter.number])
                for dead_letter in mine
                if dead_letter.number in reasons
            )
            sent = [dead_letter for dead_letter in mine if dead_letter.number not in reasons]
            waiting = _Waiting(store, name, without={dead_letter.number for dead_letter in sent})
            with closing(pipeline.build_sink(spec)) as sink:
                for dead_letter in sent:
                    outcome, away = _send(pipeline, store, sink, dead_letter, waiting, chain)
                    yield outcome
                    if away:
                        break


def _find_superseded(
    pipeline: Pipeline, store: DeadLetters, sink: str, dead_letters: Sequence[DeadLetterRecord]
) -> dict[int, str]:
    """Why these are not sent. The log is asked as well: a batch that was under way when the pipeline ended may be at
    the sink although no checkpoint covers it, and it comes again; and records of a version that did not follow them
    are compared with as much as the log still has."""
    log = LogReader(pipeline.log_uri)
    head, tail = log.head(), log.tail().offset
    reached = _read_reached(pipeline).get(sink, head)
    reasons: dict[int, str] = {}
    doubts: dict[int, str] = {}
    begin = max(reached, head)
    tables: dict[str, Watched] = {}
    for number in [dead_letter.number for dead_letter in dead_letters]:
        dead_letter = store.dead_letter(number)  # anew: it may have been marked while the operator was asked
        entry = follow(store, dead_letter) if dead_letter is not None else None
        if dead_letter is None or entry is None:
            continue
        unknown = reached if dead_letter.followed_from is None else dead_letter.followed_from
        if dead_letter.superseded:
            reasons[number] = _reason(
                dead_letter.superseded == "wholly", dead_letter.superseded_by or 0, sink, dead_letter.table, pipeline
            )
        elif unknown > dead_letter.offset + 1:
            if not (head <= dead_letter.offset + 1 and unknown <= tail):
                doubts[number] = (
                    f"whether its row has newer events is not known: not all before {unknown} were compared"
                )
            begin = min(begin, max(dead_letter.offset, head))
        tables.setdefault(dead_letter.table, Watched()).add(entry)
    taken_out = {dead_letter.offset for dead_letter in store.dead_letters(sink=sink)}
    named = {dead_letter.number: dead_letter.table for dead_letter in dead_letters}
    for entry in superseded_by_log(tables, log, begin, tail, {sink: taken_out}):
        said = _reason(entry.wholly, entry.by or 0, sink, named[entry.number], pipeline)
        reasons.setdefault(entry.number, said)
    return doubts | reasons


def _reason(wholly: bool, by: Offset, sink: str, table: str, pipeline: Pipeline) -> str:
    if wholly:
        return f"superseded: event {by} is newer"
    compare = fill_in(f"`tidemill verify FILE --sink {sink} --table {table}`", pipeline)
    return (
        f"superseded in part: event {by} is newer, but did not bring all that the dead letter has. Whether the sink has"
        f" the row as the source does says {compare}; with --repair the row is sent again if not. Then purge the dead"
        " letter"
    )


def _read_reached(pipeline: Pipeline) -> dict[str, Offset]:
    return {at.sink: at.checkpoint.offset for at in sink_positions(pipeline) if at.checkpoint}


class _Waiting:
    """Records of a sink that stay where they are: what is sent now may be newer than they are."""

    def __init__(self, store: DeadLetters, sink: str, *, without: Collection[int]) -> None:
        self._store = store
        self._tables: dict[str, Watched] = {}
        for dead_letter, keys in store.open_dead_letters([sink]):
            if dead_letter.number not in without:
                self.add(dead_letter, keys)

    def add(self, dead_letter: DeadLetterRecord, keys: str = "") -> None:
        entry = follow(self._store, dead_letter, keys)
        if entry is not None:
            self._tables.setdefault(dead_letter.table, Watched()).add(entry)

    def passed(self, block: Block) -> None:
        waiting = self._tables.get(block.table.full_name, Watched())
        changed = {entry.number: entry for entry in find_superseded_in(block, waiting, {})}
        if changed:
            self._store.mark([entry.mark() for entry in changed.values()])


def _send(
    pipeline: Pipeline, store: DeadLetters, sink: Sink, dead_letter: DeadLetterRecord, waiting: _Waiting,
    chain: EventChain,
) -> tuple[Redelivered, bool]:  # fmt: skip
    whole = store.dead_letter(dead_letter.number)
    if whole is None:
        return Redelivered(dead_letter, "it is gone: somebody else replayed or purged it"), False
    block = block_of(whole)
    away = False
    try:
        captured = Delivery(
            pipeline.name, dead_letter.source, dead_letter.offset, dead_letter.offset + 1, 0, 1, lambda: iter([block]),
            redelivered=True, newest=newest_structure(pipeline, block.table.full_name),
        )  # fmt: skip
        given = seen_by(captured, views_of(pipeline, dead_letter.sink))
        made = [each for one in given.blocks() for each in chain.blocks(one)]
        newest = given.newest and chain.structure(given.newest)
        receipt = sink.write(replace(given, blocks=lambda: iter(made), newest=newest))
        error = _SKIPPED if receipt.skipped else ""
    except Exception as failure:  # noqa: BLE001  sinks bring errors of any library; only our own are sure to quote no value
        error = failure.what if isinstance(failure, TidemillError) else type(failure).__qualname__
        away = is_retryable(failure)
    if error:
        store.note_failure(dead_letter.number, error)
        waiting.add(dead_letter)
    else:
        waiting.passed(block)
        store.remove([dead_letter.number])
    return Redelivered(dead_letter, error), away


def newest_structure(pipeline: Pipeline, table: str) -> Table | None:
    """Of the table of this name, if the registry knows it."""
    found = pipeline.find_registry()
    if found is None:
        return None
    with closing(found) as schemas:
        return schemas.newest(table)


def _spec(pipeline: Pipeline, name: str) -> SinkSpec:
    for spec in pipeline.spec.sinks:
        if spec.config.id == name:
            return spec
    known = ", ".join(spec.config.id for spec in pipeline.spec.sinks)
    raise ConfigError(
        f'the dead letters are for sink "{name}", which the pipeline does not have any more',
        where=pipeline.file,
        fix=fill_in(
            f"Its sinks are: {known}. Give the sink its name back, or let them go:"
            f' "tidemill dlq purge FILE --sink {name}".',
            pipeline,
        ),
    )
