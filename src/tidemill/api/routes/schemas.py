"""The tables that a pipeline has captured, as `tidemill schemas` shows them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from tidemill.api.access import Control, Name, Viewer
from tidemill.api.shapes import TableVersion
from tidemill.service.schema.tables import list_schemas

router = APIRouter(tags=["schemas"])


@router.get("/pipelines/{name}/schemas", summary="The tables it has captured")
def get_schemas(
    _: Viewer,
    control: Control,
    name: Name,
    table: Annotated[
        str | None, Query(max_length=500, description="All versions of this table.", examples=["public.orders"])
    ] = None,
) -> list[TableVersion]:
    """The newest version of each; with `table` every version of one, oldest first."""
    return [TableVersion(**asdict(each)) for each in list_schemas(control.pipeline(name), table)]
