"""Sends dead letters to their sink again, one event at a time, in the order of their offsets.

The pipeline is stopped meanwhile: two writers would fence each other off or overtake each other. Later events of the
same key are at the sink already, so a letter that arrives now stands behind them. A sink that holds rows is not sent a
letter whose row has newer events (stream/superseded.py), unless the operator insists.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from tidemill.config import Pipeline
from tidemill.config.spec import Sink as SinkSpec
from tidemill.contracts import Sink, SinkConfig
from tidemill.dlq import DeadLetters, Letter
from tidemill.errors import ConfigError, TidemillError, is_retryable
from tidemill.log import LogReader, codec
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.position import Offset
from tidemill.model.table import Table
from tidemill.schema.registry import SchemaRegistry
from tidemill.service.ownership import lock_stopped_pipeline
from tidemill.service.positions import sink_positions
from tidemill.stream.superseded import Watched, followed, superseded_in
from tidemill.stream.superseded import superseded as superseded_by_log

_SKIPPED = "the sink says that it has this event: if that is so, let the letter go with tidemill dlq purge"


@dataclass(frozen=True, slots=True)
class Redelivered:
    """What became of one letter: its sink has it now, or there was an `error`, or it was `skipped` for a reason."""

    letter: Letter
    error: str = ""
    skipped: str = ""


def block_of(letter: Letter) -> Block:
    return codec.load(pa.py_buffer(letter.payload))


def overtaken(pipeline: Pipeline, letters: Sequence[Letter]) -> list[Letter]:
    """Those behind which their sink has had later events."""
    reached = _reached(pipeline)
    return [letter for letter in letters if reached.get(letter.sink, 0) > letter.offset + 1]


def holds_rows(pipeline: Pipeline, sink: str) -> bool:
    """As its config says."""
    settings = _spec(pipeline, sink).config
    return isinstance(settings, SinkConfig) and settings.holds_rows()


def redeliver(
    pipeline: Pipeline, store: DeadLetters, letters: Sequence[Letter], *, superseded: bool = False
) -> Iterator[Redelivered]:
    """Letters that arrive are removed, others stay with their new reason. A sink that is away is asked once; what else
    there is for it stays as it is. With `superseded` letters are sent although newer events of their rows are at the
    sink. Raises `AlreadyRunning` if the pipeline runs, `ConfigError` if it has not every sink that letters are for;
    nothing is sent then."""
    names = dict.fromkeys(letter.sink for letter in letters)
    specs = {name: _spec(pipeline, name) for name in names}
    with lock_stopped_pipeline(pipeline):
        for name, spec in specs.items():
            mine = [letter for letter in letters if letter.sink == name]
            reasons = {} if superseded or not holds_rows(pipeline, name) else _superseded(pipeline, store, name, mine)
            yield from (
                Redelivered(letter, skipped=reasons[letter.number]) for letter in mine if letter.number in reasons
            )
            sent = [letter for letter in mine if letter.number not in reasons]
            waiting = _Waiting(store, name, without={letter.number for letter in sent})
            with closing(pipeline.build_sink(spec)) as sink:
                for letter in sent:
                    outcome, away = _send(pipeline, store, sink, letter, waiting)
                    yield outcome
                    if away:
                        break


def _superseded(pipeline: Pipeline, store: DeadLetters, sink: str, letters: Sequence[Letter]) -> dict[int, str]:
    """Why these are not sent. The log is asked as well: a batch that was under way when the pipeline ended may be at
    the sink although no checkpoint covers it, and it comes again; and letters of a version that did not follow them
    are compared with as much as the log still has."""
    log = LogReader(pipeline.log_uri)
    head, tail = log.head(), log.tail().offset
    reached = _reached(pipeline).get(sink, head)
    reasons: dict[int, str] = {}
    doubts: dict[int, str] = {}
    begin = max(reached, head)
    tables: dict[str, Watched] = {}
    for number in [letter.number for letter in letters]:
        letter = store.letter(number)  # anew: it may have been marked while the operator was asked
        entry = followed(store, letter) if letter is not None else None
        if letter is None or entry is None:
            continue
        unknown = reached if letter.followed_from is None else letter.followed_from
        if letter.superseded:
            reasons[number] = _reason(letter.superseded == "wholly", letter.superseded_by or 0)
        elif unknown > letter.offset + 1:
            if not (head <= letter.offset + 1 and unknown <= tail):
                doubts[number] = (
                    f"whether its row has newer events is not known: not all before {unknown} were compared"
                )
            begin = min(begin, max(letter.offset, head))
        tables.setdefault(letter.table, Watched()).add(entry)
    taken_out = {letter.offset for letter in store.letters(sink=sink)}
    for entry in superseded_by_log(tables, log, begin, tail, {sink: taken_out}):
        reasons.setdefault(entry.number, _reason(entry.wholly, entry.by or 0))
    return doubts | reasons


def _reason(wholly: bool, by: Offset) -> str:
    if wholly:
        return f"superseded: event {by} is newer"
    return (
        f"superseded in part: event {by} is newer, but did not bring all that the letter has. Copy the row from the "
        "source yourself"
    )


def _reached(pipeline: Pipeline) -> dict[str, Offset]:
    return {at.sink: at.checkpoint.offset for at in sink_positions(pipeline) if at.checkpoint}


class _Waiting:
    """Letters of a sink that stay where they are: what is sent now may be newer than they are."""

    def __init__(self, store: DeadLetters, sink: str, *, without: Collection[int]) -> None:
        self._store = store
        self._tables: dict[str, Watched] = {}
        for letter, keys in store.open_letters([sink]):
            if letter.number not in without:
                self.add(letter, keys)

    def add(self, letter: Letter, keys: str = "") -> None:
        entry = followed(self._store, letter, keys)
        if entry is not None:
            self._tables.setdefault(letter.table, Watched()).add(entry)

    def passed(self, block: Block) -> None:
        waiting = self._tables.get(block.table.full_name, Watched())
        changed = {entry.number: entry for entry in superseded_in(block, waiting, {})}
        if changed:
            self._store.mark([entry.mark() for entry in changed.values()])


def _send(
    pipeline: Pipeline, store: DeadLetters, sink: Sink, letter: Letter, waiting: _Waiting
) -> tuple[Redelivered, bool]:
    whole = store.letter(letter.number)
    if whole is None:
        return Redelivered(letter, "it is gone: somebody else replayed or purged it"), False
    block = block_of(whole)
    delivery = Delivery(
        pipeline.name, letter.source, letter.offset, letter.offset + 1, 0, 1, lambda: iter([block]), redelivered=True,
        newest=_newest(pipeline, block.table),
    )  # fmt: skip
    away = False
    try:
        receipt = sink.write(delivery)
        error = _SKIPPED if receipt.skipped else ""
    except Exception as failure:  # noqa: BLE001  sinks bring errors of any library; only our own are sure to quote no value
        error = failure.what if isinstance(failure, TidemillError) else type(failure).__qualname__
        away = is_retryable(failure)
    if error:
        store.tried(letter.number, error)
        waiting.add(letter)
    else:
        waiting.passed(block)
        store.remove([letter.number])
    return Redelivered(letter, error), away


def _newest(pipeline: Pipeline, table: Table) -> Table | None:
    path = pipeline.state_path / "registry.sqlite"
    if not path.exists():
        return None
    with closing(SchemaRegistry(path, create=False)) as schemas:
        return schemas.newest(table.full_name)


def _spec(pipeline: Pipeline, name: str) -> SinkSpec:
    for spec in pipeline.spec.sinks:
        if getattr(spec.config, "id", "") == name:
            return spec
    known = ", ".join(str(getattr(spec.config, "id", "")) for spec in pipeline.spec.sinks)
    raise ConfigError(
        f'the letters are for sink "{name}", which the pipeline does not have any more',
        where=pipeline.file,
        fix=f"Its sinks are: {known}. Give the sink its name back, or let the letters go: tidemill dlq purge"
        f" {pipeline.file} --sink {name}",
    )
