"""Captured events, as `tidemill log cat` prints them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response

from tidemill.api.access import Control, Name, Operator
from tidemill.service.change_log import view as log_view

router = APIRouter(tags=["log"])

_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events as JSON, in order.",
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}},
    }
}


@router.get("/pipelines/{name}/log", summary="Captured events", responses=_EVENTS)
def read_log(
    _: Operator,
    control: Control,
    name: Name,
    first: Annotated[
        int | None, Query(alias="from", ge=0, le=2**63 - 1, description="First offset; else the last events.")
    ] = None,
    last: Annotated[int | None, Query(alias="to", ge=0, le=2**63 - 1, description="Before this offset.")] = None,
    table: Annotated[str | None, Query(max_length=500, description="Only this table; * and ? match.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 20,
) -> Response:
    """In order, with their values. Safe while the pipeline runs."""
    pipeline = control.pipeline(name)
    uri, source = pipeline.log_uri, pipeline.source_id
    if first is None:
        lines = log_view.recent_events(uri, source, table, limit)
    else:
        lines = log_view.print_events(uri, source, first, last, table, limit)
    return Response(f"[{','.join(lines)}]", media_type="application/json")
