"""Schemas inferred from events, and drift, as `tidemill sensing` and `tidemill drift` show them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from tidemill.api.access import Control, Name, Operator, Viewer
from tidemill.service.schema import sensing
from tidemill.service.schema.drift_values import example_values

router = APIRouter(tags=["sensing"])

Table = Annotated[str, Path(max_length=500, description="As the list has it.", examples=["public.orders"])]
Below = Annotated[bool, Query(description="Also those under their threshold.")]


@router.get("/pipelines/{name}/sensing/schemas", summary="The tables whose events were looked at")
def list_inferred(_: Viewer, control: Control, name: Name) -> list[dict[str, Any]]:
    """How many events of each were seen and looked at; without columns and values."""
    return [each.summary() for each in sensing.inferred_schemas(control.pipeline(name))]


@router.get("/pipelines/{name}/sensing/schemas/{table}", summary="A table as its events show it")
def show_inferred(_: Operator, control: Control, name: Name, table: Table) -> dict[str, Any]:
    """Ranges and enumerations, where the document asks for them, show values."""
    return sensing.inferred_schema(control.pipeline(name), table).describe()


@router.get("/pipelines/{name}/sensing/schemas/{table}/json-schema", summary="Its rows as JSON Schema 2020-12")
def show_json_schema(_: Operator, control: Control, name: Name, table: Table) -> dict[str, Any]:
    """As its events are, not as the source declares them."""
    return sensing.export_json_schema(control.pipeline(name), table)


@router.get("/pipelines/{name}/sensing/stats", summary="How much was looked at")
def show_statistics(_: Viewer, control: Control, name: Name) -> dict[str, Any]:
    """Of all tables and of each: events seen, events sampled, structures kept."""
    return sensing.statistics(control.pipeline(name))


@router.get("/pipelines/{name}/drift", summary="Events that are not as declared")
def list_drift(_: Viewer, control: Control, name: Name, below: Below = False) -> list[dict[str, Any]]:
    """Without values."""
    return [sensing.describe_finding(each) for each in sensing.drifts(control.pipeline(name), below=below)]


@router.get("/pipelines/{name}/drift/values", summary="The same, with values of the examples")
def show_drift_values(_: Operator, control: Control, name: Name, below: Below = False) -> list[dict[str, Any]]:
    """Read from the log, by offset; they are not kept. An example that the log does not have any more has none."""
    pipeline = control.pipeline(name)
    return [
        sensing.describe_finding(each) | {"examples": example_values(pipeline, each)}
        for each in sensing.drifts(pipeline, below=below)
    ]
