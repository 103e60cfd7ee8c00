"""Whether a sink's rows are the source's, as `tidemill verify` says."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from tidemill.api.access import Control, Name, Operator
from tidemill.api.shapes import SinkName, TableNames
from tidemill.api.wire_shape import RequestShape, WireShape
from tidemill.contracts import RowFault
from tidemill.service.verify.audit import VerifyOptions, verify
from tidemill.service.verify.verdicts import TableVerdict

router = APIRouter(tags=["verify"])


class VerifyRequest(RequestShape):
    sink: SinkName = None
    tables: TableNames = Field(default_factory=list)
    wait_seconds: float = Field(default=30.0, ge=0, le=600, description="How long a sink that lags is waited for.")
    limit: int = Field(default=20, ge=0, le=1000, description="How many keys to show per table.")


class WrongRow(WireShape):
    key: list[str | None]
    fault: str = Field(description="missing, extra or different.")
    columns: list[str]


class VerifiedTable(WireShape):
    """`moving` rows changed too often to be judged; `passed`: the sink had passed the place of the last look. Of a
    table that could not be compared (`error` says why) the numbers are null."""

    table: str
    compared: bool
    rows: int | None
    equal: bool
    wrong: int | None
    missing: int | None
    extra: int | None
    different: int | None
    more: bool
    moving: int | None
    passed: bool
    left_out: list[str]
    error: str
    fix: str
    keys: list[WrongRow]

    @classmethod
    def of(cls, one: TableVerdict, limit: int) -> VerifiedTable:
        keys = [WrongRow(key=list(k.key), fault=str(k.fault), columns=list(k.columns)) for k in one.keys[:limit]]
        known = one.is_compared
        counts = {str(fault): one.count(fault) if known else None for fault in RowFault}
        return cls(
            table=one.table, compared=known, rows=one.rows if known else None, equal=one.is_equal,
            wrong=len(one.keys) if known else None, **counts, more=one.more, moving=one.moving if known else None,
            passed=one.passed, left_out=list(one.left_out), error=one.error, fix=one.fix, keys=keys,
        )  # fmt: skip


class VerifyShape(WireShape):
    equal: bool
    tables: list[VerifiedTable]


@router.post("/pipelines/{name}/verify", summary="Are a sink's rows the source's?")
def verify_sink(_: Operator, control: Control, name: Name, what: VerifyRequest) -> VerifyShape:
    """Compares every row: equal, missing, extra, different. Safe while the pipeline runs; takes as long as reading both
    sides does. Shows keys and columns, no other values."""
    options = VerifyOptions(wait_seconds=what.wait_seconds)
    found = list(verify(control.pipeline(name), sink=what.sink, tables=what.tables, options=options))
    return VerifyShape(
        equal=all(one.is_equal for one in found), tables=[VerifiedTable.of(one, what.limit) for one in found]
    )
