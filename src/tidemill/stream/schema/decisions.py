"""What a decision on a schema change means for the barrier, and what is said where there is none."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.contracts.schema_change_store import Decision, StoredChange
from tidemill.errors import SchemaChangeHalted
from tidemill.model.schema_change import SchemaChange
from tidemill.schema.policy import ChangeVerdict

POLICY = "policy"
"""Who decided where nobody was asked."""


def verdict_after(stored: StoredChange, change: SchemaChange, verdict: ChangeVerdict) -> ChangeVerdict:
    """What is to be done, where policies say `verdict` and it was decided on the change. Who approves it lets it pass;
    kinds that the policies leave out are still left out."""
    if stored.decision is Decision.REJECTED:
        return ChangeVerdict(ignored=change.kinds)
    if stored.actor == POLICY:
        return verdict
    return ChangeVerdict(ignored=verdict.ignored, tried=verdict.tried)


def is_expired(stored: StoredChange, seconds: float | None) -> bool:
    """Whether the change has waited for a decision for so long. It counts from when it was met first, also over
    restarts."""
    if seconds is None:
        return False
    return (datetime.now(UTC) - datetime.fromisoformat(stored.seen_at)).total_seconds() >= seconds


def halt_error(stored: StoredChange, pipeline: str, why: str) -> SchemaChangeHalted:
    if stored.decision is Decision.REJECTED:
        way_on = "A decision is taken once: to go on without the change, set on_reject: ignore under ddl and start it."
    else:
        way_on = (
            f'"tidemill ddl show FILE {stored.number}" says what each sink would do, "tidemill ddl approve" lets it'
            " pass; then start the pipeline again."
        )
    return SchemaChangeHalted(
        f"schema change {stored.number} of {stored.table} ({', '.join(stored.kinds).replace('_', ' ')}): {why}",
        where=f"pipeline {pipeline}, offset {stored.offset}, position {stored.position}",
        fix=f"Everything before it is delivered, nothing after it. {way_on}",
    )
