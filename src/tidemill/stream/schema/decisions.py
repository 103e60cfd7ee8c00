"""A schema change as it is put on record, what a decision on it means for the barrier, and what is said where there is
none."""

from __future__ import annotations

from datetime import UTC, datetime

from tidemill.contracts.schema_change_store import ChangeStatus, Decision, StoredChange
from tidemill.errors import SchemaChangeHalted
from tidemill.model.block import Block
from tidemill.model.clock import utc_now
from tidemill.model.position import Position
from tidemill.model.schema_change import SchemaChange
from tidemill.schema.policy import ChangeVerdict

POLICY = "policy"
"""Who decided where nobody was asked."""


def stored_change(change: SchemaChange, block: Block) -> StoredChange:
    """Nobody has decided yet. Its position is that of the transaction that made it, as the first event of `block` has
    it: rows that were appended once more keep theirs."""
    column = block.column("position")
    position = Position("" if column is None else column[0].as_py() or "")
    before, after = (t.to_json().decode() if t is not None else "" for t in (change.before, change.after))
    return StoredChange(
        0, change.offset, position, change.table.full_name, tuple(sorted(map(str, change.kinds))), change.text, before,
        after, utc_now(),
    )  # fmt: skip


def verdict_after(stored: StoredChange, change: SchemaChange, verdict: ChangeVerdict) -> ChangeVerdict:
    """What is to be done, where policies say `verdict` and it was decided on the change. Who approves it lets it pass;
    kinds that the policies leave out are still left out."""
    if stored.decision is Decision.REJECTED:
        return ChangeVerdict(ignored=change.kinds)
    if stored.actor == POLICY:
        return verdict
    return ChangeVerdict(ignored=verdict.ignored, tried=verdict.tried)


def list_begun(stored: StoredChange, sink: str) -> tuple[str, ...]:
    """The statements that the sink ran at an earlier start, or was about to run."""
    known = stored.outcomes.get(sink)
    return known.statements if known is not None and known.at and known.status != ChangeStatus.FAILED else ()


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
