"""Where each sink of a pipeline stands, from its checkpoint store: for `checkpoints`, `log stats` and `recover`."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from tidemill.config import Pipeline
from tidemill.errors import ConfigError
from tidemill.model.delivery import Checkpoint, key_of
from tidemill.model.position import Offset
from tidemill.stream.position.commit_policy import policy_of
from tidemill.stream.position.ledger import is_own


@dataclass(frozen=True, slots=True)
class SinkPosition:
    """`own` is False where the sink moves with the pipeline's checkpoint, or has not begun and will begin there."""

    sink: str
    checkpoint: Checkpoint | None
    own: bool

    def lag(self, tail: Offset, head: Offset) -> int:
        return max(0, tail - max(self.checkpoint.offset if self.checkpoint else 0, head))


def sink_positions(pipeline: Pipeline) -> list[SinkPosition]:
    """In the order of the document."""
    policy = policy_of(pipeline)
    with closing(pipeline.build_checkpoints()) as store:
        leading = store.load(pipeline.name)
        found: list[SinkPosition] = []
        for spec in pipeline.spec.sinks:
            sink = spec.config.id
            group = policy.group_of(sink)
            kept = None if group.leads else store.load(group.key)
            own = kept is not None and is_own(kept)
            found.append(SinkPosition(sink, kept if own else leading, own))
        return found


def key_of_move(pipeline: Pipeline, sink: str | None, *, afresh: bool = False) -> str:
    """Which position an operator means to move: the pipeline's, or a sink's own; `ConfigError` where it has none."""
    policy = policy_of(pipeline)
    if sink is None:
        if not policy.groups[0].leads and not afresh:
            raise ConfigError(
                "with a quorum each sink has its own position, and the pipeline's checkpoint follows from them",
                where=pipeline.file,
                fix="Name a sink with --sink.",
            )
        return pipeline.name
    found = {position.sink: position for position in sink_positions(pipeline)}
    if sink not in found:
        raise ConfigError(f'no sink is called "{sink}"', where=pipeline.file, fix=f"There are: {', '.join(found)}.")
    key = key_of(pipeline.name, sink)
    with closing(pipeline.build_checkpoints()) as store:
        own = store.load(key)
    if policy.group_of(sink).leads and (own is None or not is_own(own)):
        raise ConfigError(
            f'sink "{sink}" moves with the pipeline\'s checkpoint', where=pipeline.file, fix="Leave --sink out."
        )
    return key


def checkpoint_of(pipeline: Pipeline) -> Checkpoint | None:
    """The pipeline's own; None where nothing was delivered yet."""
    with closing(pipeline.build_checkpoints()) as store:
        return store.load(pipeline.name)


def past_checkpoints(pipeline: Pipeline, limit: int, sink: str | None = None) -> list[Checkpoint]:
    """Newest first, as many as the store keeps; of one `sink` that has its own position."""
    with closing(pipeline.build_checkpoints()) as store:
        return list(store.history(key_of(pipeline.name, sink) if sink else pipeline.name, limit))
