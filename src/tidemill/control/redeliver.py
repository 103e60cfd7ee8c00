"""Sends dead letters to their sink again, one event at a time, in the order of their offsets.

The pipeline is stopped meanwhile: two writers would fence each other off or overtake each other. Later events of the
same key are at the sink already, so a letter that arrives now stands behind them; where the sink keeps versions (made
of the offset) the newer row stays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from tidemill.component import Sink
from tidemill.config import Pipeline
from tidemill.config.spec import Sink as SinkSpec
from tidemill.control.ownership import lock_stopped_pipeline
from tidemill.control.positions import sink_positions
from tidemill.dlq import DeadLetters, Letter
from tidemill.errors import ConfigError, TidemillError, is_retryable
from tidemill.log import codec
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery

_SKIPPED = "the sink says that it has this event: if that is so, let the letter go with tidemill dlq purge"


@dataclass(frozen=True, slots=True)
class Redelivered:
    """What became of one letter; `error` is empty if its sink has it now."""

    letter: Letter
    error: str = ""


def block_of(letter: Letter) -> Block:
    return codec.load(pa.py_buffer(letter.payload))


def overtaken(pipeline: Pipeline, letters: Sequence[Letter]) -> list[Letter]:
    """Those behind which their sink has had later events."""
    reached = {at.sink: at.checkpoint.offset for at in sink_positions(pipeline) if at.checkpoint}
    return [letter for letter in letters if reached.get(letter.sink, 0) > letter.offset + 1]


def redeliver(pipeline: Pipeline, store: DeadLetters, letters: Sequence[Letter]) -> Iterator[Redelivered]:
    """Letters that arrive are removed, others stay with their new reason. A sink that is away is asked once; what else
    there is for it stays as it is. Raises `AlreadyRunning` if the pipeline runs, `ConfigError` if it has not every sink
    that letters are for; nothing is sent then."""
    names = dict.fromkeys(letter.sink for letter in letters)
    specs = {name: _spec(pipeline, name) for name in names}
    with lock_stopped_pipeline(pipeline):
        for name, spec in specs.items():
            with closing(pipeline.build_sink(spec)) as sink:
                for letter in (letter for letter in letters if letter.sink == name):
                    outcome, away = _send(pipeline, store, sink, letter)
                    yield outcome
                    if away:
                        break


def _send(pipeline: Pipeline, store: DeadLetters, sink: Sink, letter: Letter) -> tuple[Redelivered, bool]:
    whole = store.letter(letter.number)
    if whole is None:
        return Redelivered(letter, "it is gone: somebody else replayed or purged it"), False
    block = block_of(whole)
    delivery = Delivery(
        pipeline.name, letter.source, letter.offset, letter.offset + 1, 0, 1, lambda: iter([block]), redelivered=True
    )
    away = False
    try:
        receipt = sink.write(delivery)
        error = _SKIPPED if receipt.skipped else ""
    except Exception as failure:  # noqa: BLE001  sinks bring errors of any library; only our own are sure to quote no value
        error = failure.what if isinstance(failure, TidemillError) else type(failure).__qualname__
        away = is_retryable(failure)
    if error:
        store.tried(letter.number, error)
    else:
        store.remove([letter.number])
    return Redelivered(letter, error), away


def _spec(pipeline: Pipeline, name: str) -> SinkSpec:
    for spec in pipeline.spec.sinks:
        if getattr(spec.config, "id", "") == name:
            return spec
    known = ", ".join(str(getattr(spec.config, "id", "")) for spec in pipeline.spec.sinks)
    raise ConfigError(
        f'the letters are for sink "{name}", which the pipeline does not have any more',
        where=pipeline.file,
        fix=f"Its sinks are: {known}. Give the sink its name back, or purge the letters: tidemill dlq purge.",
    )
