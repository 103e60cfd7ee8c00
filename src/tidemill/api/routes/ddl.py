"""Schema changes on their way to the sinks, and decisions on them, as `tidemill ddl` has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from tidemill.api.access import ByOperator, Control, Name, Operator, Viewer
from tidemill.api.pages import Before, link_next
from tidemill.api.shapes import PlannedChangeShape, SchemaChangeShape
from tidemill.contracts.schema_change_store import Decision
from tidemill.service.cause import Cause
from tidemill.service.schema import changes as schema_changes
from tidemill.service.server.control import ControlPlane

router = APIRouter(tags=["schema changes"])

Number = Annotated[int, Path(ge=1, le=2**63 - 1, description="As the list has it.", examples=[1])]


@router.get("/pipelines/{name}/ddl", summary="Its schema changes, and who decided on them")
def list_changes(
    _: Viewer,
    control: Control,
    name: Name,
    request: Request,
    response: Response,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
    before: Before = None,
) -> list[SchemaChangeShape]:
    """Newest first. If there are more, the header `Link` has the address of the next page."""
    found = schema_changes.list_changes(control.pipeline(name), limit + 1, before=before)
    if len(found) > limit:
        link_next(request, response, before=found[limit - 1].number)
    return [SchemaChangeShape(**schema_changes.describe_change(each, whole=True)) for each in found[:limit]]


@router.get("/pipelines/{name}/ddl/plan", summary="What sinks would do about the changes that wait")
def plan_changes(_: Operator, control: Control, name: Name) -> list[PlannedChangeShape]:
    """By offset. Asks the sinks; changes nothing."""
    return [PlannedChangeShape.of(each) for each in schema_changes.plan_changes(control.pipeline(name))]


@router.get("/pipelines/{name}/ddl/{number}", summary="One schema change")
def show_change(_: Viewer, control: Control, name: Name, number: Number) -> SchemaChangeShape:
    """With what each sink would run, or ran."""
    found = schema_changes.show_change(control.pipeline(name), number)
    return SchemaChangeShape(**schema_changes.describe_change(found, whole=True))


@router.post("/pipelines/{name}/ddl/{number}/approve", summary="Let a schema change pass")
def approve_change(control: Control, cause: ByOperator, name: Name, number: Number) -> SchemaChangeShape:
    """Every sink makes it, and rows go on. A decision is taken once: a second one is refused with 409."""
    return _decide(control, cause, name, number, Decision.APPROVED)


@router.post("/pipelines/{name}/ddl/{number}/reject", summary="Refuse a schema change")
def reject_change(control: Control, cause: ByOperator, name: Name, number: Number) -> SchemaChangeShape:
    """The pipeline stops there, or goes on with the old structure, as `ddl.on_reject` of its document says."""
    return _decide(control, cause, name, number, Decision.REJECTED)


@router.post("/pipelines/{name}/ddl/{number}/apply", summary="Say that a schema change was made by hand")
def apply_change(control: Control, cause: ByOperator, name: Name, number: Number) -> SchemaChangeShape:
    """No statement is run for it, and rows go on."""
    return _decide(control, cause, name, number, Decision.MADE)


def _decide(control: ControlPlane, cause: Cause, name: str, number: int, decision: Decision) -> SchemaChangeShape:
    found = schema_changes.decide(control.pipeline(name), number, decision, cause, control.store)
    return SchemaChangeShape(**schema_changes.describe_change(found, whole=True))
