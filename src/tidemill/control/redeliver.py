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
from tidemill.control.move import stopped
from tidemill.dlq import DeadLetters, Letter
from tidemill.errors import ConfigError, TidemillError, is_retryable
from tidemill.log import codec
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.stream.policy import policy_of


@dataclass(frozen=True, slots=True)
class Redelivered:
    """What became of one letter; `error` is empty if its sink has it now."""

    letter: Letter
    error: str = ""


def block_of(letter: Letter) -> Block:
    return codec.load(pa.py_buffer(letter.payload))


def overtaken(pipeline: Pipeline, letters: Sequence[Letter]) -> list[Letter]:
    """Those behind which their sink has had later events."""
    policy = policy_of(pipeline)
    known = {sink for group in policy.groups for sink in group.sinks}
    with closing(pipeline.build_checkpoints()) as store:
        kept = {group.key: store.load(group.key) for group in policy.groups}
    reached = {sink: kept[policy.group_of(sink).key] for sink in known}
    return [
        letter for letter in letters if (at := reached.get(letter.sink)) is not None and at.offset > letter.offset + 1
    ]


def redeliver(pipeline: Pipeline, store: DeadLetters, letters: Sequence[Letter]) -> Iterator[Redelivered]:
    """Letters that arrive are removed, others stay with their new reason. A sink that is away is asked once; what else
    there is for it stays as it is. Raises `LogError` if the pipeline runs."""
    with stopped(pipeline.log_uri):
        for name in dict.fromkeys(letter.sink for letter in letters):
            with closing(_sink(pipeline, name)) as sink:
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
        error = "the sink skipped it: it says that it has this event, or later ones" if receipt.skipped else ""
    except Exception as failure:  # noqa: BLE001  sinks bring errors of any library; only our own are sure to quote no value
        error = failure.what if isinstance(failure, TidemillError) else type(failure).__qualname__
        away = is_retryable(failure)
    if error:
        store.tried(letter.number, error)
    else:
        store.remove([letter.number])
    return Redelivered(letter, error), away


def _sink(pipeline: Pipeline, name: str) -> Sink:
    for spec in pipeline.spec.sinks:
        if getattr(spec.config, "id", "") == name:
            return pipeline.build_sink(spec)
    known = ", ".join(str(getattr(spec.config, "id", "")) for spec in pipeline.spec.sinks)
    raise ConfigError(
        f'the letters are for sink "{name}", which the pipeline does not have any more',
        where=pipeline.file,
        fix=f"Its sinks are: {known}. Give the sink its name back, or purge the letters: tidemill dlq purge.",
    )
