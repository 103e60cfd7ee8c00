"""Snapshots: the tables of a pipeline copied while it runs, as `tidemill snapshot` does."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter
from pydantic import Field

from tidemill.api.access import ByOperator, Control, Name, Operator, Viewer
from tidemill.api.shapes import CopiedTable, TableNames
from tidemill.api.wire_shape import RequestShape, WireShape
from tidemill.config import Pipeline
from tidemill.errors import AccessRefused
from tidemill.service.cause import Cause
from tidemill.service.server.tokens import Role
from tidemill.service.snapshot import requests as snapshot_requests
from tidemill.service.snapshot.requests import SnapshotStatus

router = APIRouter(tags=["snapshots"])


class SnapshotShape(WireShape):
    id: int
    why: str
    state: str = Field(
        description="waiting for the pipeline to run, running, paused, done, cancelled or failed.", examples=["running"]
    )
    began: str
    ended: str
    where: str
    tables: list[CopiedTable]

    @classmethod
    def of(cls, status: SnapshotStatus) -> SnapshotShape:
        return cls(**status.as_data())


class SnapshotStart(RequestShape):
    tables: TableNames = Field(default_factory=list)
    where: str = Field(
        default="",
        max_length=2000,
        description="An SQL condition of the source: only such rows of one table. Needs the role admin.",
        examples=["id > 1000"],
    )


@router.get("/pipelines/{name}/snapshots", summary="Its last snapshots")
def list_snapshots(_: Viewer, control: Control, name: Name) -> list[SnapshotShape]:
    """Newest first, each with how far its tables are."""
    return [SnapshotShape.of(each) for each in snapshot_requests.status(control.pipeline(name))]


@router.post("/pipelines/{name}/snapshots", status_code=201, summary="Copy its tables")
def start_snapshot(
    control: Control, cause: ByOperator, principal: Operator, name: Name, what: SnapshotStart
) -> SnapshotShape:
    """As soon as the pipeline runs and earlier snapshots are over. Changes go on meanwhile."""
    if what.where and not principal.role.covers(Role.ADMIN):
        raise AccessRefused(
            "a condition is SQL that runs at the source", where="where", fix="Leave it out, or use an admin's token."
        )
    pipeline = control.pipeline(name)
    control.audit(cause, "start snapshot", name, ", ".join(what.tables))
    return SnapshotShape.of(snapshot_requests.start(pipeline, what.tables, what.where))


@router.post("/pipelines/{name}/snapshots/pause", summary="Read no more chunks until it is resumed")
def pause_snapshot(control: Control, cause: ByOperator, name: Name) -> SnapshotShape:
    """The snapshot that is under way; changes go on."""
    return _change(control.pipeline(name), control, cause, "pause snapshot", snapshot_requests.pause)


@router.post("/pipelines/{name}/snapshots/resume", summary="Go on where the snapshot was paused")
def resume_snapshot(control: Control, cause: ByOperator, name: Name) -> SnapshotShape:
    """Chunks that were read already are not read again."""
    return _change(control.pipeline(name), control, cause, "resume snapshot", snapshot_requests.resume)


@router.post("/pipelines/{name}/snapshots/cancel", summary="End the snapshot that is under way")
def cancel_snapshot(control: Control, cause: ByOperator, name: Name) -> SnapshotShape:
    """Rows that were not copied yet stay missing at the destinations."""
    return _change(control.pipeline(name), control, cause, "cancel snapshot", snapshot_requests.cancel)


def _change(
    pipeline: Pipeline, control: Control, cause: Cause, action: str, change: Callable[[Pipeline], SnapshotStatus]
) -> SnapshotShape:
    changed = SnapshotShape.of(change(pipeline))
    control.audit(cause, action, pipeline.name)
    return changed
