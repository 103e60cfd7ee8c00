"""What goes over the wire, as OpenAPI shows it. Built from what `service/` returns, here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from tidemill.api.wire_shape import RequestShape, WireShape
from tidemill.contracts.state_store import Transition
from tidemill.service.run.status import PipelineStatus, State
from tidemill.service.schema.changes import PlannedChange, describe_outcome
from tidemill.service.server.managed import LeaseView, PipelineView

_EXAMPLE_SPEC = {
    "source": {"type": "postgres", "config": {"id": "shop", "dsn": "postgresql://cdc:***@db/shop"}},
    "sinks": [{"type": "files", "config": {"id": "lake", "path": "/srv/lake"}}],
}


class ProblemDetail(WireShape):
    path: list[str | int] = Field(description="Where in the document or request.")
    where: str
    what: str
    fix: str


class ProblemShape(WireShape):
    """application/problem+json: RFC 9457, with our code, what, where and fix."""

    type: str = Field(examples=["urn:tidemill:error:unknown-pipeline"])
    title: str
    status: int
    code: str = Field(description="Stable: programs may rely on it.", examples=["unknown-pipeline"])
    what: str
    where: str
    fix: str
    problems: list[ProblemDetail] | None = None


class ErrorShape(WireShape):
    code: str = ""
    what: str = ""
    where: str = ""
    fix: str = ""

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> Self | None:
        return cls(**{name: error.get(name, "") for name in cls.model_fields}) if error else None


class LeaseShape(WireShape):
    """Which server runs the pipeline, and whether that is the one that answers. `epoch` is the fencing number: it rises
    with each new holder."""

    holder: str = Field(examples=["cdc-1 pid 4711"])
    epoch: int
    since: str
    here: bool

    @classmethod
    def of(cls, lease: LeaseView | None) -> Self | None:
        return cls(**asdict(lease)) if lease is not None else None


class PipelineShape(WireShape):
    """A pipeline. `spec` is the resolved document, defaults included, secrets masked."""

    name: str = Field(examples=["orders"])
    status: str = Field(
        description="created, running, failing, paused, draining, stopping, stopped, failed, waiting_for_approval, "
        "waiting_for_schedule, or standby: another server runs it.",
        examples=["running"],
    )
    desired: str = Field(description="What an operator wants: running, paused, stopped or created.")
    origin: str = Field(description="api or file.")
    version: str = Field(description="Of the document; the ETag.")
    tenant: str | None
    labels: dict[str, str]
    spec: dict[str, Any] | None = Field(
        description="None where the document cannot be used: see error.", examples=[_EXAMPLE_SPEC]
    )
    error: ErrorShape | None
    changed_by: str
    changed_at: str
    lease: LeaseShape | None
    next_run: str | None = Field(description="The next slot of its schedule.", examples=["2026-01-31T12:15:00+00:00"])

    @classmethod
    def of(cls, view: PipelineView) -> Self:
        return cls(
            name=view.name, status=view.state, desired=view.desired, origin=view.origin, version=view.version,
            tenant=view.tenant, labels=dict(view.labels), spec=dict(view.spec) if view.spec is not None else None,
            error=ErrorShape.of(view.error), changed_by=view.changed_by, changed_at=view.changed_at,
            lease=LeaseShape.of(view.lease), next_run=view.next_run,
        )  # fmt: skip


class SinkShape(WireShape):
    id: str
    state: str
    waited_for: bool
    events: int
    offset: int
    lag_events: int
    dead_letters: int
    lost: int
    error: str


class CopiedTable(WireShape):
    """How far a table's copy is: pending, copying, catching_up, ready or failed. `estimate` is the source's own guess
    of its rows, -1 if it has none."""

    name: str
    state: str
    rows: int
    estimate: int
    chunks: int
    adopted: int
    error: str
    fix: str


class QuarantinedShape(WireShape):
    """A table whose rows wait in the log since a schema change. `decided`: they are on their way to the sinks."""

    table: str = Field(examples=["public.orders"])
    change: int = Field(description="The number of the schema change.", examples=[3])
    offset: int
    since: str
    events: int
    bytes: int = Field(examples=[40_960])
    decided: bool


class StatusShape(WireShape):
    """How a pipeline does. Lag in three measures: bytes of the source's own log, events captured and not delivered,
    seconds since the commit of the oldest change that waits. `tables` are those of the newest snapshot."""

    name: str
    state: str
    stage: str
    events: int
    events_per_second: float
    lag_bytes: int | None
    lag_events: int
    lag_seconds: float
    batch_seconds: float
    batches: int
    position: str = Field(description="Everything up to here is delivered.")
    captured: str = Field(description="Everything up to here is in the change log.")
    log_bytes: int = Field(description="Of the change log, what waits for delivery; at log.max_bytes capture waits.")
    began: str
    resumed: bool
    capture_restarts: int
    dead_letters_dropped: int
    sinks: list[SinkShape]
    error: ErrorShape | None
    notices: list[dict[str, str]]
    tables: list[CopiedTable]
    quarantined: list[QuarantinedShape]
    lease: LeaseShape | None
    next_run: str | None = Field(description="The next slot of its schedule.", examples=["2026-01-31T12:15:00+00:00"])

    @classmethod
    def of(cls, view: PipelineView) -> Self:
        fields = asdict(view.status or _UNSEEN)
        fields.pop("caught_up")  # of a run that ends; a server's does not
        fields.pop("lanes_stand")  # of a start that somebody watches
        fields.pop("drains")  # the state says so
        own = {"name": view.name, "state": view.state, "error": ErrorShape.of(view.error)}
        return cls(**{**fields, **own, "lease": LeaseShape.of(view.lease), "next_run": view.next_run})


_UNSEEN = PipelineStatus("", State.CREATED)


class TransitionShape(WireShape):
    state: str
    actor: str
    reason: str
    at: str

    @classmethod
    def of(cls, transition: Transition) -> Self:
        return cls(**asdict(transition))


class SinkChangeShape(WireShape):
    """What a sink would run for a schema change; `status` is applied, ignored or failed once it was reached."""

    sink: str = Field(examples=["warehouse"])
    statements: list[str] = Field(examples=[['ALTER TABLE "public"."orders" ADD COLUMN "note" text']])
    status: str
    error: str
    at: str


class SchemaChangeShape(WireShape):
    """A change of a table that came to the sinks. `text` is the source's statement where it tells it."""

    number: int
    status: str = Field(description="pending, approved, rejected, applied, ignored or failed.", examples=["pending"])
    table: str = Field(examples=["public.orders"])
    kinds: list[str] = Field(examples=[["add_column"]])
    offset: int
    position: str
    seen_at: str
    decision: str
    decided_by: str = Field(description="`policy` where nobody was asked.")
    decided_at: str
    reason: str
    text: str
    changes: list[dict[str, Any]] = Field(description="What differs, as in a DDL event: docs/events.md.", examples=[[]])
    before: dict[str, Any] | None = Field(description="Columns and key; null of a table that is new.", examples=[None])
    after: dict[str, Any] | None = Field(description="The same; null of one that was dropped.", examples=[None])
    sinks: list[SinkChangeShape]


class PlannedChangeShape(WireShape):
    """A change that is in the log and not at the sinks yet. `action` is what the policies say of it."""

    offset: int
    table: str = Field(examples=["public.orders"])
    kinds: list[str] = Field(examples=[["add_column"]])
    text: str
    action: str = Field(description="evolve, try_evolve, ignore, quarantine, halt or ask.", examples=["ask"])
    sinks: list[SinkChangeShape]

    @classmethod
    def of(cls, change: PlannedChange) -> Self:
        return cls(
            offset=change.offset, table=change.table, kinds=list(change.kinds), text=change.text, action=change.action,
            sinks=[SinkChangeShape(**describe_outcome(*each)) for each in sorted(change.plans.items())],
        )  # fmt: skip


class ReadyPipeline(WireShape):
    name: str
    status: str


class ReadyShape(WireShape):
    status: str = Field(description="ready, starting or stopping.", examples=["ready"])
    pipelines: list[ReadyPipeline] | None = Field(default=None, description="Only with a token.")


class LogLevelShape(RequestShape):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(examples=["DEBUG"])


class VersionShape(WireShape):
    version: str
    python: str
    spark: str


class ValidShape(WireShape):
    """What a document resolves to."""

    metadata: dict[str, Any]
    spec: dict[str, Any]
    notes: list[str]


class CheckShape(WireShape):
    subject: str
    name: str
    outcome: str = Field(description="pass, warn or fail.")
    detail: str
    fix: str


class DoctorShape(WireShape):
    ok: bool
    checks: list[CheckShape]


class CheckpointShape(WireShape):
    offset: int
    position: str
    version: int
    saved_at: str
    note: str


class SinkCheckpoint(WireShape):
    sink: str
    own: bool
    checkpoint: CheckpointShape | None


class CheckpointsShape(WireShape):
    pipeline: str
    checkpoint: CheckpointShape | None
    sinks: list[SinkCheckpoint]


class MoveRequest(RequestShape):
    """Where the checkpoint is to go: an offset of the log, or the last transaction before a time."""

    offset: int | None = Field(default=None, ge=0, le=2**63 - 1, examples=[1200])
    since: str | None = Field(default=None, max_length=64, examples=["2026-01-31T12:00:00Z"])
    sink: str | None = Field(default=None, max_length=200, description="Of one sink with a position of its own.")
    dry_run: bool = Field(default=False, description="Only say what it would mean.")


class MoveShape(WireShape):
    consequence: str
    replayed: int
    skipped: int
    checkpoint: CheckpointShape | None = Field(description="None after a dry run.")


class ChosenRecords(RequestShape):
    """Which dead letters: by id, of one sink, or `all` of them."""

    ids: list[Annotated[int, Field(ge=1, le=2**63 - 1)]] = Field(default=[], max_length=10_000, examples=[[1, 2]])
    all: bool = Field(default=False, description="Needed where neither ids nor a sink are given.")
    sink: str | None = Field(default=None, max_length=200)
    superseded: bool = Field(
        default=False, description="Replay: also those that newer events replaced. Purge: only those."
    )


class DeadLetterShape(WireShape):
    id: int
    sink: str
    offset: int
    table: str
    op: str
    reason: str
    attempts: int
    first_at: str
    superseded: str
    event: Any = Field(default=None, description="Only of one dead letter: its values.")


class DeadLettersShape(WireShape):
    count: dict[str, int] = Field(description="Of all there are, by sink.")
    dead_letters: list[DeadLetterShape]


class ReplayShape(WireShape):
    replayed: int
    failed: int
    skipped: int
    untried: int


class PurgeShape(WireShape):
    purged: int


class TableVersion(WireShape):
    table: str
    version: int
    sequence: int
    fingerprint: str
    position: str
    registered_at: str
    columns: list[dict[str, Any]]


class AuditShape(WireShape):
    number: int
    at: str
    actor: str
    action: str
    subject: str
    detail: str


TableNames = Annotated[
    list[Annotated[str, Field(max_length=500)]],
    Field(max_length=1000, description="Names or patterns; none means all.", examples=[["public.orders"]]),
]
SinkName = Annotated[
    str | None, Field(max_length=200, description="Needed if the pipeline has several.", examples=["lake"])
]
