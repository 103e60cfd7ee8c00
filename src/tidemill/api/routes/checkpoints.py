"""How far a pipeline has come, and moving it, as `tidemill checkpoints` does."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from tidemill.api.access import ByOperator, Control, Name, Viewer
from tidemill.api.shapes import CheckpointShape, CheckpointsShape, MoveRequest, MoveShape, SinkCheckpoint
from tidemill.service.maintenance import moves
from tidemill.service.position import positions

router = APIRouter(tags=["checkpoints"])


@router.get("/pipelines/{name}/checkpoints", summary="How far it has come")
def get_checkpoints(_: Viewer, control: Control, name: Name) -> CheckpointsShape:
    """Of the pipeline, and of each sink with a position of its own."""
    pipeline = control.pipeline(name)
    return CheckpointsShape(
        pipeline=name,
        checkpoint=_checkpoint(positions.checkpoint_of(pipeline)),
        sinks=[
            SinkCheckpoint(sink=at.sink, own=at.own, checkpoint=_checkpoint(at.checkpoint))
            for at in positions.sink_positions(pipeline)
        ],
    )


@router.post("/pipelines/{name}/checkpoints", summary="Move it: deliver events again, or step over them")
def set_checkpoint(control: Control, cause: ByOperator, name: Name, to: MoveRequest) -> MoveShape:
    """The pipeline must be stopped. `dry_run` says what a move would mean."""
    pipeline = control.pipeline(name)
    intended = moves.plan(pipeline, offset=to.offset, since=to.since, position=None, sink=to.sink)
    stored = None
    if not to.dry_run:
        control.audit(cause, "set checkpoint", name, intended.consequence)
        stored = moves.move(pipeline, intended, note=f"{cause.actor} {cause.reason}".strip())
    return MoveShape(
        consequence=intended.consequence, replayed=intended.replayed, skipped=intended.skipped,
        checkpoint=_checkpoint(stored),
    )  # fmt: skip


def _checkpoint(checkpoint: Any) -> CheckpointShape | None:
    if checkpoint is None:
        return None
    return CheckpointShape(
        offset=checkpoint.offset, position=str(checkpoint.position), version=checkpoint.version,
        saved_at=checkpoint.saved_at, note=checkpoint.note,
    )  # fmt: skip
