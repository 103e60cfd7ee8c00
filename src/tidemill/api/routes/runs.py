"""Runs of pipelines that have a schedule."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from tidemill.api.access import ByOperator, Control, Name, Viewer
from tidemill.api.shapes import ErrorShape
from tidemill.api.wire_shape import WireShape
from tidemill.service.schedule.values import ScheduledRun

router = APIRouter(tags=["runs"])


class RunShape(WireShape):
    """One run. Times are empty where it has not come to that."""

    id: str = Field(examples=["orders/2026-01-31T12:00:00+00:00"])
    pipeline: str
    state: str = Field(description="queued, running, done, stopped by an operator, or failed.", examples=["done"])
    slot: str = Field(
        description="The time that the cron meant; empty where somebody asked for the run.",
        examples=["2026-01-31T12:00:00+00:00"],
    )
    actor: str = Field(description="`schedule`, or who asked for it.")
    queued: str
    started: str
    ended: str
    events: int | None = Field(description="Delivered; known when it has ended.")
    attempts: int | None = Field(description="Starts of the pipeline in it: more than one after failures.")
    recoveries: int = Field(description="How often a server ended in the middle of it and another start went on.")
    error: ErrorShape | None

    @classmethod
    def of(cls, run: ScheduledRun) -> RunShape:
        return cls(**{**asdict(run), "error": ErrorShape.of(run.error)})


@router.get("/pipelines/{name}/runs", summary="Its runs, if it has a schedule")
def list_runs(
    _: Viewer,
    control: Control,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=200, description="How many at most.")] = 20,
) -> list[RunShape]:
    """Newest first; those that wait in the queue too."""
    return [RunShape.of(each) for each in control.runs(name, limit)]


@router.post("/pipelines/{name}/runs", status_code=201, summary="Run it now")
def run_now(control: Control, cause: ByOperator, name: Name) -> RunShape:
    """Beside its schedule. While a run is queued or goes on, none is added: the answer is that one. With
    `Idempotency-Key` a repeated request gets the first answer again."""
    return RunShape.of(control.run_now(name, cause))
