"""The rules every store upholds before it writes: compare-and-set, and never backwards."""

from __future__ import annotations

from dataclasses import replace

from tidemill.errors import CheckpointConflict
from tidemill.model.clock import utc_now
from tidemill.model.delivery import Checkpoint


def succeed(
    current: Checkpoint | None, checkpoint: Checkpoint, *, expect: int, force: bool, pipeline: str
) -> Checkpoint:
    """The checkpoint as it is to be stored after `current`: numbered and dated, or `CheckpointConflict`. It is
    `current` itself where that is this very save, whose answer was lost: nothing is left to be written.

    The caller holds the store's lock between reading `current` and writing the answer.
    """
    version = current.version if current else 0
    if current and current.answers(checkpoint, expect):
        return current
    if version != expect and not (current and current.is_of_same_writer(checkpoint, expect)):
        raise CheckpointConflict(
            f"the checkpoint is at version {version}, not at {expect} as expected",
            where=f'pipeline "{pipeline}"',
            fix="Another process saved it in between: make sure that one process runs this pipeline, then start again.",
        )
    if current and checkpoint.offset < current.offset and not force:
        raise CheckpointConflict(
            f"the checkpoint would move backwards, from offset {current.offset} to {checkpoint.offset}",
            where=f'pipeline "{pipeline}"',
            fix='If that is meant, stop the pipeline and use "tidemill checkpoints set".',
        )
    return replace(checkpoint, version=version + 1, saved_at=utc_now())
