"""Documents and lifecycle of pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from tidemill.api.access import Admin, ByAdmin, ByOperator, Control, IfMatch, Name, Operator, Viewer, versions
from tidemill.api.pages import link_next
from tidemill.api.shapes import PipelineShape, StatusShape, TransitionShape, ValidShape
from tidemill.config import DocumentError
from tidemill.config.notes import notes
from tidemill.config.posted import read_posted
from tidemill.errors import ConfigError
from tidemill.service.run.record import transitions_of
from tidemill.service.server.managed import PipelineView

router = APIRouter(tags=["pipelines"])

_DOCUMENT = {
    "metadata": {"name": "orders", "labels": {"team": "shop"}},
    "spec": {
        "source": {"type": "postgres", "config": {"id": "shop", "dsn": "${SHOP_DSN}", "tables": ["public.orders"]}},
        "sinks": [{"type": "files", "config": {"id": "lake", "path": "/srv/lake/orders"}}],
    },
}
_OBJECT = {"type": "object"}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _OBJECT, "example": _DOCUMENT},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}
_PATCH_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            kind: {"schema": _OBJECT, "example": {"spec": {"batch": {"max_events": 1000}}}}
            for kind in ("application/merge-patch+json", "application/json")
        },
    }
}


@router.get("/pipelines", summary="All pipelines")
def list_pipelines(
    principal: Viewer,
    control: Control,
    request: Request,
    response: Response,
    state: Annotated[
        str | None, Query(max_length=20, description="Only those in this state.", examples=["failed"])
    ] = None,
    label: Annotated[
        list[str] | None,
        Query(
            max_length=20,
            description="Only those with this label: team=shop. May be repeated.",
            examples=[["team=shop"]],
        ),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
    after: Annotated[str, Query(max_length=100, description="Those whose names follow this one.")] = "",
) -> list[PipelineShape]:
    """By name. If there are more, the header `Link` has the address of the next page."""
    labels = dict(_label(each) for each in label or ())
    found = [
        each
        for each in control.views(principal.scope)
        if each.name > after and state in (None, each.state) and labels.items() <= dict(each.labels).items()
    ]
    if len(found) > limit:
        link_next(request, response, after=found[limit - 1].name)
    return [PipelineShape.of(each) for each in found[:limit]]


@router.post("/pipelines", status_code=201, summary="Create a pipeline", openapi_extra=_BODY)
def create_pipeline(
    control: Control,
    principal: Admin,
    cause: ByAdmin,
    request: Request,
    response: Response,
    start: Annotated[bool, Query(description="Start it at once.")] = True,
) -> PipelineShape:
    """From a document in JSON or YAML, as a file has it. A start that fails leaves it there, `failed`, with its error.
    With `Idempotency-Key` a repeated request gets the first answer again."""
    view = control.create(_document(request), cause, start=start, scope=principal.scope)
    response.headers["Location"] = f"/pipelines/{view.name}"
    return _shape(view, response)


@router.get("/pipelines/{name}", summary="One pipeline")
def get_pipeline(_: Viewer, control: Control, name: Name, response: Response) -> PipelineShape:
    """The ETag is the version of its document."""
    return _shape(control.view(name), response)


@router.patch("/pipelines/{name}", summary="Change a part of its document", openapi_extra=_PATCH_BODY)
def patch_pipeline(
    control: Control, principal: Admin, cause: ByAdmin, name: Name, request: Request, response: Response,
    if_match: IfMatch = None,
) -> PipelineShape:  # fmt: skip
    """A JSON merge patch (RFC 7396): null removes a key, a list replaces a list. The result is checked, and the
    pipeline restarted. If it cannot start, the document from before is put back and started, and the answer is 409."""
    patch = read_posted(_text(request), json=True)
    changed = control.patch(name, patch, cause, expect=versions(if_match), scope=principal.scope)
    return _shape(changed, response)


@router.put("/pipelines/{name}", summary="Replace its document", openapi_extra=_BODY)
def put_pipeline(
    control: Control, principal: Admin, cause: ByAdmin, name: Name, request: Request, response: Response,
    if_match: IfMatch = None,
) -> PipelineShape:  # fmt: skip
    """As PATCH, with the whole document. One that changes nothing restarts nothing."""
    changed = control.replace(name, _document(request), cause, expect=versions(if_match), scope=principal.scope)
    return _shape(changed, response)


@router.delete("/pipelines/{name}", status_code=204, summary="Stop and forget a pipeline")
def delete_pipeline(control: Control, cause: ByAdmin, name: Name, if_match: IfMatch = None) -> None:
    """Its state directory stays: created again under its name, it goes on where it was."""
    control.delete(name, cause, expect=versions(if_match))


# Each returns when it is done. What the pipeline's state does not allow is refused with 409 and what to do instead.


@router.post("/pipelines/{name}/start", summary="Start it, also after a failure")
def start_pipeline(control: Control, cause: ByOperator, name: Name, response: Response) -> PipelineShape:
    """What runs goes on; what is paused is resumed."""
    return _shape(control.start(name, cause), response)


@router.post("/pipelines/{name}/pause", summary="Pause it")
def pause_pipeline(control: Control, cause: ByOperator, name: Name, response: Response) -> PipelineShape:
    """Capture and delivery end after what is under way; its position and its state directory are kept."""
    return _shape(control.pause(name, cause), response)


@router.post("/pipelines/{name}/resume", summary="Resume it after a pause")
def resume_pipeline(control: Control, cause: ByOperator, name: Name, response: Response) -> PipelineShape:
    """It goes on exactly where it was."""
    return _shape(control.resume(name, cause), response)


@router.post("/pipelines/{name}/stop", summary="Stop it")
def stop_pipeline(control: Control, cause: ByOperator, name: Name, response: Response) -> PipelineShape:
    """After the batches under way. What is captured and not delivered yet is delivered after the next start."""
    return _shape(control.stop(name, cause), response)


@router.post("/pipelines/{name}/restart", summary="Stop it and start it")
def restart_pipeline(control: Control, cause: ByOperator, name: Name, response: Response) -> PipelineShape:
    """Whatever its state."""
    return _shape(control.restart(name, cause), response)


@router.post("/pipelines/{name}/drain", summary="Deliver what was captured, then stop")
def drain_pipeline(
    control: Control,
    cause: ByOperator,
    name: Name,
    response: Response,
    seconds: Annotated[float, Query(ge=0, le=3600, description="At most so long.")] = 30.0,
) -> PipelineShape:
    """What is not delivered when the time is over is delivered after the next start."""
    return _shape(control.drain(name, cause, seconds=seconds), response)


@router.get("/pipelines/{name}/status", summary="How it does: lag in bytes, events and seconds")
def get_status(_: Viewer, control: Control, name: Name) -> StatusShape:
    """Also of a pipeline that does not run: as it was seen last."""
    return StatusShape.of(control.view(name))


@router.get("/pipelines/{name}/transitions", summary="Its changes of state: who, when, why")
def list_transitions(
    _: Viewer,
    control: Control,
    name: Name,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 20,
) -> list[TransitionShape]:
    """Newest first."""
    return [TransitionShape.of(each) for each in transitions_of(control.pipeline(name), limit)]


@router.post("/validate", summary="Check a document", openapi_extra=_BODY)
def validate_document(
    principal: Operator,
    control: Control,
    request: Request,
    instead_of: Annotated[
        str | None, Query(max_length=100, description="The pipeline that it would replace.", examples=["orders"])
    ] = None,
) -> ValidShape:
    """What it resolves to, defaults included, secrets and the values of variables masked. Changes nothing and connects
    to nothing."""
    if instead_of is not None and not principal.scope.is_whole:
        control.check_scope(principal.scope, instead_of)
    data = _document(request)
    used = control.values_used(data)
    try:
        pipeline = control.validate(data, instead_of=instead_of, scope=principal.scope)
    except DocumentError as error:
        raise DocumentError.of(
            replace(each, what=used.hide_in_text(each.what), fix=used.hide_in_text(each.fix)) for each in error.problems
        ) from None
    principal.scope.check_document(pipeline.name, pipeline.tenant)
    shown = {**pipeline.mask_secrets(), "notes": [what for what, _ in notes(pipeline)]}
    return ValidShape(**used.hide(shown))


def _shape(view: PipelineView, response: Response) -> PipelineShape:
    response.headers["ETag"] = f'"{view.version}"'
    return PipelineShape.of(view)


def _document(request: Request) -> Mapping[str, Any]:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    return read_posted(_text(request), json=kind == "application/json")


def _text(request: Request) -> str:
    body: bytes = request.state.body
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("the body is not UTF-8", fix=f"Byte {error.start} is wrong.") from error


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f'"{text}" is not a label', where="label", fix="Write it as name=value.")
    return name, value
