"""The server itself: health, version, what can be configured, who changed what."""

from __future__ import annotations

import platform
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import Field

from tidemill import __version__
from tidemill.api.access import Admin, ByServerAdmin, Control, Viewer
from tidemill.api.pages import Before, link_next
from tidemill.api.shapes import AuditShape, LogLevelShape, ReadyPipeline, ReadyShape, VersionShape
from tidemill.api.wire_shape import WireShape
from tidemill.service import components
from tidemill.telemetry import events

router = APIRouter(tags=["server"])


class CapabilitiesShape(WireShape):
    """Of a sink's type; as it is configured it may do less."""

    delivery: str = Field(
        description="What a replay does there: docs/delivery.md has the tiers.",
        examples=[
            "File names come from the batch's offsets and are published by a rename; a replay writes the same files."
        ],
    )
    schema_changes: list[str] = Field(
        description="Kinds of change of a source's table that it makes at the destination too.",
        examples=[["add_column"]],
    )
    one_lane: bool = Field(description="All of a batch comes in one lane, in order.")
    upsert: bool = Field(description="It keeps the current row of each key.")


class ComponentShape(WireShape):
    family: str = Field(examples=["sinks"])
    name: str = Field(examples=["kafka"])
    about: str
    formats: list[str]
    installed: bool = Field(description="Whether what it needs can be imported.")
    capabilities: CapabilitiesShape | None = Field(description="Of a sink.")
    json_schema: dict[str, Any] | None = Field(description="Of its `config:`.")


@router.get("/healthz", response_class=PlainTextResponse, summary="Is the process there?")
async def healthz() -> str:
    """`ok`, from the first second on, whatever the pipelines do. Needs no token."""
    return "ok"


@router.get(
    "/readyz", response_model=ReadyShape, response_model_exclude_none=True, summary="Are the pipelines looked after?",
    responses={503: {"model": ReadyShape, "description": "Starting or stopping."}},
)  # fmt: skip
async def readyz(request: Request, control: Control) -> Response:
    """`ready` once every wanted pipeline was started, or its failure is known. With a token also how each is."""
    status = "stopping" if control.stopping else "ready" if control.ready else "starting"
    shown = None
    if request.state.principal is not None:
        shown = [
            ReadyPipeline(name=each.name, status=each.state) for each in control.views(request.state.principal.scope)
        ]
    body = ReadyShape(status=status, pipelines=shown).model_dump(exclude_none=True)
    return JSONResponse(body, 200 if status == "ready" else 503)


@router.get("/version", summary="What runs here?")
def show_version(_: Viewer) -> VersionShape:
    """Of Tidemill, Python and Spark."""
    return VersionShape(version=__version__, python=platform.python_version(), spark=version("pyspark"))


@router.get("/log-level", summary="How much the server logs")
def show_log_level(_: Viewer) -> LogLevelShape:
    """What is below it is not logged."""
    return LogLevelShape.model_validate({"level": events.level()})


@router.put("/log-level", summary="Log more, or less")
def set_log_level(control: Control, cause: ByServerAdmin, to: LogLevelShape) -> LogLevelShape:
    """At once for the server; for capture processes when they start next. A restart of the server forgets it."""
    control.audit(cause, "set log level", "", to.level)
    events.set_level(to.level)
    return to


@router.get("/components", summary="Which sources, sinks, formats and stores are there?")
def list_components(
    _: Viewer,
    family: Annotated[str | None, Query(max_length=50, description="Only this family.", examples=["sinks"])] = None,
) -> list[ComponentShape]:
    """Each with the JSON Schema of its `config:`."""
    return [_component(each) for each in components.list_components(family)]


@router.get("/components/{family}/{component}", summary="One component and its JSON Schema")
def show_component(
    _: Viewer,
    family: Annotated[
        str, Path(max_length=50, description="sources, processors, formats, sinks or checkpoints.", examples=["sinks"])
    ],
    component: Annotated[str, Path(max_length=100, description="Its `type` in documents.", examples=["files"])],
) -> ComponentShape:
    """What it is for, what it can do, and what its `config:` may have."""
    return _component(components.describe(family, component))


@router.get("/audit", summary="Who changed what?")
def audit(
    principal: Admin,
    control: Control,
    request: Request,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
    before: Before = None,
) -> list[AuditShape]:
    """Newest first. If there are more, the header `Link` has the address of the next page. A token for a tenant or a
    pipeline sees changes of the pipelines that it is for."""
    found = control.audit_trail(principal.scope, limit + 1, before)
    if len(found) > limit:
        link_next(request, response, before=found[limit - 1].number)
    return [AuditShape(**asdict(each)) for each in found[:limit]]


def _component(info: components.ComponentInfo) -> ComponentShape:
    can = CapabilitiesShape(**asdict(info.capabilities)) if info.capabilities is not None else None
    return ComponentShape(
        family=info.family, name=info.name, about=info.about, formats=list(info.formats), installed=info.installed,
        json_schema=info.schema, capabilities=can,
    )  # fmt: skip
