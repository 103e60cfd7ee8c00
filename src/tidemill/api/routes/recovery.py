"""The way out of a lost position, as `tidemill recover` has it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter
from pydantic import Field

from tidemill.api.access import ByOperator, Control, Name
from tidemill.api.wire_shape import RequestShape, WireShape
from tidemill.service.server.lifecycle import RecoveredPipeline, RecoveryMode

router = APIRouter(tags=["pipelines"])


class RecoverRequest(RequestShape):
    mode: Literal["snapshot", "accept_gap"] = Field(
        description="`snapshot` copies all captured tables again: nothing stays missing. `accept_gap` goes on without "
        "what changed until now.",
        examples=["snapshot"],
    )


class RecoveryShape(WireShape):
    """Capture goes on after the position `to`, at the offset; `waiting` are events from before the gap that each sink
    still gets first."""

    pipeline: str
    mode: str = Field(examples=["snapshot"])
    consequence: str = Field(
        description="What was decided by asking for it; it is in the audit trail.",
        examples=["changes of orders after 0/16B3748 and before now are never captured"],
    )
    offset: int
    before: str = Field(alias="from", description="The last position that was captured.", examples=["0/16B3748"])
    after: str = Field(alias="to", examples=["0/1F00028"])
    lost: str = Field(examples=["changes between 0/16B3748 and 0/1F00028"])
    waiting: dict[str, int] = Field(examples=[{"lake": 12}])
    snapshot: int | None = Field(description="The copy that begins with the next start; none for a gap.", examples=[2])

    @classmethod
    def of(cls, found: RecoveredPipeline) -> RecoveryShape:
        done = found.done
        return cls.model_validate({
            "pipeline": found.pipeline, "mode": str(found.mode), "consequence": found.consequence,
            "offset": done.offset, "from": str(done.before), "to": str(done.after), "lost": done.lost,
            "waiting": done.waiting, "snapshot": done.snapshot or None,
        })  # fmt: skip


@router.post("/pipelines/{name}/recover", summary="Go on after a lost position")
def recover_pipeline(control: Control, cause: ByOperator, name: Name, how: RecoverRequest) -> RecoveryShape:
    """Capture begins anew: a new slot, or the end of the binlog. The pipeline must not run, and is not started."""
    return RecoveryShape.of(control.recover(name, RecoveryMode(how.mode), cause))
