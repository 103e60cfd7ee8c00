"""Whether everything is there that a pipeline needs, as `tidemill doctor` says."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from tidemill.api.access import Control, Name, Operator
from tidemill.api.shapes import CheckShape, DoctorShape
from tidemill.service import checks

router = APIRouter(tags=["doctor"])


@router.post("/pipelines/{name}/doctor", summary="Is everything there that it needs?")
def run_doctor(_: Operator, control: Control, name: Name) -> DoctorShape:
    """Asks source, sinks and stores. Changes nothing."""
    found = [CheckShape(subject=f"pipeline {name}", **asdict(each)) for each in checks.pipeline(control.pipeline(name))]
    return DoctorShape(ok=all(each.outcome != "fail" for each in found), checks=found)
