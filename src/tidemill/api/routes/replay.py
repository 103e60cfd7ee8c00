"""A part of the log delivered to a sink again, as `tidemill replay` does."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from tidemill.api.access import ByOperator, Control, Name
from tidemill.api.shapes import SinkName, TableNames
from tidemill.api.wire_shape import RequestShape, WireShape
from tidemill.service.redelivery.replay import plan_range, replay_range

router = APIRouter(tags=["replay"])

Place = Annotated[str, Field(max_length=200, description="An offset, a time (ISO 8601) or a position of the source.")]


class ReplayRequest(RequestShape):
    begin: Place = Field(alias="from", examples=["1000"])
    end: Place | None = Field(default=None, alias="to", examples=["2026-01-31T12:00:00Z"])
    sink: SinkName = None
    tables: TableNames = Field(default_factory=list)
    dry_run: bool = Field(default=False, description="Only say what it would mean.")


class RangeShape(WireShape):
    consequence: str
    sink: str
    start: int
    end: int
    events: int = Field(description="In the range.")
    delivered: int | None = Field(description="None on a dry run.")
    skipped: int | None = Field(description="The destination said that it has these.")
    dead_letters: int | None = Field(description="Left out: they wait for an operator.")


@router.post("/pipelines/{name}/replay", summary="Deliver a part of the log to a sink again")
def replay_log(control: Control, cause: ByOperator, name: Name, what: ReplayRequest) -> RangeShape:
    """The pipeline must be stopped; positions stay where they are. A sink that holds rows gets them back as they were
    at the end of the range."""
    pipeline = control.pipeline(name)
    intended = plan_range(pipeline, what.begin, what.end, sink=what.sink, tables=what.tables)
    done: dict[str, Any] = {"delivered": None, "skipped": None, "dead_letters": None}
    if not what.dry_run:
        control.audit(cause, "replay", name, intended.consequence)
        replayed = asdict(replay_range(pipeline, intended))
        done = {name: replayed[field] for name, field in zip(done, ("events", "skipped", "dead_letters"), strict=True)}
    return RangeShape(
        consequence=intended.consequence, sink=intended.sink, start=intended.start, end=intended.end,
        events=intended.events, **done,
    )  # fmt: skip
