"""What stands under `ddl:`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tidemill.contracts import Config
from tidemill.model.schema_change import SchemaChangeKind

Action = Literal["evolve", "try_evolve", "ignore", "quarantine", "halt"]


class DdlPolicy(Config):
    """What happens at changes of these kinds of these tables. The first policy that matches a kind counts for it."""

    tables: tuple[str, ...] = Field(
        default=(), description="Tables by name or pattern: orders, shop.orders, shop.*, shop.prefix%; none means all."
    )
    kinds: tuple[SchemaChangeKind, ...] = Field(default=(), description="Kinds of change; none means all.")
    action: Action = Field(description="`evolve`, `try_evolve`, `ignore`, `quarantine` or `halt`.")


class Ddl(Config):
    """Changes of the source's tables on their way to the sinks: docs/schema-changes.md."""

    policies: tuple[DdlPolicy, ...] = Field(
        default=(), description="What happens, by table and kind of change; what none names is evolved."
    )
    allow_destructive_ddl: bool | None = Field(
        default=None,
        description="Of sinks that do not say it themselves: also drop columns that the source dropped, and change "
        "types where values may be lost.",
    )
    flush_timeout_seconds: float = Field(
        default=60,
        gt=0,
        description="For how long a sink may fail at a schema change, before the pipeline stops. `ddl_flush_timeout: "
        "1m` beside `ddl` says the same.",
    )
    gate: bool = Field(default=False, description="Wait at each schema change until an operator approves it.")
    gate_timeout_seconds: float | None = Field(
        default=None, gt=0,
        description="For how long a change may wait for a decision, from when it was met first, before the pipeline "
        "stops. Without it there is no limit.",
    )  # fmt: skip
    auto_approve: tuple[SchemaChangeKind, ...] = Field(
        default=(SchemaChangeKind.CREATE_TABLE,), description="Kinds of change that the gate lets pass by itself."
    )
    approvers_note: Literal["required", "optional"] = Field(
        default="optional", description="Whether a decision must say why."
    )
    on_reject: Literal["halt", "ignore"] = Field(
        default="halt", description="After a rejection: stop the pipeline, or go on with the old structure."
    )
